//! The implementation for the kernel and the host.

use core::cell::UnsafeCell;

/// One kind of word: its name, its number, and the host's atomic type.
macro_rules! word {
    ($(#[$about:meta])* $name:ident, $number:ty, $host:ty) => {
$(#[$about])*
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct $name {
    value: UnsafeCell<$number>,
}

// SAFETY: every access is atomic.
unsafe impl Sync for $name {}

impl $name {
    pub const fn new(value: $number) -> Self {
        Self { value: UnsafeCell::new(value) }
    }
}

#[cfg(not(target_arch = "bpf"))]
impl $name {
    fn atomic(&self) -> &$host {
        // SAFETY: aligned and valid as long as `self` is; nothing accesses it otherwise.
        unsafe { <$host>::from_ptr(self.value.get()) }
    }

    pub fn load(&self) -> $number {
        self.atomic().load(core::sync::atomic::Ordering::Acquire)
    }

    pub fn store(&self, value: $number) {
        self.atomic().store(value, core::sync::atomic::Ordering::Relaxed);
    }

    /// A CPU that loads `value` sees everything that was written before it.
    pub fn store_after(&self, value: $number) {
        self.atomic().store(value, core::sync::atomic::Ordering::Release);
    }

    /// Replaces `expected` with `new`, and returns whether it did. Memory accesses before it are
    /// not reordered with those after it.
    pub fn replace(&self, expected: $number, new: $number) -> bool {
        use core::sync::atomic::Ordering::SeqCst;
        self.atomic().compare_exchange(expected, new, SeqCst, SeqCst).is_ok()
    }
}

#[cfg(target_arch = "bpf")]
impl $name {
    #[inline(always)]
    pub fn load(&self) -> $number {
        // SAFETY: a live, aligned word; a volatile load of it is one instruction.
        unsafe { self.value.get().read_volatile() }
    }

    #[inline(always)]
    pub fn store(&self, value: $number) {
        // SAFETY: as above.
        unsafe { self.value.get().write_volatile(value) }
    }

    #[inline(always)]
    pub fn store_after(&self, value: $number) {
        keep_order();
        self.store(value);
    }

    #[inline(always)]
    pub fn replace(&self, expected: $number, new: $number) -> bool {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};
        // SAFETY: a live, aligned word.
        unsafe { atomic_cxchg::<$number, { SeqCst }, { SeqCst }>(self.value.get(), expected, new) }.1
    }
}
    };
}

word!(
    /// 32 bits.
    AtomicWord, u32, core::sync::atomic::AtomicU32
);
word!(
    /// 64 bits.
    AtomicLong, u64, core::sync::atomic::AtomicU64
);

/// A record that one CPU writes while others may be reading it. The reader detects this by a word
/// that it loads before and after: [`Record::read`] is ordered between the two.
#[repr(transparent)]
#[derive(Debug)]
pub struct Record<T> {
    value: UnsafeCell<T>,
}

impl<T: Copy> Record<T> {
    pub const fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(value) }
    }

    /// Returns what `wanted` copies from the record. Ordered after words that were loaded before,
    /// and before those that are loaded next.
    ///
    /// # Safety
    /// Any bit pattern is a valid `T`, and the caller discards the result unless a word shows that
    /// the record was not written meanwhile.
    #[inline(always)]
    pub unsafe fn read<R>(&self, wanted: impl FnOnce(&T) -> R) -> R {
        keep_order();
        // SAFETY: aligned, initialised and live; see above for what may be written meanwhile. On
        // the host a record is not `Sync`.
        let found = wanted(unsafe { &*self.value.get() });
        keep_order();
        found
    }

    /// Copies the whole record where the kernel may be writing it: every byte is loaded once.
    ///
    /// # Safety
    /// As for [`Record::read`].
    pub unsafe fn copy(&self) -> T {
        keep_order();
        // SAFETY: as above.
        let value = unsafe { self.value.get().read_volatile() };
        keep_order();
        value
    }

    /// Writes the record. Ordered after the word that was replaced before.
    ///
    /// # Safety
    /// No other CPU writes it.
    #[inline(always)]
    pub unsafe fn write(&self, value: &T) {
        keep_order();
        // SAFETY: aligned and live.
        unsafe { *self.value.get() = *value };
    }
}

/// A barrier for the compiler. x86-64 itself keeps loads in order, and stores; a record is never
/// loaded after it was stored by the same CPU.
#[inline(always)]
fn keep_order() {
    #[cfg(not(target_arch = "bpf"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::AcqRel);
    // Volatile accesses are ordered only among themselves. Not every LLVM 22 can translate a
    // `compiler_fence` to BPF.
    // SAFETY: no instruction; the compiler must assume that it reads and writes memory.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("", options(nostack))
    };
}
