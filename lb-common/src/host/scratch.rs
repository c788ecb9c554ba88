//! The state that a packet keeps between stages, on the host.

use core::cell::{Cell, UnsafeCell};

use crate::datapath::{Encapsulation, Rejection, Scratch};

/// The memory of one packet at a time.
#[derive(Default)]
pub struct PacketScratch {
    rejection: Cell<Rejection>,
    delivered: Cell<bool>,
    alone: Cell<bool>,
    tag: Cell<u32>,
    encapsulation: UnsafeCell<Encapsulation>,
}

/// Tables that keep their scratch in memory of their own, not in a map.
pub trait HoldsScratch {
    fn scratch(&self) -> &PacketScratch;
}

impl<T: HoldsScratch> Scratch for T {
    fn set_rejection(&self, rejection: Rejection) {
        self.scratch().rejection.set(rejection);
    }

    fn rejection(&self) -> Rejection {
        self.scratch().rejection.get()
    }

    fn set_delivered(&self, delivered: bool) {
        self.scratch().delivered.set(delivered);
    }

    fn is_delivered(&self) -> bool {
        self.scratch().delivered.get()
    }

    fn set_alone(&self, alone: bool) {
        self.scratch().alone.set(alone);
    }

    fn is_alone(&self) -> bool {
        self.scratch().alone.get()
    }

    fn set_tag(&self, tag: u32) {
        self.scratch().tag.set(tag);
    }

    fn tag(&self) -> u32 {
        self.scratch().tag.get()
    }

    fn encapsulation(&self) -> Option<&mut Encapsulation> {
        // SAFETY: a packet is at one stage at a time, and none keeps it beyond itself.
        Some(unsafe { &mut *self.scratch().encapsulation.get() })
    }
}
