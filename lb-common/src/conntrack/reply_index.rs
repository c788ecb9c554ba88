//! The index that finds flows by their replies.
//!
//! Replies to an SNAT address do not carry the client's address and port, which select a flow's
//! buckets. Other flows may be in other buckets than their client's (`crowd`). An entry here is the
//! location of a flow; whether a reply belongs to that flow, only its own record shows.
//!
//! # Invariants
//! - A live flow's entry is never taken. Only free entries are, and those of flows that are gone or
//!   have expired; an expired flow is released with its entry. So flow and entry cannot be evicted
//!   separately.
//! - Of all live entries that one reply may find, no two have the same fingerprint: the first match
//!   is the only one. A CPU that adds an entry searches again afterwards, and removes it if another
//!   CPU has added an equal one meanwhile.

use crate::atomic::AtomicLong;
use crate::branchless::{choose, is_zero, larger};
use crate::family::Family;
use crate::hash::ReplyHash;

use crate::layout::{REPLY_BUCKET_ENTRIES, ReplyBucket, Ticks};

use super::table::{self, Location};
use super::tables::FlowTables;

/// The fields of an entry; see [`ReplyBucket`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    #[inline(always)]
    fn new(hash: ReplyHash, location: Location) -> Self {
        Self(
            u64::from(hash.fingerprint()) << 36
                | u64::from(location.generation()) << 28
                | (location.entry_number() as u64) << 24
                | u64::from(location.bucket()),
        )
    }

    /// 1 if the entry has the fingerprint, else 0.
    #[inline(always)]
    fn fits(self, hash: ReplyHash) -> u64 {
        is_zero(self.0 >> 36 ^ u64::from(hash.fingerprint()))
    }

    #[inline(always)]
    fn location(self) -> Location {
        let word = self.0;
        Location::new(
            word as u32 & 0xff_ffff,
            (word >> 24) as u32 & 0xf,
            (word >> 28) as u32 & 0xff,
        )
    }
}

/// The location of the flow whose replies have this hash, if there is one.
#[inline(always)]
pub fn find<F: Family, T: FlowTables<F>>(tables: &T, hash: ReplyHash) -> Option<Location> {
    let mut found = Entry(0);
    if let Some(bucket) = preferred_bucket(tables, hash) {
        found = Entry(bucket.entries[hash.preferred_entry()].load());
    }
    // Most flows have their preferred entry.
    if found.fits(hash) == 0 {
        found = first(tables, hash);
    }
    (found.0 != 0).then(|| found.location())
}

/// The bucket of a hash in which entries are stored first.
#[inline(always)]
fn preferred_bucket<F: Family, T: FlowTables<F>>(
    tables: &T,
    hash: ReplyHash,
) -> Option<&ReplyBucket> {
    let [first, _] = hash.buckets(tables.settings().reply_mask);
    tables.reply_bucket(first)
}

#[inline(always)]
fn first<F: Family, T: FlowTables<F>>(tables: &T, hash: ReplyHash) -> Entry {
    let mut found = 0;
    for index in hash.buckets(tables.settings().reply_mask) {
        let Some(bucket): Option<&ReplyBucket> = tables.reply_bucket(index) else { continue };
        for entry in &bucket.entries {
            let entry = Entry(entry.load());
            found = choose(entry.fits(hash), entry.0, found);
        }
    }
    Entry(found)
}

/// Stores the location of a flow. False if its replies could be taken for those of another flow, or
/// if the entry that was tried is in use.
#[inline(always)]
pub fn insert<F: Family, T: FlowTables<F>>(
    tables: &T,
    hash: ReplyHash,
    location: Location,
    now: Ticks,
) -> bool {
    let [first, second] = hash.buckets(tables.settings().reply_mask);
    let (Some(one), Some(other)) = (tables.reply_bucket(first), tables.reply_bucket(second)) else {
        return false;
    };
    let mut number = entry_to_take(one, other, hash);
    if number & ARBITRARY != 0 {
        number = abandoned_entry(tables, (one, other), number, now);
    }
    let slot = entry_of((one, other), number);
    let old = Entry(slot.load());
    if old.0 != 0 && !release_expired(tables, old, now) {
        return false;
    }
    let new = Entry::new(hash, location);
    if !slot.replace(old.0, new.0) {
        return false;
    }
    // Both may be the same bucket.
    let matching = count(one, hash) + if first == second { 0 } else { count(other, hash) };
    if matching != 1 {
        slot.replace(new.0, 0);
    }
    matching == 1
}

/// The number, over both buckets, of the entry to take: one with this fingerprint, because there
/// must not be two; else a free one, preferably the preferred entry, then one of the first bucket;
/// else any, marked as [`ARBITRARY`].
#[inline(always)]
fn entry_to_take(one: &ReplyBucket, other: &ReplyBucket, hash: ReplyHash) -> usize {
    const FITS: u32 = 9;
    const FREE: u32 = 8;
    const LAST: u64 = 2 * REPLY_BUCKET_ENTRIES as u64 - 1;
    let preferred = hash.preferred_entry() as u64;
    // The lower an entry's distance from the preferred one, the better.
    let candidate = |bucket: &ReplyBucket, first: u64, number: usize| {
        let entry = Entry(bucket.entries[number].load());
        let rank = entry.fits(hash) << FITS | is_zero(entry.0 >> 1) << FREE;
        (rank | (LAST - (first | number as u64 ^ preferred))) as i64
    };
    // Of each bucket for itself, so that a CPU can compare in both at once.
    let (mut first, mut second) = (0, 0);
    for number in 0..REPLY_BUCKET_ENTRIES {
        first = larger(first, candidate(one, 0, number));
        second = larger(second, candidate(other, REPLY_BUCKET_ENTRIES as u64, number));
    }
    let best = larger(first, second) as u64;
    let found = (LAST - (best & LAST)) ^ preferred;
    let is_arbitrary = is_zero(best >> FREE);
    choose(is_arbitrary, u64::from(hash.any_entry()) | ARBITRARY as u64, found) as usize
}

/// Marks the number of an entry that neither has the fingerprint nor is free.
const ARBITRARY: usize = 2 * REPLY_BUCKET_ENTRIES;

/// One of the next four entries whose flow is gone; an entry of a flow stays behind when that is replaced.
/// Not a loop: Linux 6.1 refuses the one that the compiler makes of it.
#[inline(always)]
fn abandoned_entry<F: Family, T: FlowTables<F>>(
    tables: &T,
    buckets: (&ReplyBucket, &ReplyBucket),
    first: usize,
    now: Ticks,
) -> usize {
    let found = this_if_gone(tables, buckets, first, first, now);
    let found = this_if_gone(tables, buckets, first + 1, found, now);
    let found = this_if_gone(tables, buckets, first + 2, found, now);
    this_if_gone(tables, buckets, first + 3, found, now)
}

/// The number of an entry if its flow is gone, else another one.
#[inline(always)]
fn this_if_gone<F: Family, T: FlowTables<F>>(
    tables: &T,
    buckets: (&ReplyBucket, &ReplyBucket),
    number: usize,
    other: usize,
    now: Ticks,
) -> usize {
    let location = Entry(entry_of(buckets, number).load()).location();
    let Some(bucket) = tables.flow_bucket(location.bucket() & tables.flow_mask()) else {
        return other;
    };
    let gone = table::is_gone(bucket, location, tables.settings(), now);
    choose(gone, number as u64, other as u64) as usize
}

/// The entry with a number over both buckets.
#[inline(always)]
fn entry_of<'a>((one, other): (&'a ReplyBucket, &'a ReplyBucket), number: usize) -> &'a AtomicLong {
    let bucket = if number & REPLY_BUCKET_ENTRIES == 0 { one } else { other };
    &bucket.entries[number & (REPLY_BUCKET_ENTRIES - 1)]
}

#[inline(always)]
fn count(bucket: &ReplyBucket, hash: ReplyHash) -> u64 {
    let mut matching = 0;
    for slot in &bucket.entries {
        matching += Entry(slot.load()).fits(hash);
    }
    matching
}

/// Releases an entry's flow if it has expired: its client could continue with an SNAT port that now belongs to
/// another flow. Returns whether it is gone.
#[inline(always)]
fn release_expired<F: Family, T: FlowTables<F>>(tables: &T, entry: Entry, now: Ticks) -> bool {
    let location = entry.location();
    let bucket = tables.flow_bucket(location.bucket() & tables.flow_mask());
    bucket.is_none_or(|bucket| table::release_expired_at(bucket, location, tables.settings(), now))
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::family::V4;
    use crate::hash::Secret;

    /// What an entry holds.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Holds {
        Nothing,
        Another,
        TheFingerprint,
    }

    fn hash_of(port: u16) -> ReplyHash {
        let (backend, node) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        ReplyHash::of::<V4>(&Secret::new(7), (backend, 80), (node, port), 6)
    }

    fn buckets(holds: [Holds; 16], hash: ReplyHash) -> [ReplyBucket; 2] {
        let buckets = [ReplyBucket::default(), ReplyBucket::default()];
        for (number, holds) in holds.into_iter().enumerate() {
            let fingerprint = u64::from(hash.fingerprint());
            let word = match holds {
                Holds::Nothing => 0,
                Holds::Another => (fingerprint ^ 1) << 36 | 5,
                Holds::TheFingerprint => fingerprint << 36 | 5,
            };
            buckets[number / 8].entries[number % 8].store(word);
        }
        buckets
    }

    fn holds() -> impl Strategy<Value = Holds> {
        use Holds::*;
        prop_oneof![1 => Just(Nothing), 8 => Just(Another), 1 => Just(TheFingerprint)]
    }

    proptest! {
        #[test]
        fn the_entry_to_take_fits_or_is_the_nearest_free_one_or_any(
            holds in prop::array::uniform16(holds()), port: u16,
        ) {
            let hash = hash_of(port);
            let [one, other] = buckets(holds, hash);
            let nearest = |wanted: Holds| {
                let fitting = (0..16).filter(|&number| holds[number] == wanted);
                fitting.min_by_key(|number| number ^ hash.preferred_entry())
            };
            let any = hash.any_entry() as usize | ARBITRARY;
            let expected = nearest(Holds::TheFingerprint).or_else(|| nearest(Holds::Nothing));
            prop_assert_eq!(entry_to_take(&one, &other, hash), expected.unwrap_or(any));
        }
    }
}
