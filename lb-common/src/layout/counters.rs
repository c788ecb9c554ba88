//! Counters: reasons, and the traffic of service ports and backends.

use super::Direction;

/// Packets and bytes of one service port or one backend, per CPU.
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

/// Defines the reasons, their numbers and their names from one list.
macro_rules! reasons {
    ($($(#[$about:meta])* $reason:ident $name:literal)*) => {
        /// Why a packet that looked like one of a Service was passed unchanged, dropped or refused,
        /// or forwarded without an entry. Each is counted. Packets that the prefilter passes are
        /// not counted: they must cost next to nothing.
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
    /// The headers are truncated or inconsistent. Passed.
    Malformed "malformed"
    /// A fragment whose first fragment was not seen, or a fragment of SCTP. Passed.
    Fragment "fragment"
    /// A protocol that Services do not support. Passed.
    UnknownProtocol "unknown_protocol"
    /// The address has frontends, but none for this port. Passed.
    NoFrontend "no_frontend"
    /// The service port has no backend. Rejected.
    NoBackend "no_backend"
    /// The traffic policy is `Local`, and only other nodes have backends. Dropped.
    NoLocalBackend "no_local_backend"
    /// Every entry that the flow could use is protected, and it cannot be translated without one.
    /// Dropped.
    FlowTableFull "flow_table_full"
    /// Maps or programs do not match each other: a bug. Dropped.
    CorruptTable "corrupt_table"
    /// The packet could not be modified. Dropped.
    Unwritable "unwritable"
    /// From a backend, but no flow matches. Passed.
    NoFlow "no_flow"
    /// The client's address is not in the service port's source ranges. Dropped.
    SourceNotAllowed "source_not_allowed"
    /// No SNAT port to the backend is free, or the interface has no source address. Dropped.
    NoSnatPort "no_snat_port"
    /// The kernel has no route, or would not forward. Dropped.
    NoRoute "no_route"
    /// The next hop's link-layer address is not known yet. Passed to the stack, which resolves it.
    NoNeighbour "no_neighbour"
    /// The connection's backend was removed. Reset.
    BackendGone "backend_gone"
    /// The address belongs to Services, of which none has this port. Rejected.
    NoSuchPort "no_such_port"
    /// Too many resets and ICMP errors were sent recently, so this packet got none. Dropped.
    RateLimited "rate_limited"
    /// The packet exceeds the MTU of its route. Rejected.
    TooBig "too_big"
    /// The TTL or hop limit is used up. Rejected.
    HopLimit "hop_limit"
    /// An ICMP error about a packet that matches no flow. Passed.
    UnknownQuote "unknown_quote"
    /// A frontend entry has a kind without a pool. Dropped.
    CorruptFrontend "corrupt_frontend"
    /// A frontend refers to a pool outside the map. Dropped.
    NoSuchPool "no_such_pool"
    /// A pool's region extends outside the slot map. Dropped.
    NoSuchSlot "no_such_slot"
    /// A slot refers to a backend that does not exist or has another protocol. Dropped.
    NoSuchBackend "no_such_backend"
    /// The reply index refers to a bucket outside the flow table. Dropped.
    NoSuchBucket "no_such_bucket"
    /// A tunnel packet whose sender is not a node of the cluster. Passed.
    NotAPeer "not_a_peer"
    /// A tunnel packet from a node's address without a key, or with one that is not accepted.
    /// Passed.
    WrongTunnelKey "wrong_tunnel_key"
    /// A tunnel packet for a backend that this node does not have. Dropped.
    NoSuchTarget "no_such_target"
    /// The outer header is marked with congestion (ECN), but the inner packet does not support ECN.
    /// Dropped.
    Congestion "congestion"
    /// Every entry that the flow could use is protected. Forwarded without one, to the backend from
    /// the pool's Maglev table.
    Untracked "untracked"
    /// In the middle of a connection that this node does not know, for a slot that had other owners:
    /// forwarded to the node of one of them, to ask whether it knows the connection.
    Asked "asked"
    /// Another node asks about this packet's connection, which is known here. Forwarded to its
    /// backend.
    Recognized "recognized"
    /// Another node asks about this packet's connection, which is not known here. Returned.
    Returned "returned"
    /// To a load balancer's address, but neither to a port of a Service nor an echo request. Dropped.
    Unserved "unserved"
    /// A repeated SYN, whose backend had refused the connection or had not replied. Forwarded to another backend.
    Moved "moved"
}
