//! The programs' settings, and what identifies the maps.

use super::timeouts::{STATES, Timeouts};
use crate::hash::Secret;

/// Settings that the agent writes before it loads the programs. To the verifier they are constants,
/// and it removes disabled code.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The seed of the hashes that select buckets. It stays the same as long as the flow tables do.
    pub secret: Secret,
    /// Number of flow buckets less one, per family.
    pub flow_mask4: u32,
    pub flow_mask6: u32,
    /// Number of buckets of the reply index less one, per family.
    pub reply_mask: u32,
    /// The range of SNAT ports: the first, and how many.
    pub snat_port_first: u16,
    pub snat_port_count: u16,
    /// How long an idle flow is kept in each state, in ticks: [`Timeouts::limits`].
    pub limits: [u32; STATES],
}

impl Settings {
    /// Below the default range of ephemeral ports.
    pub const SNAT_PORT_FIRST: u16 = 1024;
    /// A prime: 1,024 to 32,764.
    pub const SNAT_PORT_COUNT: u16 = 31_741;

    /// Buckets of the reply index for each bucket of flows. With one, finding room for the last
    /// flows would take too long.
    pub const REPLY_BUCKETS: u32 = 2;

    /// The settings for maps with a number of buckets, a power of two.
    pub const fn new(flow_seed: u64, buckets: u32) -> Self {
        let mask = buckets - 1;
        Self {
            secret: Secret::new(flow_seed),
            flow_mask4: mask,
            flow_mask6: mask,
            reply_mask: buckets * Self::REPLY_BUCKETS - 1,
            snat_port_first: Self::SNAT_PORT_FIRST,
            snat_port_count: Self::SNAT_PORT_COUNT,
            limits: Timeouts::DEFAULT.limits(),
        }
    }

    /// These settings with other timeouts.
    pub const fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.limits = timeouts.limits();
        self
    }

    #[inline(always)]
    pub fn has_snat_port(&self, port: u16) -> bool {
        port.wrapping_sub(self.snat_port_first) < self.snat_port_count
    }
}

const _: () = assert!(size_of::<Settings>() == 40 + 4 * STATES);

/// Pinned beside the maps: what an agent that starts must know before it adopts them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// [`super::SCHEMA`] of the agent that created the maps; 0 until it is written.
    pub schema: u32,
    pub reserved: u32,
    /// The seed with which the flow tables were filled.
    pub flow_seed: u64,
}

const _: () = assert!(size_of::<Identity>() == 16);
