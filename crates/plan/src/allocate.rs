//! Allocates indexes, and regions of `POOL_SLOTS`.
//!
//! What is given back can be allocated again only after `settle`: packets that are being processed
//! may still refer to it.

use std::collections::{BTreeMap, BTreeSet};

/// Allocates numbers below a limit, the lowest free one first.
pub struct Indexes {
    next: u32,
    limit: u32,
    free: BTreeSet<u32>,
    settling: Vec<u32>,
}

impl Indexes {
    pub fn new(first: u32, limit: u32) -> Self {
        Self { next: first, limit, free: BTreeSet::new(), settling: Vec::new() }
    }

    pub fn take(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop_first() {
            return Some(index);
        }
        (self.next < self.limit).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// This number and higher ones were never allocated.
    pub fn untouched(&self) -> u32 {
        self.next
    }

    /// Takes a number that was in use before this allocator existed.
    pub(crate) fn take_exactly(&mut self, index: u32) {
        if index < self.next {
            self.free.remove(&index);
            return;
        }
        self.free.extend(self.next..index);
        self.next = index + 1;
    }

    pub fn give_back(&mut self, index: u32) {
        self.settling.push(index);
    }

    pub fn settle(&mut self) {
        self.free.extend(self.settling.drain(..));
    }
}

/// Contiguous slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub offset: u32,
    pub size: u32,
}

impl Region {
    pub const EMPTY: Self = Self { offset: 0, size: 0 };
}

/// Allocates contiguous slots. Takes the smallest free run that is large enough: tables have few
/// sizes, so a freed run often fits another table exactly.
pub(crate) struct Regions {
    /// Free runs by offset; adjacent runs are merged.
    free: BTreeMap<u32, u32>,
    /// Free runs by size, then offset.
    by_size: BTreeSet<(u32, u32)>,
    free_slots: u32,
    settling: Vec<Region>,
}

impl Regions {
    pub fn new(slots: u32) -> Self {
        let mut regions = Self {
            free: BTreeMap::new(),
            by_size: BTreeSet::new(),
            free_slots: slots,
            settling: Vec::new(),
        };
        regions.insert(0, slots);
        regions
    }

    pub fn take(&mut self, size: u32) -> Option<Region> {
        let &(room, offset) = self.by_size.range((size, 0)..).next()?;
        self.remove(offset);
        if room > size {
            self.insert(offset + size, room - size);
        }
        self.free_slots -= size;
        Some(Region { offset, size })
    }

    /// Takes a run of the region's size from one of the best-fitting runs that lie below it.
    pub(crate) fn take_below(&mut self, region: Region) -> Option<Region> {
        /// Limits the search when there is none.
        const TRIED: usize = 8;
        let fitting = self.by_size.range((region.size, 0)..).take(TRIED);
        let &(room, offset) = fitting.into_iter().find(|(_, offset)| *offset < region.offset)?;
        self.remove(offset);
        if room > region.size {
            self.insert(offset + region.size, room - region.size);
        }
        self.free_slots -= region.size;
        Some(Region { offset, size: region.size })
    }

    /// Whether something was given back that the next plan can allocate.
    pub(crate) fn is_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    fn insert(&mut self, offset: u32, room: u32) {
        self.free.insert(offset, room);
        self.by_size.insert((room, offset));
    }

    fn remove(&mut self, offset: u32) -> Option<u32> {
        let room = self.free.remove(&offset)?;
        self.by_size.remove(&(room, offset));
        Some(room)
    }

    /// Takes a region that was in use before this allocator existed; false if it is not free.
    pub(crate) fn take_exactly(&mut self, region: Region) -> bool {
        let end = u64::from(region.offset) + u64::from(region.size);
        let Some((&offset, &room)) = self.free.range(..=region.offset).next_back() else {
            return false;
        };
        let free_end = u64::from(offset) + u64::from(room);
        if region.size == 0 || end > free_end {
            return false;
        }
        self.remove(offset);
        if offset < region.offset {
            self.insert(offset, region.offset - offset);
        }
        if end < free_end {
            self.insert(end as u32, (free_end - end) as u32);
        }
        self.free_slots -= region.size;
        true
    }

    /// Slots outside of all regions, including those that can't be allocated yet.
    pub(crate) fn free_slots(&self) -> u32 {
        self.free_slots
    }

    pub fn give_back(&mut self, region: Region) {
        if region.size > 0 {
            self.free_slots += region.size;
            self.settling.push(region);
        }
    }

    pub fn settle(&mut self) {
        for Region { mut offset, mut size } in std::mem::take(&mut self.settling) {
            if let Some((&before, &room)) = self.free.range(..offset).next_back()
                && before + room == offset
            {
                self.remove(before);
                offset = before;
                size += room;
            }
            if let Some(room) = self.remove(offset + size) {
                size += room;
            }
            self.insert(offset, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_index_given_back_is_taken_again_only_after_settling() {
        let mut indexes = Indexes::new(1, 3);
        assert_eq!((indexes.take(), indexes.take(), indexes.take()), (Some(1), Some(2), None));
        indexes.give_back(1);
        assert_eq!(indexes.take(), None);
        indexes.settle();
        assert_eq!(indexes.take(), Some(1));
    }

    proptest! {
        #[test]
        fn regions_never_overlap_and_are_all_given_back(sizes in prop::collection::vec(1u32..50, 1..60)) {
            let mut regions = Regions::new(1000);
            let mut taken: Vec<Region> = Vec::new();
            for (turn, size) in sizes.into_iter().enumerate() {
                if let Some(new) = regions.take(size) {
                    for old in &taken {
                        prop_assert!(new.offset + new.size <= old.offset || old.offset + old.size <= new.offset);
                    }
                    taken.push(new);
                }
                if turn % 3 == 2 && !taken.is_empty() {
                    regions.give_back(taken.swap_remove(turn % taken.len()));
                    regions.settle();
                }
                let used: u32 = taken.iter().map(|region| region.size).sum();
                prop_assert_eq!(regions.free_slots(), 1000 - used);
            }
            for region in taken {
                regions.give_back(region);
            }
            regions.settle();
            prop_assert_eq!(regions.free_slots(), 1000);
            prop_assert_eq!(regions.free, BTreeMap::from([(0, 1000)]));
        }

        #[test]
        fn an_adopted_region_is_not_allocated(offset in 0u32..900, size in 1u32..100) {
            let mut regions = Regions::new(1000);
            let old = Region { offset, size };
            prop_assert!(regions.take_exactly(old));
            prop_assert!(!regions.take_exactly(old));
            while let Some(new) = regions.take(10) {
                prop_assert!(new.offset + new.size <= offset || offset + size <= new.offset);
            }
        }
    }
}
