//! Maglev consistent hashing (Eisenbud et al., NSDI 2016): the backend of each slot.
//!
//! Invariant: the table depends only on the *set* of backends, each an identity and a weight. So
//! every node that has the same endpoints builds the same table, and a router in front may move a
//! connection to another node.

use core::num::NonZero;
#[cfg(feature = "std")]
use std::cmp::Reverse;
#[cfg(feature = "std")]
use std::collections::BinaryHeap;

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

/// A backend's share of a table, relative to the others' weights.
pub type Weight = NonZero<u16>;

/// The weight of a backend for which none is set.
pub const DEFAULT_WEIGHT: Weight = NonZero::new(100).unwrap();

/// The table size for a number of backends, whatever their weights, so that a changed weight
/// moves few slots. A single one gets one slot, because there is nothing to
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

/// Fills a table: for every slot, the position in `identities` of its backend. All have the same
/// weight.
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
    let mut filling = Filling::new(identities.iter().copied(), size);
    loop {
        for position in 0..identities.len() {
            filling.take_turn(position);
            if filling.free == 0 {
                return filling.slots;
            }
        }
    }
}

/// Fills a table of backends with weights: identity and weight of each, in ascending order.
///
/// The turns of a backend come at the times 0, 1/weight, 2/weight, and so on. So each backend has
/// a slot, if there are as many; a changed weight leaves the order of all others' turns as it was;
/// and only the ratios of weights matter.
#[cfg(feature = "std")]
pub fn weighted_table(backends: &[(u64, Weight)], size: u32) -> Vec<u32> {
    debug_assert!(backends.is_sorted());
    let identities = backends.iter().map(|(identity, _)| *identity);
    if backends.is_empty() || size == 0 || backends.windows(2).all(|two| two[0].1 == two[1].1) {
        return table(&identities.collect::<Vec<u64>>(), size);
    }
    let mut filling = Filling::new(identities, size);
    // The next turn of each backend: its time and position.
    let mut turns: BinaryHeap<Reverse<(u64, u32)>> =
        (0..backends.len() as u32).map(|position| Reverse((0, position))).collect();
    let mut counts = vec![0_u32; backends.len()];
    while let Some(mut turn) = turns.peek_mut() {
        let Reverse((time, position)) = &mut *turn;
        let position = *position as usize;
        filling.take_turn(position);
        if filling.free == 0 {
            break;
        }
        counts[position] += 1;
        *time = time_of_turn(counts[position], backends[position].1);
    }
    filling.slots
}

/// When a backend takes its turn of this number, in integers: all nodes round alike.
#[cfg(feature = "std")]
fn time_of_turn(number: u32, weight: Weight) -> u64 {
    (u64::from(number) << 24) / u64::from(weight.get())
}

#[cfg(feature = "std")]
const EMPTY: u32 = u32::MAX;

/// A table that is being filled.
#[cfg(feature = "std")]
struct Filling {
    slots: Vec<u32>,
    free: u32,
    /// Each backend visits the slots in its own order. Only its next slot is stored.
    walks: Vec<Walk>,
}

#[cfg(feature = "std")]
impl Filling {
    fn new(identities: impl Iterator<Item = u64>, size: u32) -> Self {
        let walks = identities.map(|identity| Walk::new(identity, size)).collect();
        Self { slots: vec![EMPTY; size as usize], free: size, walks }
    }

    /// Gives a backend the next free slot of its order. There must be one.
    fn take_turn(&mut self, position: usize) {
        let size = self.slots.len() as u32;
        let slot = loop {
            let slot = self.walks[position].step(size) as usize;
            if self.slots[slot] == EMPTY {
                break slot;
            }
        };
        self.slots[slot] = position as u32;
        self.free -= 1;
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
    fn shares_differ_by_at_most_one_slot() {
        for count in [2, 3, 10, 14, 100, 650, 1_000] {
            let all = backends(count);
            let size = fitted_size(all.len());
            let mut shares = vec![0u32; all.len()];
            for position in table(&all, size) {
                shares[position as usize] += 1;
            }
            let least = shares.iter().min().unwrap();
            let most = shares.iter().max().unwrap();
            assert!(most - least <= 1, "{count}: {least}..{most}");
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
        assert_eq!(weighted_table(&[], 0), [0u32; 0]);
        assert_eq!(weighted_table(&[(42, DEFAULT_WEIGHT)], 1), [0]);
    }

    #[test]
    fn more_backends_than_slots_still_fill_the_table() {
        let all = backends(40);
        assert_eq!(table(&all, 7).len(), 7);
        let all = weighted(&all, |number| 1 + number as u16);
        assert_eq!(weighted_table(&all, 7).len(), 7);
    }

    /// The weight of each by its number.
    fn weighted(all: &[u64], weight: impl Fn(usize) -> u16) -> Vec<(u64, Weight)> {
        let weight = |number| Weight::new(weight(number)).expect("a weight above 0");
        all.iter().enumerate().map(|(number, &identity)| (identity, weight(number))).collect()
    }

    fn shares(table: &[u32], backends: usize) -> Vec<u32> {
        let mut shares = vec![0; backends];
        table.iter().for_each(|&position| shares[position as usize] += 1);
        shares
    }

    #[test]
    fn equal_weights_make_the_table_without_weights() {
        for count in [1, 2, 14, 100] {
            let all = backends(count);
            let size = fitted_size(all.len());
            for weight in [1, 100, 1_000] {
                assert_eq!(weighted_table(&weighted(&all, |_| weight), size), table(&all, size));
            }
        }
    }

    #[test]
    fn only_the_ratios_of_weights_matter() {
        let all = backends(20);
        let of = |factor: u16| {
            weighted_table(&weighted(&all, |number| factor * (1 + number as u16 % 4)), 2_053)
        };
        assert_eq!(of(1), of(7));
        assert_eq!(of(1), of(250));
    }

    #[test]
    fn shares_follow_the_weights_and_each_backend_has_a_slot() {
        for (count, heavy, light) in
            [(2, 100, 1), (3, 1_000, 1), (10, 100, 5), (100, 300, 100), (1_000, 1_000, 999)]
        {
            let all = weighted(&backends(count), |number| if number == 0 { light } else { heavy });
            let size = fitted_size(all.len());
            let shares = shares(&weighted_table(&all, size), all.len());
            let sum: u32 = all.iter().map(|(_, weight)| u32::from(weight.get())).sum();
            for ((_, weight), share) in all.iter().zip(shares) {
                let exact = f64::from(size) * f64::from(weight.get()) / f64::from(sum);
                let error = (f64::from(share) - exact).abs();
                assert!(share > 0 && error <= 1.0, "{weight} of {sum}: {share} for {exact}");
            }
        }
    }

    /// How many slots of the other backends get another owner when the weight of one changes, in
    /// percent of all slots.
    fn moved_for_nothing(count: u64, before: u16, after: u16) -> f64 {
        let all = backends(count);
        let (changed, size) = (count as usize / 2, fitted_size(all.len()));
        let of = |weight| {
            let weight = |number| if number == changed { weight } else { 100 };
            weighted_table(&weighted(&all, weight), size)
        };
        let (old, new) = (of(before), of(after));
        let moved = old.iter().zip(&new).filter(|(old, new)| old != new);
        // A slot that the changed backend loses or gets has to move.
        let others = moved.filter(|two| *two.0 != changed as u32 && *two.1 != changed as u32);
        others.count() as f64 * 100.0 / f64::from(size)
    }

    #[test]
    fn a_changed_weight_disturbs_few_others() {
        for count in [3, 10, 100] {
            for (before, after) in [(100, 50), (50, 100), (100, 200), (100, 1), (100, 90)] {
                let moved = moved_for_nothing(count, before, after);
                println!("{count} backends, {before} -> {after}: {moved:.2} %");
                assert!(moved < 5.0, "{count} backends, {before} -> {after}: {moved:.2} %");
            }
        }
    }
}
