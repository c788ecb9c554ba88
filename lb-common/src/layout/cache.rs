//! Direct-mapped caches of hash tables: arrays, which a packet reads without a call.
//!
//! The key of an entry selects its position in the cache. If another entry is there, this one is in the
//! hash table only, which has all entries.
//!
//! # Invariant
//! Only the agent writes a cache. It changes an entry's version before and after each write, so a
//! program that finds the same odd version before and after its read has read a consistent entry.

use crate::atomic::{AtomicLong, Record};

/// A position in a cache.
#[repr(C)]
pub struct CacheEntry<K: Copy, V: Copy> {
    /// Even: the position is empty, or being written.
    pub version: AtomicLong,
    pub entry: Record<KeyValue<K, V>>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KeyValue<K, V> {
    pub key: K,
    pub value: V,
}

impl<K: Copy + PartialEq, V: Copy> CacheEntry<K, V> {
    /// The value of a key, if it is in the cache.
    #[inline(always)]
    pub fn read(&self, key: &K) -> Option<V> {
        let version = self.version.load();
        if version & 1 == 0 {
            return None;
        }
        // SAFETY: any bit pattern is a valid entry, and one that was written meanwhile is discarded
        // below: it has another version.
        let found = unsafe { self.entry.read(|entry| (entry.key == *key).then_some(entry.value)) }?;
        (self.version.load() == version).then_some(found)
    }
}
