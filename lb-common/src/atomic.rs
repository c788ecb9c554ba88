//! A 32-bit word that processors share.
//!
//! `core` has no 32-bit atomics on the BPF target, although the instruction set has had
//! compare-and-exchange since v3; there, the compiler's intrinsic emits it. On the host this is
//! `AtomicU32`.
//!
//! In BPF, plain loads and stores of aligned words are single instructions, and x86-64 keeps
//! loads in order. A weakly ordered processor would need the load-acquire of instruction set v4.

use core::cell::UnsafeCell;

#[repr(transparent)]
#[derive(Debug, Default)]
pub struct AtomicWord {
    value: UnsafeCell<u32>,
}

// SAFETY: every access is atomic.
unsafe impl Sync for AtomicWord {}

#[cfg(not(target_arch = "bpf"))]
impl AtomicWord {
    fn atomic(&self) -> &core::sync::atomic::AtomicU32 {
        // SAFETY: aligned and valid as long as `self` is; nothing accesses it otherwise.
        unsafe { core::sync::atomic::AtomicU32::from_ptr(self.value.get()) }
    }

    pub fn load(&self) -> u32 {
        self.atomic().load(core::sync::atomic::Ordering::Acquire)
    }

    pub fn store(&self, value: u32) {
        self.atomic().store(value, core::sync::atomic::Ordering::Relaxed);
    }

    /// Replaces `expected` by `new` and says whether it did. What was written before is seen by
    /// whoever loads `new`.
    pub fn replace(&self, expected: u32, new: u32) -> bool {
        use core::sync::atomic::Ordering::{AcqRel, Relaxed};
        self.atomic().compare_exchange(expected, new, AcqRel, Relaxed).is_ok()
    }
}

#[cfg(target_arch = "bpf")]
impl AtomicWord {
    #[inline(always)]
    pub fn load(&self) -> u32 {
        // SAFETY: a live, aligned word; a volatile load of it is one instruction.
        unsafe { self.value.get().read_volatile() }
    }

    #[inline(always)]
    pub fn store(&self, value: u32) {
        // SAFETY: as above.
        unsafe { self.value.get().write_volatile(value) }
    }

    #[inline(always)]
    pub fn replace(&self, expected: u32, new: u32) -> bool {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};
        // SAFETY: a live, aligned word.
        unsafe { atomic_cxchg::<u32, { SeqCst }, { SeqCst }>(self.value.get(), expected, new) }.1
    }
}
