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
//! - No two entries of live flows have equal hashes. A CPU that adds an entry searches again
//!   afterwards, and removes it if another CPU has added an equal one meanwhile.
//! - A new entry has another fingerprint than all others in both buckets of its hash. Flows with
//!   one fingerprint and only one bucket in common are not told apart: the later one hides one that
//!   is in its second bucket. Nobody can aim at that without the secret, and fingerprints have 27
//!   random bits.

use crate::atomic::AtomicLong;
use crate::branchless::{choose, is_zero, larger};
use crate::family::Family;
use crate::hash::ReplyHash;
use crate::layout::{REPLY_BUCKET_ENTRIES, ReplyBucket, Ticks};
use crate::verifier::hide;

use super::table::{self, Location};
use super::tables::FlowTables;

/// The fields of an entry; see [`ReplyBucket`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct ReplyEntry(u64);

impl ReplyEntry {
    const FREE: Self = Self(0);

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
pub fn find_reply_location<F: Family, T: FlowTables<F>>(
    tables: &T,
    hash: ReplyHash,
) -> Option<Location> {
    let [first, second] = hash.buckets(tables.settings().reply_mask);
    let bucket: &ReplyBucket = tables.reply_bucket(first)?;
    // Most flows have their preferred entry.
    let mut found = ReplyEntry(bucket.entries[hash.preferred_entry()].load());
    if found.fits(hash) == 0 {
        found = fitting_entry(bucket, hash, ReplyEntry::FREE);
    }
    if found == ReplyEntry::FREE {
        found = fitting_entry(tables.reply_bucket(second)?, hash, ReplyEntry::FREE);
    }
    (found != ReplyEntry::FREE).then(|| found.location())
}

/// Finds an entry with fewer branches and more loads than [`find`]: for code that the verifier follows once for each
/// branch.
#[inline(always)]
pub fn find_in_both<F: Family, T: FlowTables<F>>(tables: &T, hash: ReplyHash) -> Option<Location> {
    let [first, second] = hash.buckets(tables.settings().reply_mask);
    let mut found = ReplyEntry::FREE;
    if let Some(bucket) = tables.reply_bucket(first) {
        found = ReplyEntry(bucket.entries[hash.preferred_entry()].load());
    }
    if found.fits(hash) == 0 {
        found = ReplyEntry::FREE;
        for index in [second, first] {
            let Some(bucket) = tables.reply_bucket(index) else { continue };
            found = fitting_entry(bucket, hash, found);
        }
    }
    (found != ReplyEntry::FREE).then(|| found.location())
}

/// The entry of a bucket that has the fingerprint, or another one.
#[inline(always)]
fn fitting_entry(bucket: &ReplyBucket, hash: ReplyHash, other: ReplyEntry) -> ReplyEntry {
    let mut found = other.0;
    for slot in &bucket.entries {
        let entry = ReplyEntry(slot.load());
        found = choose(entry.fits(hash), entry.0, found);
    }
    ReplyEntry(found)
}

/// Stores the location of a flow. False if its replies could be taken for those of another flow, or
/// if no entry that was tried can be taken.
#[inline(always)]
pub fn insert_reply_location<F: Family, T: FlowTables<F>>(
    tables: &T,
    hash: ReplyHash,
    location: Location,
    now: Ticks,
) -> bool {
    let [first, second] = hash.buckets(tables.settings().reply_mask);
    let (Some(one), Some(other)) = (tables.reply_bucket(first), tables.reply_bucket(second)) else {
        return false;
    };
    let Some(slot) = slot_to_take(tables, [one, other], hash, now) else { return false };
    let old = ReplyEntry(slot.load());
    if old != ReplyEntry::FREE && !release_expired(tables, old, now) {
        return false;
    }
    let new = ReplyEntry::new(hash, location);
    if !slot.replace(old.0, new.0) {
        return false;
    }
    let matching = count(one, hash) + count(other, hash);
    let is_only_one = matching == 1 || matching == 2 && vacate_equal(tables, other, hash, new, now);
    if !is_only_one {
        slot.replace(new.0, ReplyEntry::FREE.0);
    }
    is_only_one
}

/// Frees an entry of a bucket that has the same fingerprint as a new one, if its flow is gone.
/// Otherwise false.
#[inline(always)]
fn vacate_equal<F: Family, T: FlowTables<F>>(
    tables: &T,
    bucket: &ReplyBucket,
    hash: ReplyHash,
    new: ReplyEntry,
    now: Ticks,
) -> bool {
    let slot = &bucket.entries[best_entry(bucket, hash).number(hash.preferred_entry())];
    let old = ReplyEntry(slot.load());
    old.fits(hash) != 0
        && old != new
        && release_expired(tables, old, now)
        && slot.replace(old.0, ReplyEntry::FREE.0)
}

/// Chooses the entry to take: in the first bucket one with this fingerprint, else a free one, else
/// one whose flow is gone; else one of the second bucket. `None` if there is none to take.
#[inline(always)]
fn slot_to_take<'a, F: Family, T: FlowTables<F>>(
    tables: &T,
    buckets: [&'a ReplyBucket; 2],
    hash: ReplyHash,
    now: Ticks,
) -> Option<&'a AtomicLong> {
    let [one, other] = buckets;
    slot_in(tables, one, hash, now).or_else(|| slot_in(tables, other, hash, now))
}

/// The slot to take in one bucket. Not a loop over both: for that, four calls together would need more
/// stack than Linux 6.1 allows.
#[inline(always)]
fn slot_in<'a, F: Family, T: FlowTables<F>>(
    tables: &T,
    bucket: &'a ReplyBucket,
    hash: ReplyHash,
    now: Ticks,
) -> Option<&'a AtomicLong> {
    let preferred = hash.preferred_entry();
    let best = best_entry(bucket, hash);
    if best.can_be_taken() {
        return Some(&bucket.entries[best.number(preferred)]);
    }
    let number = abandoned_entry(tables, bucket, preferred, now);
    (number != NONE).then(|| &bucket.entries[number & LAST])
}

/// The highest number of an entry in its bucket.
const LAST: usize = REPLY_BUCKET_ENTRIES - 1;

/// Not the number of an entry.
const NONE: usize = REPLY_BUCKET_ENTRIES;

/// An entry that may be taken, in one number: whether it has the fingerprint, whether it is free,
/// and how near it is to the preferred one.
#[derive(Clone, Copy)]
struct Candidate(u64);

impl Candidate {
    const FITS: u32 = 4;
    const FREE: u32 = 3;

    /// Whether it has the fingerprint, or is free.
    #[inline(always)]
    fn can_be_taken(self) -> bool {
        self.0 >> Self::FREE != 0
    }

    #[inline(always)]
    fn number(self, preferred: usize) -> usize {
        (LAST - (self.0 as usize & LAST)) ^ preferred
    }
}

/// The entry of a bucket with this fingerprint, else the free one nearest to the preferred one.
#[inline(always)]
fn best_entry(bucket: &ReplyBucket, hash: ReplyHash) -> Candidate {
    let mut best = 0;
    for number in 0..REPLY_BUCKET_ENTRIES {
        let entry = ReplyEntry(bucket.entries[number].load());
        let [fits, free] = [entry.fits(hash), is_zero(entry.0 >> 1)];
        let near = (LAST - (number ^ hash.preferred_entry())) as u64;
        best = larger(best, (fits << Candidate::FITS | free << Candidate::FREE | near) as i64);
    }
    Candidate(best as u64)
}

/// The number of an entry whose flow is gone, in the half of a bucket with the preferred entry, else
/// [`NONE`]: an entry stays behind when its flow is replaced. Not a loop: Linux 6.1 refuses the one
/// that the compiler makes of it.
#[inline(always)]
fn abandoned_entry<F: Family, T: FlowTables<F>>(
    tables: &T,
    bucket: &ReplyBucket,
    preferred: usize,
    now: Ticks,
) -> usize {
    // Otherwise the verifier would follow each combination of these four.
    let none = hide(NONE as u32, bucket.entries[preferred].load() as u32) as usize;
    let found = this_if_gone(tables, bucket, preferred ^ 3, none, now);
    let found = this_if_gone(tables, bucket, preferred ^ 2, found, now);
    let found = this_if_gone(tables, bucket, preferred ^ 1, found, now);
    this_if_gone(tables, bucket, preferred, found, now)
}

/// The number of an entry if its flow is gone, else another one.
#[inline(always)]
fn this_if_gone<F: Family, T: FlowTables<F>>(
    tables: &T,
    bucket: &ReplyBucket,
    number: usize,
    other: usize,
    now: Ticks,
) -> usize {
    let location = ReplyEntry(bucket.entries[number & LAST].load()).location();
    let Some(bucket) = tables.flow_bucket(location.bucket() & tables.flow_mask()) else {
        return other;
    };
    let gone = table::is_gone(bucket, location, tables.settings(), now);
    choose(gone, number as u64, other as u64) as usize
}

#[inline(always)]
fn count(bucket: &ReplyBucket, hash: ReplyHash) -> u64 {
    let mut matching = 0;
    for slot in &bucket.entries {
        matching += ReplyEntry(slot.load()).fits(hash);
    }
    matching
}

/// Releases an entry's flow if it has expired: its client could continue with an SNAT port that now
/// belongs to another flow. Returns whether it is gone.
#[inline(always)]
fn release_expired<F: Family, T: FlowTables<F>>(tables: &T, entry: ReplyEntry, now: Ticks) -> bool {
    let location = entry.location();
    let bucket = tables.flow_bucket(location.bucket() & tables.flow_mask());
    bucket.is_none_or(|bucket| table::release_expired_at(bucket, location, tables.settings(), now))
}
