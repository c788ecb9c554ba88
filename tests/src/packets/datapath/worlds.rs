//! Reuse of kernel worlds: loading the programs takes longer than most cases.
//!
//! Invariant: a borrowed world does not differ from a new one, whatever the case before did.
//! Tests: `tests/tests/kernel/packet_tables.rs`.

use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use anyhow::Result;
use lb_kernel::Sizes;

use super::KernelWorld;

/// Buckets of the flow table: few, so that tests can fill them.
pub const BUCKETS: u32 = 4;
pub const FLOWS: u32 = BUCKETS * 8;

/// Worlds that are not in use. There are as many as tests run at the same time.
static IDLE: Mutex<Vec<KernelWorld>> = Mutex::new(Vec::new());

/// A world with a small flow table, which is returned on drop.
pub struct Borrowed {
    /// `None` only while it is being dropped.
    world: Option<KernelWorld>,
}

impl Borrowed {
    pub fn new() -> Result<Self> {
        let unused = idle().pop();
        let world = match unused {
            Some(mut world) => {
                world.reset()?;
                world
            }
            None => KernelWorld::new(Sizes::for_flows(FLOWS))?,
        };
        Ok(Self { world: Some(world) })
    }
}

/// The world is reset before its next use, and not here, where errors could not be reported.
impl Drop for Borrowed {
    fn drop(&mut self) {
        static AT_EXIT: Once = Once::new();
        // If it fails, the next run cleans up.
        AT_EXIT.call_once(|| {
            // SAFETY: the function has no arguments, and exists as long as the process.
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

/// The list is consistent whenever its lock is free, also after a panic.
fn idle() -> MutexGuard<'static, Vec<KernelWorld>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the worlds, which have pins and namespaces: statics are not dropped.
extern "C" fn take_away() {
    drop(take(&mut *idle()));
}
