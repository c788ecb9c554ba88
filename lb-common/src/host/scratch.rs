//! The state that a packet keeps between stages, on the host.

use core::cell::UnsafeCell;

use crate::datapath::{Handover, Scratch};

/// The memory of one packet at a time.
#[derive(Default)]
pub struct PacketScratch {
    handover: UnsafeCell<Handover>,
}

/// Tables that keep their scratch in memory of their own, not in a map.
pub trait HoldsScratch {
    fn scratch(&self) -> &PacketScratch;
}

impl<T: HoldsScratch> Scratch for T {
    fn handover(&self) -> Option<&mut Handover> {
        // SAFETY: a packet is at one stage at a time, and none keeps it beyond itself.
        Some(unsafe { &mut *self.scratch().handover.get() })
    }
}
