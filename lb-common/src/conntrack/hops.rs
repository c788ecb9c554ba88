//! The next hops that a flow stores.
//!
//! A hop and its seal are two words, which CPUs write without a lock. The seal is a checksum over
//! the hop, the network epoch and the entry's generation. So a hop is used only if all three are as
//! they were when it was resolved, whatever was written in between and in whatever order.

use super::table::Location;
use crate::layout::{Direction, NextHops};

/// The next hops of one flow, in one generation of its entry.
#[derive(Clone, Copy)]
pub struct Hops<'a> {
    hops: &'a NextHops,
    pub location: Location,
}

impl<'a> Hops<'a> {
    #[inline(always)]
    pub fn new(hops: &'a NextHops, location: Location) -> Self {
        Self { hops, location }
    }

    /// The hop of a direction, if it was resolved in this epoch.
    #[inline(always)]
    pub fn get(&self, direction: Direction, epoch: u32) -> Option<u64> {
        let (hop, seal) = match direction {
            Direction::Forward => (&self.hops.hops[0], &self.hops.seals[0]),
            Direction::Reverse => (&self.hops.hops[1], &self.hops.seals[1]),
        };
        let (hop, seal) = (hop.load(), seal.load());
        (hop != 0 && seal == self.seal(hop, epoch)).then_some(hop)
    }

    #[inline(always)]
    pub fn set(&self, direction: Direction, epoch: u32, hop: u64) {
        let at = match direction {
            Direction::Forward => (&self.hops.hops[0], &self.hops.seals[0]),
            Direction::Reverse => (&self.hops.hops[1], &self.hops.seals[1]),
        };
        at.0.store(hop);
        at.1.store(self.seal(hop, epoch));
    }

    #[inline(always)]
    fn seal(&self, hop: u64, epoch: u32) -> u32 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (hop ^ u64::from(self.location.generation()) << 24).wrapping_mul(ODD);
        (mixed >> 32) as u32 ^ epoch
    }
}

impl NextHops {
    /// Needed because generations repeat after 256 owners.
    #[inline(always)]
    pub fn forget(&self) {
        self.hops.iter().for_each(|hop| hop.store(0));
    }
}
