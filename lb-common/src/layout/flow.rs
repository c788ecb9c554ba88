//! Flows, and the buckets of the flow table.

use crate::atomic::{AtomicLong, AtomicWord, Record};
use crate::family::Family;

/// One connection, found from both directions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<F: Family> {
    pub client: F::Address,
    pub frontend: F::Address,
    pub backend: F::Address,
    /// The source address that the backend sees: the client's own, or an address of this node.
    pub snat: F::Address,
    pub client_port: u16,
    pub frontend_port: u16,
    pub backend_port: u16,
    pub snat_port: u16,
    pub service_port: u32,
    pub backend_index: u32,
    /// The low bits of the backend's generation when it was chosen.
    pub backend_generation: u16,
    pub protocol: u8,
    pub kind: FlowKind,
    pub reserved: F::Padding,
}

/// What happens to a flow's packets apart from the translation of their destination.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKind(pub u8);

impl FlowKind {
    /// The source is translated, too. Replies are found by the reply index.
    pub const SNAT: Self = Self(1);
    /// Packets are sent out by the data plane in both directions, not by the stack.
    pub const FORWARDED: Self = Self(2);
    /// Packets are sent unmodified through a tunnel to the backend's node. Replies do not pass this
    /// node.
    pub const TUNNELLED: Self = Self(4);
    /// The tunnel is one in UDP.
    pub const IN_UDP: Self = Self(8);
    /// Without a tunnel: the client is a process of this node, which translates its packets where they leave. Only
    /// these are sent out by the data plane: replies continue up the stack.
    pub const NODE: Self = Self(8);
    /// The entry is in a bucket selected by client and frontend, because the client has many flows or
    /// its buckets were full.
    pub const SPREAD: Self = Self(16);
    /// Packets of the client come through a tunnel.
    pub const DELIVERED: Self = Self(32);

    /// The highest number in the last two bits: [`Self::asking`].
    pub const MOST_ASKED: u8 = 3;

    /// Packets go through a tunnel to the node of an earlier owner of the slot, the `number`th that
    /// is asked whether it knows the connection.
    #[inline(always)]
    pub const fn asking(number: u8) -> Self {
        Self(Self::FORWARDED.0 | Self::TUNNELLED.0 | Self::IN_UDP.0 | number << 6)
    }

    /// The number of the earlier owner that is asked; 0: it is the owner of the slot.
    #[inline(always)]
    pub const fn asked(self) -> u8 {
        self.0 >> 6
    }

    /// The highest number of [`Self::moved`].
    pub const MOST_MOVES: u8 = 2;

    /// Without a tunnel: the flow has come from another backend, and its connection has moved so often. In the bits of
    /// [`Self::asking`].
    #[inline(always)]
    pub const fn moved(times: u8) -> Self {
        Self(times << 6)
    }

    /// How often the connection has moved, without a tunnel.
    #[inline(always)]
    pub const fn moves(self) -> u8 {
        self.0 >> 6
    }

    /// Whether the client is a process of this node.
    #[inline(always)]
    pub fn is_of_node(self) -> bool {
        self.0 & (Self::TUNNELLED.0 | Self::NODE.0) == Self::NODE.0
    }

    #[inline(always)]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A flow's record in its bucket; IPv4's fills one cache line.
#[repr(C)]
pub struct FlowEntry<F: Family> {
    pub flow: Record<Flow<F>>,
    /// The track: what the state machine stores between packets. Its meaning depends on the state
    /// (`conntrack::track`).
    pub track: AtomicWord,
    pub reserved: F::Padding,
    pub next_hops: NextHops,
    pub padding: F::EntryPadding,
}

/// A flow's next hops by direction, as far as they have been resolved.
#[repr(C)]
#[derive(Debug, Default)]
pub struct NextHops {
    /// The next hop's link-layer address (6 octets, in memory order), then the interface (16 bits);
    /// 0 if it is not resolved.
    pub hops: [AtomicLong; 2],
    /// The seal: a checksum over hop, network epoch and generation. A hop whose seal does not match
    /// is stale, or belongs to another flow.
    pub seals: [AtomicWord; 2],
}

/// The next hop to a backend, for new flows.
#[repr(C)]
#[derive(Debug, Default)]
pub struct BackendHop {
    /// As in [`NextHops`].
    pub hop: AtomicLong,
    /// A checksum over the other fields, the network epoch and the backend's generation.
    pub seal: AtomicWord,
    /// When it was resolved, in [`super::Ticks`].
    pub since: AtomicWord,
}

/// How many flows share a bucket. Their tags fill one cache line.
pub const BUCKET_ENTRIES: usize = 8;

/// A set of the flow table: a cache line of tags, then the flows.
///
/// CPUs share it without a lock; `conntrack` has the rules. A flow may only be read between two
/// equal reads of its tag.
#[repr(C)]
pub struct FlowBucket<F: Family> {
    pub tags: [FlowTag; BUCKET_ENTRIES],
    pub entries: [FlowEntry<F>; BUCKET_ENTRIES],
}

/// What is known about a flow without touching its record.
#[repr(C)]
#[derive(Debug, Default)]
pub struct FlowTag {
    /// Fingerprint (16 bits), generation (8), number of the entry in its bucket (3), [`FlowState`] (5).
    pub word: AtomicWord,
    /// When the flow's last packet came, in [`Ticks`].
    pub seen: AtomicWord,
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the backend.
    Forward,
    /// From the backend to the client.
    Reverse,
}

/// The state of a flow; `conntrack::state` has the transitions.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    Free = 0,
    /// A CPU is writing the record.
    Claimed = 1,

    /// The client has sent a SYN; nothing proves yet that its address is its own.
    SynSent = 2,
    /// The backend has replied with a SYN-ACK.
    SynReceived = 3,
    /// The client has acknowledged that SYN-ACK.
    Established = 4,
    /// The client has closed its direction.
    FinFromClient = 5,
    /// The backend has closed its direction.
    FinFromBackend = 6,
    /// Both have closed.
    TimeWait = 7,
    /// One of them has reset the connection.
    Reset = 8,
    /// Picked up in the middle of a connection: only the client has been seen.
    PickedUp = 9,
    /// Picked up, and the backend has replied. Continued traffic establishes it.
    Probation = 10,

    /// A tunnelled flow, of which only the client's packets are seen: it has sent a SYN.
    OneWaySyn = 12,
    /// A tunnelled flow whose client has sent an acknowledgement, which proves little. Continued traffic establishes
    /// it.
    OneWayProbation = 13,
    OneWayEstablished = 14,
    /// The client has closed or reset the connection.
    OneWayClosed = 15,

    /// Datagrams of the client only.
    Datagram = 16,
    /// The backend has replied.
    DatagramReplied = 17,
    /// The client has continued after a while.
    DatagramContinued = 18,
    /// Client and backend have continued after a while: a stream.
    DatagramStream = 19,
}

#[cfg(not(feature = "model"))]
impl<F: Family> Default for FlowBucket<F> {
    fn default() -> Self {
        // SAFETY: zeros are valid for tags (free) and for records, which are plain integers.
        unsafe { core::mem::zeroed() }
    }
}

#[cfg(feature = "model")]
impl<F: Family> Default for FlowBucket<F> {
    fn default() -> Self {
        use core::array::from_fn;
        let entry = |_| FlowEntry {
            // SAFETY: zeros are valid for records, which are plain integers.
            flow: Record::new(unsafe { core::mem::zeroed() }),
            track: AtomicWord::default(),
            reserved: F::Padding::default(),
            next_hops: NextHops::default(),
            padding: F::EntryPadding::default(),
        };
        Self { tags: from_fn(|_| FlowTag::default()), entries: from_fn(entry) }
    }
}

// The model checker uses another layout.
#[cfg(not(feature = "model"))]
const _: () = {
    use crate::family::{V4, V6};
    use core::mem::offset_of;
    assert!(size_of::<FlowTag>() == 8);
    assert!(size_of::<BackendHop>() == 16);
    assert!(size_of::<Flow<V4>>() == 36);
    assert!(offset_of!(Flow<V4>, client_port) == 16);
    assert!(offset_of!(Flow<V4>, service_port) == 24);
    assert!(size_of::<Flow<V6>>() == 88);
    assert!(offset_of!(Flow<V6>, client_port) == 64);
    assert!(offset_of!(FlowEntry<V4>, track) == 36);
    assert!(offset_of!(FlowEntry<V6>, track) == 88);
    assert!(size_of::<FlowEntry<V4>>() == 64);
    assert!(size_of::<FlowEntry<V6>>() == 128);
    assert!(offset_of!(FlowBucket<V4>, entries) == 64);
};
