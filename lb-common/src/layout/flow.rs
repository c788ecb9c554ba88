use core::cell::UnsafeCell;

use crate::atomic::AtomicWord;
use crate::family::{Family, V4, V6};

/// One connection, found from both directions.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<F: Family> {
    pub client: F::Address,
    pub frontend: F::Address,
    pub backend: F::Address,
    pub client_port: u16,
    pub frontend_port: u16,
    pub backend_port: u16,
    pub protocol: u8,
    pub reserved: u8,
    pub service_port: u32,
    pub backend_index: u32,
    pub backend_generation: u32,
    /// Fills IPv6's record to whole 64-bit words; nothing for IPv4.
    pub padding: F::Padding,
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
    pub flows: [UnsafeCell<Flow<F>>; WAYS],
}

/// What is known about a flow without touching its record.
#[repr(C)]
#[derive(Debug, Default)]
pub struct FlowTag {
    /// Fingerprint (16 bits), generation (8), datagram flag (1), which of the ways
    /// this is (3), a zero, [`FlowState`] (3).
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
    assert!(size_of::<Flow<V4>>() == 32);
    assert!(offset_of!(Flow<V4>, client_port) == 12);
    assert!(offset_of!(Flow<V4>, service_port) == 20);
    assert!(size_of::<Flow<V6>>() == 72);
    assert!(offset_of!(Flow<V6>, client_port) == 48);
    assert!(size_of::<FlowBucket<V4>>() == 320);
    assert!(size_of::<FlowBucket<V6>>() == 640);
    assert!(offset_of!(FlowBucket<V4>, flows) == 64);
};
