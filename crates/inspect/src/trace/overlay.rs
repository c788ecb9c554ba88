//! The kernel's maps for a traced packet, whose writes stay in this process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use aya::Pod;
use aya::maps::{Array, MapData, MapError};
use lb_kernel::{Layout, Plain};

/// A read-only array.
pub(crate) struct Elements<V: Pod>(pub Array<MapData, V>);

impl<V: Pod> Elements<V> {
    pub fn get(&self, index: u32) -> Option<V> {
        entry_if_found(self.0.get(&index, 0))
    }
}

/// A read-only hash map.
pub struct Entries<K: Layout, V: Pod>(pub aya::maps::HashMap<MapData, Plain<K>, V>);

impl<K: Layout, V: Pod> Entries<K, V> {
    pub fn get(&self, key: &K) -> Option<V> {
        entry_if_found(self.0.get(&Plain(*key), 0))
    }
}

/// A hash map with an overlay of written entries.
pub(crate) struct Overlaid<K: Layout, V: Layout> {
    entries: Entries<K, Plain<V>>,
    written: RefCell<HashMap<K, V>>,
}

impl<K: Layout + Eq + Hash, V: Layout> Overlaid<K, V> {
    pub fn new(entries: Entries<K, Plain<V>>) -> Self {
        Self { entries, written: RefCell::default() }
    }

    pub fn get(&self, key: &K) -> Option<V> {
        let written = self.written.borrow().get(key).copied();
        written.or_else(|| Some(self.entries.get(key)?.0))
    }

    pub fn set(&self, key: &K, value: V) {
        self.written.borrow_mut().insert(*key, value);
    }
}

/// An array of buckets that packets write to. Each is copied at the first access.
pub struct Copies<T, W: Pod> {
    buckets: Elements<W>,
    /// Number of words at a bucket's start that show whether it changed during the copy.
    tags: usize,
    copies: RefCell<HashMap<u32, Box<T>>>,
}

impl<T, W: Pod + AsRef<[u64]>> Copies<T, W> {
    pub fn new(buckets: Elements<W>, tags: usize) -> Self {
        const { assert!(size_of::<T>() == size_of::<W>()) };
        Self { buckets, tags, copies: RefCell::default() }
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        let mut copies = self.copies.borrow_mut();
        let bucket: &T = match copies.entry(index) {
            Entry::Occupied(copy) => copy.into_mut(),
            Entry::Vacant(place) => {
                let words = self.read(index)?;
                // SAFETY: the words have the bucket's size, and a bucket consists of plain numbers.
                place.insert(Box::new(unsafe { std::mem::transmute_copy::<W, T>(&words) }))
            }
        };
        let bucket = std::ptr::from_ref(bucket);
        // SAFETY: the box does not move when the map grows, entries are never removed or replaced,
        // and a bucket is only written through its cells.
        Some(unsafe { &*bucket })
    }

    /// Copies a bucket, again if the kernel has changed a tag meanwhile.
    fn read(&self, index: u32) -> Option<W> {
        const TRIES: usize = 8;
        let mut words = self.buckets.get(index)?;
        for _ in 0..TRIES {
            let again = self.buckets.get(index)?;
            if words.as_ref()[..self.tags] == again.as_ref()[..self.tags] {
                break;
            }
            words = again;
        }
        Some(words)
    }
}

/// The result of a lookup; errors count as not found.
pub fn entry_if_found<V>(looked_up: Result<V, MapError>) -> Option<V> {
    match looked_up {
        Ok(value) => Some(value),
        Err(MapError::KeyNotFound | MapError::OutOfBounds { .. }) => None,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "map lookup failed");
            None
        }
    }
}
