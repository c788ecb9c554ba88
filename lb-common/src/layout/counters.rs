use crate::datapath::Direction;

/// Packets and bytes of one service port or one backend, per processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub forward_packets: u64,
    pub forward_bytes: u64,
    pub reverse_packets: u64,
    pub reverse_bytes: u64,
    pub new_flows: u64,
}

const _: () = assert!(size_of::<Traffic>() == 40);

impl Traffic {
    #[inline(always)]
    pub fn add_packet(&mut self, direction: Direction, bytes: u32) {
        match direction {
            Direction::Forward => {
                self.forward_packets += 1;
                self.forward_bytes += u64::from(bytes);
            }
            Direction::Reverse => {
                self.reverse_packets += 1;
                self.reverse_bytes += u64::from(bytes);
            }
        }
    }
}

/// Why a packet that looked like ours was passed untouched, or dropped; each is counted.
/// Packets the prefilter lets go are not: they must cost next to nothing.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The headers are cut short or contradict themselves. Passed.
    Malformed = 0,
    /// A fragment whose first one has not come. Passed.
    Fragment = 1,
    /// A transport protocol that Services don't have. Passed.
    UnknownProtocol = 2,
    /// The address is a frontend's, the port is not. Passed.
    NoFrontend = 3,
    /// The service port has no backend. Rejected.
    NoBackend = 4,
    /// Policy `Local`, and this node has no backend. Dropped.
    NoLocalBackend = 5,
    /// Every place for this flow is taken by established flows. Dropped.
    FlowTableFull = 6,
    /// Maps or programs don't fit together: a fault of ours. Dropped.
    CorruptTable = 7,
    /// The packet could not be written to. Dropped.
    Unwritable = 8,
    /// From a backend, but of no flow we know. Passed.
    NoFlow = 9,
    /// The client is in none of the service port's source ranges. Dropped.
    SourceNotAllowed = 10,
    /// No alias is free for one more connection to the backend. Dropped.
    NoAlias = 11,
    /// There is no way to the next hop. Dropped.
    NoRoute = 12,
    /// The next hop's link-layer address is not known yet: left to the stack to resolve.
    NoNeighbour = 13,
    /// The connection's backend is gone. Reset.
    BackendGone = 14,
    /// The address is a Service's own, and serves no such port. Rejected.
    NoSuchPort = 15,
    /// Too many answers of ours lately: this packet got none. Dropped.
    RateLimited = 16,
    /// It does not fit through the device it would leave by. Answered.
    TooBig = 17,
    /// It has been forwarded too often. Answered.
    HopLimit = 18,
    /// An ICMP error about a packet of no flow we know. Passed.
    UnknownQuote = 19,
    /// A frontend's entry is of no kind that leads anywhere. Dropped.
    CorruptFrontend = 20,
    /// A frontend names a pool beyond the last one. Dropped.
    NoSuchPool = 21,
    /// A pool's region goes beyond the last slot. Dropped.
    NoSuchSlot = 22,
    /// A slot names a backend that is not there, or serves another protocol. Dropped.
    NoSuchBackend = 23,
    /// The index of answers names a bucket beyond the last one. Dropped.
    NoSuchBucket = 24,
    /// From a tunnel of somebody who is no node of the cluster. Passed.
    NotAPeer = 25,
    /// From a tunnel, for a backend that this node does not have. Dropped.
    NoSuchTarget = 26,
    /// Congestion was met in a tunnel, and its sender does not know of such. Dropped.
    Congestion = 27,
}

impl Reason {
    pub const COUNT: u32 = 28;

    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::Malformed,
        Self::Fragment,
        Self::UnknownProtocol,
        Self::NoFrontend,
        Self::NoBackend,
        Self::NoLocalBackend,
        Self::FlowTableFull,
        Self::CorruptTable,
        Self::Unwritable,
        Self::NoFlow,
        Self::SourceNotAllowed,
        Self::NoAlias,
        Self::NoRoute,
        Self::NoNeighbour,
        Self::BackendGone,
        Self::NoSuchPort,
        Self::RateLimited,
        Self::TooBig,
        Self::HopLimit,
        Self::UnknownQuote,
        Self::CorruptFrontend,
        Self::NoSuchPool,
        Self::NoSuchSlot,
        Self::NoSuchBackend,
        Self::NoSuchBucket,
        Self::NotAPeer,
        Self::NoSuchTarget,
        Self::Congestion,
    ];

    /// The name in metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::UnknownProtocol => "unknown_protocol",
            Self::NoFrontend => "no_frontend",
            Self::NoBackend => "no_backend",
            Self::NoLocalBackend => "no_local_backend",
            Self::FlowTableFull => "flow_table_full",
            Self::CorruptTable => "corrupt_table",
            Self::Unwritable => "unwritable",
            Self::NoFlow => "no_flow",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::NoAlias => "no_alias",
            Self::NoRoute => "no_route",
            Self::NoNeighbour => "no_neighbour",
            Self::BackendGone => "backend_gone",
            Self::NoSuchPort => "no_such_port",
            Self::RateLimited => "rate_limited",
            Self::TooBig => "too_big",
            Self::HopLimit => "hop_limit",
            Self::UnknownQuote => "unknown_quote",
            Self::CorruptFrontend => "corrupt_frontend",
            Self::NoSuchPool => "no_such_pool",
            Self::NoSuchSlot => "no_such_slot",
            Self::NoSuchBackend => "no_such_backend",
            Self::NoSuchBucket => "no_such_bucket",
            Self::NotAPeer => "not_a_peer",
            Self::NoSuchTarget => "no_such_target",
            Self::Congestion => "congestion",
        }
    }
}
