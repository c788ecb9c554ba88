//! Writes direct-mapped caches of hash tables.

use std::sync::atomic::Ordering;

use lb_common::layout::KeyValue;

use crate::mapped::Mapped;
use crate::plain::{Layout, Plain};

/// Replaces the value of a key at its position; `None`: removed. If another key is there, packets find
/// this one in the hash table only.
pub fn write_cached_entry<K: Layout, V: Layout>(
    cache: &Mapped,
    position: u32,
    key: K,
    value: Option<V>,
) {
    let version = cache.word(position);
    let before = version.load(Ordering::Relaxed);
    let is_used = before & 1 == 1;
    let is_others = is_used && !has_key(cache, position, key);
    if is_others || !is_used && value.is_none() {
        return;
    }
    let unused = (before | 1) + 1;
    version.store(unused, Ordering::Release);
    let Some(value) = value else { return };
    for (number, word) in words(&Plain(KeyValue { key, value })) {
        cache.cell(position, number).store(word, Ordering::Release);
    }
    version.store(unused + 1, Ordering::Release);
}

/// Whether the entry at a position has this key.
fn has_key<K: Layout>(cache: &Mapped, position: u32, key: K) -> bool {
    let is_there = |(number, word)| cache.cell(position, number).load(Ordering::Relaxed) == word;
    words(&Plain(key)).all(is_there)
}

/// The words of a key, or of an entry, which begins with its key. With their numbers: they follow the
/// version.
fn words<T: Layout>(value: &Plain<T>) -> impl Iterator<Item = (usize, u32)> + '_ {
    let words = value.bytes().chunks_exact(size_of::<u32>());
    let words = words.map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    words.enumerate().map(|(number, word)| (2 + number, word))
}
