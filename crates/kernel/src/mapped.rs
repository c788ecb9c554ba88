//! Array maps, mapped into this process's memory: read and written without system calls.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use aya::maps::MapData;
use memmap2::{MmapOptions, MmapRaw};

use super::plain::Layout;

/// The order in which the words of a value are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    LastWordLast,
    LastWordFirst,
}

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
        // The kernel aligns elements to 8 bytes, from a page's start.
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
        self.long(index, 0)
    }

    /// One of an element's 64-bit words.
    pub fn long(&self, index: u32, word: usize) -> &AtomicU64 {
        assert!(word < self.element / size_of::<u64>(), "word {word} of an element");
        let start = self.address(index).cast::<u64>();
        // SAFETY: within the element by the assertion, and so within the mapping, which lives as
        // long as `self`; aligned, since elements are multiples of 8 bytes apart from a page's
        // start. The kernel accesses it by whole words, too.
        unsafe { AtomicU64::from_ptr(start.add(word)) }
    }

    /// The first 32-bit word of an element.
    pub(crate) fn half_word(&self, index: u32) -> &AtomicU32 {
        self.cell(index, 0)
    }

    /// The first or the second 32-bit word of an element.
    pub fn half(&self, index: u32, second: bool) -> &AtomicU32 {
        self.cell(index, usize::from(second))
    }

    /// An element's value.
    pub fn load<T: Layout>(&self, index: u32) -> T {
        let mut value = MaybeUninit::<T>::uninit();
        let target = value.as_mut_ptr().cast::<u32>();
        for word in 0..self.words::<T>() {
            let loaded = self.cell(index, word).load(Ordering::Acquire);
            // SAFETY: within the value, which may be aligned to less than its words.
            unsafe { target.add(word).write_unaligned(loaded) };
        }
        // SAFETY: every word was written, and any bytes are a valid value.
        unsafe { value.assume_init() }
    }

    /// Writes an element's value word by word. A concurrent reader may see some words of the old
    /// value and some of the new one, so the order matters.
    pub fn store<T: Layout>(&self, index: u32, value: &T, order: Order) {
        let source = std::ptr::from_ref(value).cast::<u32>();
        let words = self.words::<T>();
        for number in 0..words {
            let word = match order {
                Order::LastWordLast => number,
                Order::LastWordFirst => words - 1 - number,
            };
            // SAFETY: within the value, which has no padding; it may be aligned to less.
            let new = unsafe { source.add(word).read_unaligned() };
            self.cell(index, word).store(new, Ordering::Release);
        }
    }

    /// Size of a value in 32-bit words.
    fn words<T: Layout>(&self) -> usize {
        const { assert!(size_of::<T>().is_multiple_of(size_of::<u32>())) };
        assert!(size_of::<T>() <= self.element, "elements of {} bytes", self.element);
        size_of::<T>() / size_of::<u32>()
    }

    /// One of an element's 32-bit words.
    pub fn cell(&self, index: u32, word: usize) -> &AtomicU32 {
        assert!(word < self.element / size_of::<u32>(), "word {word} of an element");
        let start = self.address(index).cast::<u32>();
        // SAFETY: within the element by the assertion, and aligned as in `word`.
        unsafe { AtomicU32::from_ptr(start.add(word)) }
    }

    /// The address of an element; valid as long as `self`.
    pub fn address(&self, index: u32) -> *mut u8 {
        assert!(index < self.entries, "element {index} of {}", self.entries);
        // SAFETY: the sum stays within the mapping by the assertion.
        unsafe { self.memory.as_mut_ptr().add(index as usize * self.element) }
    }

    /// Overwrites the whole map with zeros. No program may use it meanwhile.
    pub fn clear(&self) {
        // SAFETY: within the mapping, whose bytes may have any value; nothing else accesses it.
        unsafe { self.memory.as_mut_ptr().write_bytes(0, self.memory.len()) };
    }

    pub(crate) fn set_bit(&self, word: u32, bit: u64) {
        self.word(word).fetch_or(bit, Ordering::Relaxed);
    }

    pub fn clear_bit(&self, word: u32, bit: u64) {
        self.word(word).fetch_and(!bit, Ordering::Relaxed);
    }
}
