//! A hash map of the kernel that is also read as a whole: hundreds of entries with each system call. aya reads an
//! entry with two calls.

use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Result, bail};
use aya::Pod;
use aya::maps::{HashMap, Map, MapData};
use nix::errno::Errno;
use nix::libc::c_long;

use super::system_call::bpf;

/// How many entries are requested at first. A call returns whole buckets only, so more are requested if one bucket has
/// more.
const BATCH: usize = 512;

pub(crate) struct HashTable<K, V> {
    map: HashMap<MapData, K, V>,
    descriptor: OwnedFd,
}

impl<K: Pod, V: Pod> TryFrom<Map> for HashTable<K, V> {
    type Error = anyhow::Error;

    fn try_from(map: Map) -> Result<Self> {
        let (Map::HashMap(data) | Map::LruHashMap(data)) = &map else {
            bail!("a map that must be a hash map is of another type");
        };
        let descriptor = data.fd().as_fd().try_clone_to_owned()?;
        // Compares the sizes of keys and values.
        Ok(Self { map: map.try_into()?, descriptor })
    }
}

impl<K, V> Deref for HashTable<K, V> {
    type Target = HashMap<MapData, K, V>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<K, V> DerefMut for HashTable<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.map
    }
}

impl<K: Pod, V: Pod> HashTable<K, V> {
    /// All entries. What is added or removed meanwhile may be missing.
    pub fn entries(&self) -> Result<Vec<(K, V)>> {
        let (mut keys, mut values) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        let mut found = Vec::new();
        let mut position = None;
        loop {
            let next = match self.read(position, &mut keys, &mut values) {
                Ok(next) => next,
                Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => {
                    let room = 2 * keys.capacity();
                    keys.reserve_exact(room);
                    values.reserve_exact(room);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            found.extend(keys.drain(..).zip(values.drain(..)));
            if next.is_none() {
                return Ok(found);
            }
            position = next;
        }
    }

    /// Fills `keys` and `values` up to their capacities with the entries from a position on; returns the position of the
    /// entries that follow, unless these were the last ones.
    fn read(
        &self,
        position: Option<u32>,
        keys: &mut Vec<K>,
        values: &mut Vec<V>,
    ) -> io::Result<Option<u32>> {
        const BPF_MAP_LOOKUP_BATCH: c_long = 24;
        #[repr(C)]
        struct Attributes {
            position: u64,
            next: u64,
            keys: u64,
            values: u64,
            /// In: the room; out: how many entries were read.
            count: Cell<u32>,
            map: u32,
            element_flags: u64,
            flags: u64,
        }
        let mut next = 0u32;
        let attributes = Attributes {
            position: position.as_ref().map_or(0, |position| std::ptr::from_ref(position) as u64),
            next: (&raw mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: Cell::new(keys.capacity().min(values.capacity()) as u32),
            map: self.descriptor.as_raw_fd() as u32,
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel reads the position, writes the next one, and writes at most `count` keys and values, of the
        // sizes that were compared when the map was opened; all of it lives until after the call.
        let is_last = match unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &attributes) } {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        let count = attributes.count.get() as usize;
        // SAFETY: the kernel has written as many, within the capacities; any bytes are a valid `Pod`.
        unsafe {
            keys.set_len(count);
            values.set_len(count);
        }
        Ok((!is_last).then_some(next))
    }
}
