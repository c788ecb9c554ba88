use crate::hash::Secret;

/// What the agent decides before it loads the programs. The verifier treats it as constant and
/// removes what is switched off.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Places flows in the table. Kept as long as the flow tables are.
    pub secret: Secret,
    /// Number of flow buckets less one, per family.
    pub flow_mask4: u32,
    pub flow_mask6: u32,
    /// Number of buckets of the index of answers less one, per family.
    pub return_mask: u32,
    /// The ports that aliases have: from the first, so many.
    pub alias_port_first: u16,
    pub alias_port_count: u16,
}

impl Settings {
    /// Below the ports that processes get when they don't ask for one.
    const ALIAS_PORT_FIRST: u16 = 1024;
    /// A prime: 1,024 to 32,764.
    const ALIAS_PORT_COUNT: u16 = 31_741;

    /// What all are told that look at the same maps, of so many buckets, a power of two.
    pub const fn new(flow_seed: u64, buckets: u32) -> Self {
        let mask = buckets - 1;
        Self {
            secret: Secret::new(flow_seed),
            flow_mask4: mask,
            flow_mask6: mask,
            return_mask: mask,
            alias_port_first: Self::ALIAS_PORT_FIRST,
            alias_port_count: Self::ALIAS_PORT_COUNT,
        }
    }

    #[inline(always)]
    pub fn has_alias_port(&self, port: u16) -> bool {
        port.wrapping_sub(self.alias_port_first) < self.alias_port_count
    }
}

const _: () = assert!(size_of::<Settings>() == 40);

/// Pinned beside the maps: what an agent that starts must know before it adopts them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// [`super::SCHEMA`] of whoever made the maps; 0 before that.
    pub schema: u32,
    pub reserved: u32,
    /// The seed that the flow tables were filled by.
    pub flow_seed: u64,
}

const _: () = assert!(size_of::<Identity>() == 16);
