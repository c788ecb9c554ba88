//! Kernel worlds that are used again: loading the programs takes longer than most cases do.
//!
//! Invariant: who borrows a world can't tell it from a new one, whatever became of the case before.
//! Tests: `tests/tests/datapath_kernel.rs`.

use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use anyhow::Result;
use lb_userspace::kernel::Sizes;

use super::KernelWorld;
use super::conversation::FLOWS;

/// Those that nobody uses right now. As many are made as tests run at the same time.
static IDLE: Mutex<Vec<KernelWorld>> = Mutex::new(Vec::new());

/// A world with a small flow table, given back when it is dropped.
pub struct Borrowed {
    /// `None` only while it is being dropped.
    world: Option<KernelWorld>,
}

impl Borrowed {
    pub fn new() -> Result<Self> {
        let idle = idle().pop();
        let world = match idle {
            Some(mut world) => {
                world.reset()?;
                world
            }
            None => KernelWorld::new(Sizes::for_flows(FLOWS))?,
        };
        Ok(Self { world: Some(world) })
    }
}

/// What a test leaves is cleared away before the next one begins, not here: a test that fails has
/// nobody to tell.
impl Drop for Borrowed {
    fn drop(&mut self) {
        static AT_EXIT: Once = Once::new();
        // If it fails, the next run sweeps.
        AT_EXIT.call_once(|| {
            // SAFETY: the function takes nothing, and stays as long as the process.
            let _ = unsafe { libc::atexit(take_away) };
        });
        idle().extend(self.world.take());
    }
}

impl Deref for Borrowed {
    type Target = KernelWorld;

    fn deref(&self) -> &KernelWorld {
        self.world.as_ref().expect("only dropping takes it out")
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut KernelWorld {
        self.world.as_mut().expect("only dropping takes it out")
    }
}

/// A list is whole whenever its lock is free: a thread that panicked has spoilt nothing.
fn idle() -> MutexGuard<'static, Vec<KernelWorld>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Statics are not dropped, but worlds have pins and namespaces.
extern "C" fn take_away() {
    drop(take(&mut *idle()));
}
