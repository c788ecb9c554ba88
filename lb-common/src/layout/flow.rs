use core::cell::UnsafeCell;

use crate::atomic::{AtomicLong, AtomicWord};
use crate::family::{Family, V4, V6};

/// One connection, found from both directions.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<F: Family> {
    pub client: F::Address,
    pub frontend: F::Address,
    pub backend: F::Address,
    /// As whom the backend knows the client: the client itself, or an address of ours.
    pub alias: F::Address,
    pub client_port: u16,
    pub frontend_port: u16,
    pub backend_port: u16,
    pub alias_port: u16,
    pub service_port: u32,
    pub backend_index: u32,
    pub backend_generation: u32,
    pub protocol: u8,
    pub kind: FlowKind,
    pub reserved: [u8; 2],
}

/// What happens to a flow's packets apart from the translation of their destination.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKind(pub u8);

impl FlowKind {
    /// The source is translated, too: answers go to the alias, and are found by it.
    pub const ALIASED: Self = Self(1);
    /// Packets are sent out by the data plane in both directions, not by the stack.
    pub const FORWARDED: Self = Self(2);
    /// What is forwarded goes untranslated through a tunnel to the backend's node. Answers don't
    /// come this way.
    pub const TUNNELLED: Self = Self(4);
    /// The tunnel is one in UDP.
    pub const IN_UDP: Self = Self(8);

    #[inline(always)]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A flow and its ways out; IPv4's fill one cache line.
#[repr(C)]
pub struct FlowPlace<F: Family> {
    pub flow: UnsafeCell<Flow<F>>,
    pub ways: Ways,
    pub padding: F::PlacePadding,
}

/// Where a flow's packets leave, by direction, as far as it has been resolved.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Ways {
    /// The next hop's link-layer address (6 octets, as they lie in memory), then the device (16
    /// bits); 0 if it is not resolved.
    pub hops: [AtomicLong; 2],
    /// The network's epoch when it was resolved: whatever changed since makes it void.
    pub epochs: [AtomicWord; 2],
}

/// How many flows share a bucket. Their tags fill one cache line.
pub const WAYS: usize = 8;

/// A set of the flow table: a cache line of tags, then the flows.
///
/// Processors share it without a lock; `flow_table` has the rules. A flow may only be read
/// between two equal readings of its tag.
#[repr(C)]
pub struct FlowBucket<F: Family> {
    pub tags: [FlowTag; WAYS],
    pub places: [FlowPlace<F>; WAYS],
}

/// What is known about a flow without touching its record.
#[repr(C)]
#[derive(Debug, Default)]
pub struct FlowTag {
    /// Fingerprint (16 bits), generation (8), whether it was met midway (1), which of the ways this
    /// is (3), whether it is of datagrams (1), [`FlowState`] (3).
    pub word: AtomicWord,
    /// When the flow's last packet came, in [`Ticks`].
    pub seen: AtomicWord,
}

/// Time in units of 2^24 ns (16.8 ms), modulo 2^32 (834 days).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks(pub u32);

/// Where a flow is in its life.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    Free = 0,
    /// A processor is writing the record.
    Claimed = 1,
    /// The client has sent; nothing proves yet that its address is its own.
    Nascent = 2,
    /// The backend has answered.
    Answered = 3,
    /// The client has sent again after the answer.
    Established = 4,
    /// The client has closed its direction.
    ClosedForward = 5,
    /// The backend has closed its direction.
    ClosedReverse = 6,
    /// Both have, or one has reset.
    Closed = 7,
}

impl<F: Family> Default for FlowBucket<F> {
    fn default() -> Self {
        // SAFETY: zeros are valid for tags (free) and for records, which are plain integers.
        unsafe { core::mem::zeroed() }
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<FlowTag>() == 8);
    assert!(size_of::<Flow<V4>>() == 40);
    assert!(offset_of!(Flow<V4>, client_port) == 16);
    assert!(offset_of!(Flow<V4>, service_port) == 24);
    assert!(size_of::<Flow<V6>>() == 88);
    assert!(offset_of!(Flow<V6>, client_port) == 64);
    assert!(size_of::<FlowPlace<V4>>() == 64);
    assert!(size_of::<FlowPlace<V6>>() == 128);
    assert!(offset_of!(FlowBucket<V4>, places) == 64);
};
