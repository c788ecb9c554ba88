//! The kernel's maps as a traced packet finds them: what it would write stays in this process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use aya::Pod;
use aya::maps::{Array, MapData, MapError};

use crate::kernel::{Layout, Plain};

/// An array whose elements are read.
pub struct Elements<V: Pod>(pub Array<MapData, V>);

impl<V: Pod> Elements<V> {
    pub fn get(&self, index: u32) -> Option<V> {
        found(self.0.get(&index, 0))
    }
}

/// A hash map whose entries are read.
pub struct Entries<K: Layout, V: Pod>(pub aya::maps::HashMap<MapData, Plain<K>, V>);

impl<K: Layout, V: Pod> Entries<K, V> {
    pub fn get(&self, key: &K) -> Option<V> {
        found(self.0.get(&Plain(*key), 0))
    }
}

/// The same, with what was written beside it.
pub struct Overlaid<K: Layout, V: Layout> {
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

/// An array of buckets that packets write to: each is copied when it is first asked for.
pub struct Copies<T, W: Pod> {
    buckets: Elements<W>,
    /// How many words at a bucket's start tell whether it was changed while it was copied.
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
                // SAFETY: as many bytes as the bucket has, which is made of plain numbers.
                place.insert(Box::new(unsafe { std::mem::transmute_copy::<W, T>(&words) }))
            }
        };
        let bucket = std::ptr::from_ref(bucket);
        // SAFETY: a box stays where it is while the map around it moves, none is taken out or
        // replaced, and a bucket is written to by its own cells only.
        Some(unsafe { &*bucket })
    }

    /// A record counts as its tag says, which the kernel may change meanwhile: then once more.
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

/// What is not there is not there; any other failure of a look-up would be the kernel's.
pub fn found<V>(looked_up: Result<V, MapError>) -> Option<V> {
    match looked_up {
        Ok(value) => Some(value),
        Err(MapError::KeyNotFound | MapError::OutOfBounds { .. }) => None,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "map lookup failed");
            None
        }
    }
}
