//! Words that processors share, of 32 and 64 bits.
//!
//! `core` has no 32-bit atomics on the BPF target, although the instruction set has had
//! compare-and-exchange since v3; there, the compiler's intrinsic emits it. On the host these are
//! `AtomicU32` and `AtomicU64`.
//!
//! In BPF, plain loads and stores of aligned words are single instructions, and x86-64 keeps loads
//! in order, and stores. A weakly ordered processor would need load-acquire and store-release of
//! instruction set v4.

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

    /// What was written before is seen by whoever loads `value`.
    pub fn store_after(&self, value: $number) {
        self.atomic().store(value, core::sync::atomic::Ordering::Release);
    }

    /// Replaces `expected` by `new` and says whether it did. What was written before is seen by
    /// whoever loads `new`.
    pub fn replace(&self, expected: $number, new: $number) -> bool {
        use core::sync::atomic::Ordering::{AcqRel, Relaxed};
        self.atomic().compare_exchange(expected, new, AcqRel, Relaxed).is_ok()
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
        // Volatile writes keep only each other in order; the compiler may not move others past this one.
        // Not every LLVM 22 can translate a `compiler_fence` to BPF.
        // SAFETY: no instruction; for all that the compiler knows it reads and writes memory.
        unsafe { core::arch::asm!("", options(nostack)) };
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
