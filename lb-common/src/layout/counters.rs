use super::Direction;

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

/// Makes the reasons, and all that goes by their number, from one list.
macro_rules! reasons {
    ($($(#[$about:meta])* $reason:ident $name:literal)*) => {
        /// Why a packet that looked like one of a Service was passed untouched, dropped, or treated in
        /// another way than most; each is counted. Packets the prefilter lets go are not: they must
        /// cost next to nothing.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$about])* $reason,)*
        }

        impl Reason {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$reason),*];
            pub const COUNT: u32 = Self::ALL.len() as u32;

            /// The name in metrics and tables.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// The headers are cut short or contradict themselves. Passed.
    Malformed "malformed"
    /// A fragment whose first one has not come. Passed.
    Fragment "fragment"
    /// A transport protocol that Services don't have. Passed.
    UnknownProtocol "unknown_protocol"
    /// The address is a frontend's, the port is not. Passed.
    NoFrontend "no_frontend"
    /// The service port has no backend. Rejected.
    NoBackend "no_backend"
    /// Policy `Local`, and this node has no backend. Dropped.
    NoLocalBackend "no_local_backend"
    /// Every entry for this flow is protected, and without one it can't be translated. Dropped.
    FlowTableFull "flow_table_full"
    /// Maps or programs don't fit together: a fault of ours. Dropped.
    CorruptTable "corrupt_table"
    /// The packet could not be written to. Dropped.
    Unwritable "unwritable"
    /// From a backend, but of no flow we know. Passed.
    NoFlow "no_flow"
    /// The client is in none of the service port's source ranges. Dropped.
    SourceNotAllowed "source_not_allowed"
    /// No SNAT port is free for one more connection to the backend. Dropped.
    NoAlias "no_alias"
    /// There is no way to the next hop. Dropped.
    NoRoute "no_route"
    /// The next hop's link-layer address is not known yet: left to the stack to resolve.
    NoNeighbour "no_neighbour"
    /// The connection's backend is gone. Reset.
    BackendGone "backend_gone"
    /// The address is a Service's own, and serves no such port. Rejected.
    NoSuchPort "no_such_port"
    /// Too many answers of ours lately: this packet got none. Dropped.
    RateLimited "rate_limited"
    /// It does not fit through the device it would leave by. Answered.
    TooBig "too_big"
    /// It has been forwarded too often. Answered.
    HopLimit "hop_limit"
    /// An ICMP error about a packet of no flow we know. Passed.
    UnknownQuote "unknown_quote"
    /// A frontend's entry is of no kind that leads anywhere. Dropped.
    CorruptFrontend "corrupt_frontend"
    /// A frontend names a pool beyond the last one. Dropped.
    NoSuchPool "no_such_pool"
    /// A pool's region goes beyond the last slot. Dropped.
    NoSuchSlot "no_such_slot"
    /// A slot names a backend that is not there, or serves another protocol. Dropped.
    NoSuchBackend "no_such_backend"
    /// The reply index names a bucket beyond the last one. Dropped.
    NoSuchBucket "no_such_bucket"
    /// From a tunnel of somebody who is no node of the cluster. Passed.
    NotAPeer "not_a_peer"
    /// From a tunnel of a node of the cluster, without a key or with one that is not accepted. Passed.
    WrongTunnelKey "wrong_tunnel_key"
    /// From a tunnel, for a backend that this node does not have. Dropped.
    NoSuchTarget "no_such_target"
    /// Congestion was met in a tunnel, and its sender does not know of such. Dropped.
    Congestion "congestion"
    /// Every entry for this flow is protected: it is forwarded without one, to the backend that the
    /// pool's table names.
    Untracked "untracked"
}
