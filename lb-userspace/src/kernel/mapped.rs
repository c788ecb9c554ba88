//! Array maps in this process's own memory: read and written without system calls.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use aya::maps::MapData;
use memmap2::{MmapOptions, MmapRaw};

/// A mapped array of elements that are `SIZE` bytes apart.
pub struct Mapped {
    memory: MmapRaw,
    element: usize,
    entries: u32,
}

impl Mapped {
    /// `element`: the size of the map's values, a multiple of 8.
    pub fn new(map: &MapData, element: usize) -> Result<Self> {
        let info = map.info()?;
        ensure!(
            info.value_size() as usize == element,
            "values of {} bytes where {element} were expected",
            info.value_size()
        );
        // The kernel lays elements out at multiples of 8 bytes, from a page's start.
        let length = element.next_multiple_of(8) * info.max_entries() as usize;
        let memory = MmapOptions::new()
            .len(length)
            .map_raw(map.fd().as_fd().as_raw_fd())
            .context("the map can't be mapped into memory")?;
        Ok(Self { memory, element: element.next_multiple_of(8), entries: info.max_entries() })
    }

    #[expect(clippy::len_without_is_empty, reason = "the kernel has no empty arrays")]
    pub fn len(&self) -> u32 {
        self.entries
    }

    /// The first 64-bit word of an element.
    pub fn word(&self, index: u32) -> &AtomicU64 {
        let address = self.address(index).cast::<u64>();
        // SAFETY: within the mapping, which lives as long as `self`; aligned, since elements are
        // 8 bytes apart from a page's start. The kernel accesses it by whole words, too.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// The first 32-bit word of an element.
    pub fn half_word(&self, index: u32) -> &AtomicU32 {
        let address = self.address(index).cast::<u32>();
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(address) }
    }

    /// Where an element starts; valid as long as `self`.
    pub fn address(&self, index: u32) -> *mut u8 {
        assert!(index < self.entries, "element {index} of {}", self.entries);
        // SAFETY: the sum stays within the mapping by the assertion.
        unsafe { self.memory.as_mut_ptr().add(index as usize * self.element) }
    }

    /// Writes zeros over everything.
    pub fn clear(&self) {
        let words = self.element / size_of::<u64>();
        for index in 0..self.entries {
            let start = self.address(index).cast::<u64>();
            for word in 0..words {
                // SAFETY: within the element, whose size is a multiple of 8, and aligned as in
                // `word`.
                unsafe { AtomicU64::from_ptr(start.add(word)) }.store(0, Ordering::Relaxed);
            }
        }
    }

    pub fn set_bit(&self, word: u32, bit: u64) {
        self.word(word).fetch_or(bit, Ordering::Relaxed);
    }

    pub fn clear_bit(&self, word: u32, bit: u64) {
        self.word(word).fetch_and(!bit, Ordering::Relaxed);
    }
}
