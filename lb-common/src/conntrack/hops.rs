//! The next hops that flows store, and those to backends.
//!
//! A hop and its seal are two words, which CPUs write without a lock. The seal is a checksum over
//! the hop, the network epoch and the entry's generation. So a hop is used only if all three are as
//! they were when it was resolved, whatever was written in between and in whatever order.

use super::table::Location;
use crate::layout::{BackendHop, Direction, NextHops, Ticks};

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
        (hop != 0 && seal == self.seal_hop(hop, epoch)).then_some(hop)
    }

    #[inline(always)]
    pub fn set(&self, direction: Direction, epoch: u32, hop: u64) {
        let at = match direction {
            Direction::Forward => (&self.hops.hops[0], &self.hops.seals[0]),
            Direction::Reverse => (&self.hops.hops[1], &self.hops.seals[1]),
        };
        at.0.store(hop);
        at.1.store(self.seal_hop(hop, epoch));
    }

    #[inline(always)]
    fn seal_hop(&self, hop: u64, epoch: u32) -> u32 {
        seal_hop(hop ^ u64::from(self.location.generation()) << 24, epoch)
    }
}

#[inline(always)]
fn seal_hop(sealed: u64, epoch: u32) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (sealed.wrapping_mul(ODD) >> 32) as u32 ^ epoch
}

/// For how long new flows use the next hop to a backend, in ticks: a second. Also while no agent runs,
/// which would change the epoch.
const LIFETIME: u32 = Ticks::in_seconds(1);

impl BackendHop {
    /// The hop, if it was resolved for a backend of this generation in this epoch, and recently.
    #[inline(always)]
    pub fn get(&self, generation: u32, epoch: u32, now: Ticks) -> Option<u64> {
        let (hop, seal, since) = (self.hop.load(), self.seal.load(), Ticks(self.since.load()));
        let is_valid = hop != 0
            && seal == seal_of_backend(hop, generation, since, epoch)
            && now.since(since) < LIFETIME;
        is_valid.then_some(hop)
    }

    #[inline(always)]
    pub fn set(&self, generation: u32, epoch: u32, now: Ticks, hop: u64) {
        self.hop.store(hop);
        self.since.store(now.0);
        self.seal.store(seal_of_backend(hop, generation, now, epoch));
    }
}

#[inline(always)]
fn seal_of_backend(hop: u64, generation: u32, since: Ticks, epoch: u32) -> u32 {
    seal_hop(hop ^ (u64::from(generation) << 32 | u64::from(since.0)).rotate_left(24), epoch)
}

impl NextHops {
    /// Needed because generations repeat after 256 owners.
    #[inline(always)]
    pub fn forget(&self) {
        self.hops.iter().for_each(|hop| hop.store(0));
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn a_backends_hop_is_valid_for_its_generation_epoch_and_lifetime() {
        let (hop, now) = (BackendHop::default(), Ticks(1 << 20));
        assert_eq!(hop.get(0, 0, Ticks(0)), None, "never set");
        hop.set(7, 3, now, 0x0014_0000_0000_ee02);
        let later = |ticks| Ticks(now.0 + ticks);
        assert_eq!(hop.get(7, 3, later(LIFETIME - 1)), Some(0x0014_0000_0000_ee02));
        assert_eq!(hop.get(7, 3, later(LIFETIME)), None, "too old");
        assert_eq!(hop.get(7, 4, now), None, "another epoch");
        assert_eq!(hop.get(8, 3, now), None, "another backend");
        // Another CPU writes at the same time: never one's hop with the other's time.
        hop.since.store(now.0 + 1);
        assert_eq!(hop.get(7, 3, now), None, "half of another");
    }
}
