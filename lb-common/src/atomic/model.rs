//! The implementation for the model checker: loom's atomics, which show every value that the memory
//! model allows a CPU to see.

use core::fmt::{self, Debug};
use core::marker::PhantomData;
use std::boxed::Box;

use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

macro_rules! word {
    ($name:ident, $number:ty, $loom:ty) => {
        #[derive(Debug)]
        pub struct $name {
            value: $loom,
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        impl $name {
            pub fn new(value: $number) -> Self {
                Self { value: <$loom>::new(value) }
            }

            pub fn load(&self) -> $number {
                self.value.load(Acquire)
            }

            pub fn store(&self, value: $number) {
                self.value.store(value, Relaxed);
            }

            pub fn store_after(&self, value: $number) {
                self.value.store(value, Release);
            }

            pub fn replace(&self, expected: $number, new: $number) -> bool {
                // loom treats a `SeqCst` exchange as `AcqRel`. The BPF instruction is a full
                // barrier.
                fence(SeqCst);
                let replaced = self.value.compare_exchange(expected, new, AcqRel, Acquire).is_ok();
                fence(SeqCst);
                replaced
            }
        }
    };
}

word!(AtomicWord, u32, AtomicU32);
word!(AtomicLong, u64, AtomicU64);

/// Read and written word by word, in any order: a reader may see a part of what a writer writes.
/// Words of eight bytes: with smaller ones there are too many combinations.
pub struct Record<T> {
    words: Box<[AtomicU64]>,
    of: PhantomData<T>,
}

/// Room for any record.
type Words = [u64; 16];

impl<T: Copy> Record<T> {
    const WORDS: usize = {
        assert!(size_of::<T>() <= size_of::<Words>());
        size_of::<T>().div_ceil(size_of::<u64>())
    };

    pub fn new(value: T) -> Self {
        let words = Self::to_words(&value);
        Self {
            words: words[..Self::WORDS].iter().copied().map(AtomicU64::new).collect(),
            of: PhantomData,
        }
    }

    fn to_words(value: &T) -> Words {
        let mut words = Words::default();
        // SAFETY: `words` is large enough; records have no implicit padding, so every byte is
        // initialised.
        unsafe { words.as_mut_ptr().cast::<T>().write_unaligned(*value) };
        words
    }

    /// # Safety
    /// Any bit pattern is a valid `T`.
    pub unsafe fn read<R>(&self, wanted: impl FnOnce(&T) -> R) -> R {
        // SAFETY: by the caller's promise.
        wanted(&unsafe { self.copy() })
    }

    /// # Safety
    /// Any bit pattern is a valid `T`.
    pub unsafe fn copy(&self) -> T {
        let mut words = Words::default();
        for (value, word) in words.iter_mut().zip(&self.words) {
            *value = word.load(Relaxed);
        }
        fence(Acquire);
        // SAFETY: `words` has at least as many bytes, and any pattern is valid.
        unsafe { words.as_ptr().cast::<T>().read_unaligned() }
    }

    /// # Safety
    /// No other thread writes it.
    pub unsafe fn write(&self, value: &T) {
        fence(Release);
        for (word, new) in self.words.iter().zip(Self::to_words(value)) {
            word.store(new, Relaxed);
        }
    }
}

impl<T> Debug for Record<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Record")
    }
}
