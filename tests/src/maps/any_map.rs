//! Untyped access to BPF maps, to clear them and to read their contents.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::maps::{MapData, MapType};
use aya::util::nr_cpus;
use lb_kernel::bpf;
use nix::libc::c_long;

/// The kind of a map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MapKind {
    /// A hash map.
    Keyed,
    /// An array.
    Indexed,
}

/// An open map.
pub struct AnyMap {
    data: MapData,
    kind: MapKind,
    key_size: usize,
    /// Size of a value; for per-CPU maps the sum over all CPUs.
    value_size: usize,
    entries: u32,
}

pub type Entry = (Vec<u8>, Vec<u8>);

impl AnyMap {
    pub fn open(path: &Path) -> Result<Self> {
        let data = MapData::from_pin(path)
            .with_context(|| format!("{} can't be opened", path.display()))?;
        let info = data.info()?;
        let size = info.value_size() as usize;
        let (kind, value_size) = match info.map_type()? {
            MapType::Hash | MapType::LruHash | MapType::LpmTrie => (MapKind::Keyed, size),
            MapType::Array => (MapKind::Indexed, size),
            MapType::PerCpuArray => {
                let processors = nr_cpus().map_err(|(_, error)| error)?;
                (MapKind::Indexed, size.next_multiple_of(8) * processors)
            }
            other => {
                bail!("{} is a map of a kind that is not known here: {other:?}", path.display())
            }
        };
        let (key_size, entries) = (info.key_size() as usize, info.max_entries());
        Ok(Self { data, kind, key_size, value_size, entries })
    }

    /// Restores the initial state.
    pub fn clear(&self) -> Result<()> {
        match self.kind {
            MapKind::Keyed => {
                while let Some(key) = self.next_key(None)? {
                    self.remove(&key)?;
                }
                Ok(())
            }
            MapKind::Indexed => (0..self.entries).try_for_each(|index| self.clear_entry(index)),
        }
    }

    /// Writes zeros over one entry of an array.
    pub fn clear_entry(&self, index: u32) -> Result<()> {
        self.set(&index.to_ne_bytes(), &vec![0; self.value_size])
    }

    /// All entries; of an array those that are not zero.
    pub fn contents(&self) -> Result<Vec<Entry>> {
        let mut found = self.entries()?;
        if self.kind == MapKind::Indexed {
            found.retain(|(_, value)| value.iter().any(|&byte| byte != 0));
        }
        found.sort();
        Ok(found)
    }

    /// All entries in the map's order.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut last = None;
        while let Some(key) = self.next_key(last.as_deref())? {
            // The entry may have been evicted meanwhile.
            if let Some(value) = self.get(&key)? {
                found.push((key.clone(), value));
            }
            last = Some(key);
        }
        Ok(found)
    }

    /// Changes the value of every entry.
    pub fn change_all(&self, change: impl Fn(&mut [u8])) -> Result<()> {
        for (key, mut value) in self.entries()? {
            change(&mut value);
            self.set(&key, &value)?;
        }
        Ok(())
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value_size];
        Ok(self.call(LOOKUP, Some(key), value.as_mut_ptr())?.then_some(value))
    }

    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        assert_eq!(value.len(), self.value_size, "a value of the map's size");
        // The kernel only reads the value.
        self.call(UPDATE, Some(key), value.as_ptr().cast_mut()).map(drop)
    }

    fn remove(&self, key: &[u8]) -> Result<()> {
        self.call(DELETE, Some(key), std::ptr::null_mut()).map(drop)
    }

    /// The key after `key`; the first one after `None`.
    fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let mut next = vec![0; self.key_size];
        Ok(self.call(NEXT_KEY, key, next.as_mut_ptr())?.then_some(next))
    }

    /// Returns false if there is no such entry. `other` must be null, or have the size that the
    /// command reads or writes.
    fn call(&self, command: c_long, key: Option<&[u8]>, other: *mut u8) -> Result<bool> {
        assert!(key.is_none_or(|key| key.len() == self.key_size), "a key of the map's size");
        let attributes = MapEntryAttributes {
            map: self.data.fd().as_fd().as_raw_fd() as u32,
            reserved: 0,
            key: key.map_or(0, |key| key.as_ptr() as u64),
            other: other as u64,
            flags: 0,
        };
        // SAFETY: the kernel reads the key, and reads or writes `other`, with the map's sizes,
        // which the callers' buffers have.
        match unsafe { bpf(command, &attributes) } {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The part of `union bpf_attr` for commands on a map's entries.
#[repr(C)]
struct MapEntryAttributes {
    map: u32,
    reserved: u32,
    key: u64,
    other: u64,
    flags: u64,
}

const LOOKUP: c_long = 1;
const UPDATE: c_long = 2;
const DELETE: c_long = 3;
const NEXT_KEY: c_long = 4;
