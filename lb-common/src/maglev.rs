//! Maglev consistent hashing (Eisenbud et al., NSDI 2016): the backend of each slot.
//!
//! Invariant: the table depends only on the *set* of backend identities. So every node that has the
//! same endpoints builds the same table, and a router in front may move a connection to another
//! node.

/// The possible sizes of a table: primes, each about twice the previous one. With a prime size, a
/// backend's stride visits all slots.
pub const SIZES: [u32; 14] =
    [7, 31, 67, 131, 257, 521, 1031, 2053, 4099, 8209, 16411, 32771, 65537, 131_101];

/// The least number of slots per backend. Shares differ by at most one slot, so by less than 1.5
/// percent.
const SLOTS_PER_BACKEND: usize = 72;

/// The greatest number of slots per backend, on average: the highest ratio of `fitted_size` to the
/// number of backends, rounded up. With this many slots for each backend, the tables of any pools
/// fit.
pub const MOST_SLOTS_PER_BACKEND: u32 = 145;

/// The table size for a number of backends. A single one gets one slot, because there is nothing to
/// choose.
pub fn fitted_size(backends: usize) -> u32 {
    if backends <= 1 {
        return backends as u32;
    }
    let wanted = backends.saturating_mul(SLOTS_PER_BACKEND);
    SIZES.into_iter().find(|&size| size as usize >= wanted).unwrap_or(SIZES[SIZES.len() - 1])
}

/// The largest table size that fits into a number of slots.
pub fn size_within(slots: u32) -> u32 {
    SIZES.into_iter().rev().find(|&size| size <= slots).unwrap_or(slots.min(1))
}

/// Fills a table: for every slot, the position in `identities` of its backend.
///
/// `identities` are hashes of the backends' addresses and ports, in ascending order. The same set
/// gives the same table everywhere.
#[cfg(feature = "std")]
pub fn table(identities: &[u64], size: u32) -> Vec<u32> {
    debug_assert!(identities.is_sorted());
    if identities.is_empty() || size == 0 {
        return Vec::new();
    }
    if identities.len() == 1 {
        return vec![0; size as usize];
    }

    const EMPTY: u32 = u32::MAX;
    let mut slots = vec![EMPTY; size as usize];
    // Each backend visits the slots in its own order. Only its next slot is stored.
    let mut walks: Vec<Walk> = identities.iter().map(|&id| Walk::new(id, size)).collect();
    let mut free = size;
    loop {
        for (position, walk) in walks.iter_mut().enumerate() {
            let slot = loop {
                let slot = walk.step(size) as usize;
                if slots[slot] == EMPTY {
                    break slot;
                }
            };
            slots[slot] = position as u32;
            free -= 1;
            if free == 0 {
                return slots;
            }
        }
    }
}

#[cfg(feature = "std")]
struct Walk {
    next: u32,
    stride: u32,
}

#[cfg(feature = "std")]
impl Walk {
    fn new(identity: u64, size: u32) -> Self {
        let hash = crate::hash::mix(identity);
        Self {
            next: crate::hash::scale(hash as u32, size),
            // 1..size: coprime to a prime size.
            stride: 1 + crate::hash::scale((hash >> 32) as u32, size - 1),
        }
    }

    fn step(&mut self, size: u32) -> u32 {
        let slot = self.next;
        self.next += self.stride;
        if self.next >= size {
            self.next -= size;
        }
        slot
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    fn backends(count: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..count).map(|n| crate::hash::mix(n + 1)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn every_size_is_prime() {
        for size in SIZES {
            let mut divisors = 2..=size.isqrt();
            assert!(divisors.all(|n| !size.is_multiple_of(n)), "{size} is not prime");
        }
    }

    #[test]
    fn slots_per_backend_are_within_the_stated_bounds() {
        for count in 1..=10_000u32 {
            let size = fitted_size(count as usize);
            assert!(size <= MOST_SLOTS_PER_BACKEND * count, "{count}: {size}");
            let least = SLOTS_PER_BACKEND as u32 * count;
            assert!(count == 1 || size >= least.min(SIZES[SIZES.len() - 1]), "{count}: {size}");
        }
    }

    #[test]
    fn shares_differ_by_at_most_a_slot_or_two_percent() {
        for count in [2, 3, 10, 14, 100, 650, 1_000] {
            let all = backends(count);
            let size = fitted_size(all.len());
            let mut shares = vec![0u32; all.len()];
            for position in table(&all, size) {
                shares[position as usize] += 1;
            }
            let least = shares.iter().min().unwrap();
            let most = shares.iter().max().unwrap();
            assert!(most - least <= 1 + size / count as u32 / 50, "{count}: {least}..{most}");
        }
    }

    #[test]
    fn a_leaving_backend_disturbs_few_others() {
        let before = backends(100);
        let mut after = before.clone();
        let gone = after.remove(37);
        let size = fitted_size(before.len());
        assert_eq!(size, fitted_size(after.len()));

        let (old, new) = (table(&before, size), table(&after, size));
        let moved = (0..size as usize)
            .filter(|&slot| {
                let was = before[old[slot] as usize];
                was != gone && was != after[new[slot] as usize]
            })
            .count();
        // The removed backend's hundredth must move; of the others, a few percent may.
        assert!(moved * 100 < size as usize * 4, "{moved} of {size} slots moved for nothing");
    }

    #[test]
    fn no_backends_make_no_table_and_one_needs_no_choice() {
        assert_eq!(fitted_size(0), 0);
        assert_eq!(table(&[], 0), [0u32; 0]);
        assert_eq!(fitted_size(1), 1);
        assert_eq!(table(&[42], 1), [0]);
    }

    #[test]
    fn more_backends_than_slots_still_fill_the_table() {
        let all = backends(40);
        assert_eq!(table(&all, 7).len(), 7);
    }
}
