//! The earlier owners of a table's slots.
//!
//! A connection that a router moves to another node is unknown there, and its slot may lead to
//! another backend by now. So each slot remembers to which backends it led before.
//!
//! A node knows the connections of all its backends, so one owner on each node is enough to ask it.
//! An owner that is gone for good has no connections left: it is forgotten, unless it stands for others
//! on its node. Then another backend on the node takes its place.
//!
//! # Invariants
//! - A slot has at most [`HISTORY_DEPTH`] earlier owners, each on another node when they were noted, the
//!   last one first. The current owner is among them only if it stands for others.
//! - Nodes that see the same changes keep the same history.
//!
//! `asked`, an argument of several functions, returns the backend by which an owner's node is asked,
//! and the node: the owner itself as long as it is there. `None`: none of the node is left.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::hash;
use crate::layout::{EarlierOwners, HISTORY_DEPTH, NO_BACKEND};

/// An owner as a row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    /// Its index.
    pub backend: u32,
    /// Until when it owned the slot.
    pub until: u32,
    /// The entry stands for several owners on its node.
    pub several: bool,
}

/// The slots of one table that have earlier owners, with these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotHistory(BTreeMap<u32, EarlierOwners>);

impl SlotHistory {
    pub fn of_rows(rows: impl IntoIterator<Item = (u32, EarlierOwners)>) -> Self {
        Self(rows.into_iter().collect())
    }

    pub fn rows(&self) -> impl Iterator<Item = (u32, &EarlierOwners)> {
        self.0.iter().map(|(&slot, owners)| (slot, owners))
    }

    pub fn get(&self, slot: u32) -> Option<&EarlierOwners> {
        self.0.get(&slot)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The history after the table changed at this time. The tables have a backend's index in each
    /// slot; they may have different sizes.
    pub fn after<N: PartialEq>(
        &self,
        old: &[u32],
        new: &[u32],
        now: u32,
        asked: impl Fn(u32) -> Option<(u32, N)>,
    ) -> Self {
        let (before, slots) = (old.len() as u32, new.len() as u32);
        // Mostly few slots change their owner, and the others keep what they have.
        let mut rows = if before == slots { self.0.clone() } else { BTreeMap::new() };
        for (slot, &owner) in (0_u32..).zip(new) {
            if before == slots && old[slot as usize] == owner {
                continue;
            }
            let mut owners = Vec::new();
            for same in slots_of_same_hashes(slot, slots, before) {
                owners.push(SlotOwner { backend: old[same as usize], until: now, several: false });
                owners.extend(self.0.get(&same).into_iter().flat_map(entries));
            }
            owners.retain(|earlier| earlier.backend != owner || earlier.several);
            match newest(owners, &asked) {
                Some(kept) => drop(rows.insert(slot, kept)),
                None => drop(rows.remove(&slot)),
            }
        }
        Self(rows)
    }

    /// Adds what another node remembers of a slot that has this owner. It comes after what this node
    /// remembers, whose order stays.
    pub fn learn<N: PartialEq>(
        &mut self,
        slot: u32,
        owner: u32,
        others: impl IntoIterator<Item = SlotOwner>,
        asked: impl Fn(u32) -> Option<(u32, N)>,
    ) {
        let mut all: Vec<SlotOwner> = self.0.get(&slot).into_iter().flat_map(entries).collect();
        let last = all.last().map_or(u32::MAX, |last| last.until);
        let others = others.into_iter().filter(|other| other.backend != owner || other.several);
        all.extend(others.map(|other| SlotOwner { until: other.until.min(last), ..other }));
        if let Some(kept) = newest(all, asked) {
            self.0.insert(slot, kept);
        }
    }

    /// Removes owners that lost their slot before a time, and those that are gone for good.
    pub fn retain<N: PartialEq>(&mut self, since: u32, asked: impl Fn(u32) -> Option<(u32, N)>) {
        self.forget(since);
        let is_there =
            |owner: SlotOwner| asked(owner.backend).is_some_and(|(it, _)| it == owner.backend);
        self.0.retain(|_, owners| {
            // Rows of which nobody has gone stay as they are, even if backends move.
            entries(owners).all(is_there)
                || replace(owners, newest(entries(owners).collect(), &asked))
        });
    }

    /// Removes owners that lost their slot before a time.
    pub fn forget(&mut self, since: u32) {
        self.0.retain(|_, owners| {
            let kept = entries(owners).filter(|owner| owner.until >= since);
            replace(owners, row(kept))
        });
    }

    /// Removes the slots whose last change is longest ago until at most `most` are left.
    pub fn limit(&mut self, most: usize) {
        let Some(excess) = self.0.len().checked_sub(most).filter(|excess| *excess > 0) else {
            return;
        };
        let last = |owners| entries(owners).next().map(|owner| owner.until);
        let mut by_age: Vec<_> = self.0.iter().map(|(&slot, it)| (last(it), slot)).collect();
        by_age.sort_unstable();
        for (_, slot) in &by_age[..excess] {
            self.0.remove(slot);
        }
    }
}

pub fn entries(row: &EarlierOwners) -> impl Iterator<Item = SlotOwner> + '_ {
    let all = row.backends.iter().zip(&row.until).map(|(&backend, &word)| {
        let (until, several) = EarlierOwners::without_mark(word);
        SlotOwner { backend, until, several }
    });
    all.take_while(|owner| owner.backend != NO_BACKEND)
}

/// The last ones of a slot's earlier owners, as a row has them; `None`: there are none.
fn newest<N: PartialEq>(
    mut owners: Vec<SlotOwner>,
    asked: impl Fn(u32) -> Option<(u32, N)>,
) -> Option<EarlierOwners> {
    // Stable: of equal times the order stays.
    owners.sort_by_key(|owner| Reverse(owner.until));
    let mut kept: Vec<(SlotOwner, N)> = Vec::new();
    for owner in owners {
        let Some((backend, node)) = asked(owner.backend) else { continue };
        let is_there = backend == owner.backend;
        if backend == NO_BACKEND || !is_there && !owner.several {
            continue;
        }
        match kept.iter_mut().find(|(_, other)| *other == node) {
            Some((same, _)) => same.several |= owner.several || same.backend != backend,
            None => kept.push((SlotOwner { backend, ..owner }, node)),
        }
    }
    row(kept.into_iter().map(|(owner, _)| owner))
}

/// A row of the first of some owners; `None`: there are none.
fn row(owners: impl Iterator<Item = SlotOwner>) -> Option<EarlierOwners> {
    let mut row = EarlierOwners::default();
    let mut count = 0;
    for SlotOwner { backend, until, several } in owners.take(HISTORY_DEPTH) {
        row.backends[count] = backend;
        row.until[count] = EarlierOwners::with_mark(until, several);
        count += 1;
    }
    (count > 0).then_some(row)
}

/// Replaces a row, if anything is left of it.
fn replace(row: &mut EarlierOwners, left: Option<EarlierOwners>) -> bool {
    left.map(|left| *row = left).is_some()
}

/// The slots of a table with `others` slots to which the hashes of a slot of a table with `slots`
/// slots lead.
fn slots_of_same_hashes(slot: u32, slots: u32, others: u32) -> RangeInclusive<u32> {
    if slots == others {
        return slot..=slot;
    }
    if others == 0 {
        // An empty range.
        return RangeInclusive::new(1, 0);
    }
    let first = |slot: u32| (u64::from(slot) << 32).div_ceil(slots.into());
    let last = first(slot + 1) - 1;
    hash::scale(first(slot) as u32, others)..=hash::scale(last as u32, others)
}
