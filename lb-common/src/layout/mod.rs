//! The layouts of everything that kernel and agent share through BPF maps.
//!
//! Layouts are defined only here. Types are `repr(C)` without implicit padding; assertions beside
//! them fail the build when that changes. Every change of a layout changes [`SCHEMA`], so that an
//! agent never adopts maps that it would misread.
//!
//! Ports are in host order here, addresses are octets in network order: `bpftool map dump`
//! then shows what a person expects.

mod affinity;
mod announced;
mod backend;
mod bfd;
mod bitmap;
mod buffer_sum;
mod cache;
mod counters;
mod device;
mod earlier;
mod event;
mod flow;
mod fragment;
mod frontend;
mod pool;
mod reply_index;
mod service_name;
mod settings;
mod socket;
mod source_range;
mod ticks;
mod timeouts;
mod tunnel;
mod untracked;

pub use affinity::{Affinity, AffinityKey, Member};
pub use announced::{Announced, AnnouncedAddress, Claimant, LastClaim, NeighbourEvent};
pub use backend::{Backend, NO_BACKEND};
pub use bfd::{BfdHeard, BfdSession};
pub use bitmap::{Bitmap, DESTINATION_WORDS, SOURCE_WORDS};
pub use buffer_sum::{BUFFER_OF_CONTEXT, BufferSum};
pub use cache::{CacheEntry, KeyValue};
pub use counters::{Reason, Traffic};
pub use device::{Device, DeviceCacheEntry, LinkAddresses, NetworkEpoch};
pub use earlier::{EarlierOwners, HISTORY_DEPTH, PoolSlot};
pub use event::{Ending, Listener, PacketEvent};
pub use flow::{
    BUCKET_ENTRIES, BackendHop, Direction, Flow, FlowBucket, FlowEntry, FlowKind, FlowState,
    FlowTag, NextHops,
};
pub use fragment::{Fragment, FragmentKey};
pub use frontend::{Forwarding, Frontend, FrontendKey, FrontendKind, Silence};
pub use pool::{NO_POOL, Pool, SlotPair};
pub use reply_index::{Hints, REPLY_BUCKET_ENTRIES, ReplyBucket};
pub use service_name::{ServicePortName, Text};
pub use settings::{Identity, Settings};
pub use socket::{Host, Side, SocketEnd, SocketFlow};
pub use source_range::{SERVICE_PORT_BITS, SourceRange};
pub use ticks::Ticks;
pub use timeouts::Timeouts;
pub use tunnel::{Peer, TunnelKey, TunnelPeer, TunnelTarget};
pub use untracked::{ReplyKey, Untracked};

/// Changes with every change of a layout or of the meaning of a field.
pub const SCHEMA: u32 = 12;

/// Default capacities of the maps. A map's memory is reserved when it is created.
pub mod capacity {
    /// Four for each service port.
    pub const FRONTENDS: u32 = 1 << 18;
    /// Of these, packets read without a call; per family.
    pub const FRONTEND_CACHE: u32 = 1 << 14;
    pub const SERVICE_PORTS: u32 = 1 << 16;
    pub const POOLS: u32 = 1 << 17;
    /// For each of `BACKENDS` the slots that its tables take, with a reserve. An even number,
    /// because they are stored in pairs.
    pub const POOL_SLOTS: u32 = BACKENDS * SLOTS_PER_BACKEND;
    pub const SLOTS_PER_BACKEND: u32 = 160;
    pub const BACKENDS: u32 = 1 << 17;
    /// Buckets of [`super::BUCKET_ENTRIES`] flows each, per family; a power of two.
    pub const FLOW_BUCKETS: u32 = 1 << 16;
    /// Connected sockets of processes on this node, per family.
    pub const CONNECTED: u32 = 1 << 16;
    /// Flows of unconnected sockets, twice each, per family.
    pub const UNCONNECTED: u32 = 1 << 15;
    /// Clients with session affinity, per family; the least recently used one is replaced.
    pub const AFFINITIES: u32 = 1 << 18;
    /// Backends in pools with session affinity, or with weights.
    pub const MEMBERS: u32 = 1 << 18;
    /// Ranges of all restricted service ports, per family.
    pub const SOURCE_RANGES: u32 = 1 << 16;
    /// Fragmented packets whose first fragment was seen, per family.
    pub const FRAGMENTS: u32 = 1 << 13;
    pub const DEVICES: u32 = 1 << 12;
    /// In bytes: reported packets that were not read yet.
    pub const EVENTS: u32 = 1 << 18;
    /// Flows that are forwarded without an entry in the flow table, per family.
    pub const UNTRACKED: u32 = 1 << 16;
    /// A bit for each port.
    pub const RESERVED_PORT_WORDS: u32 = 65_536 / 64;
    /// Addresses of the cluster's nodes.
    pub const PEERS: u32 = 1 << 15;
    /// Backends on this node that are reached through tunnels.
    pub const TARGETS: u32 = 1 << 14;
    /// Announced addresses on all interfaces; also those that are watched for claims.
    pub const ANNOUNCED: u32 = 1 << 14;
    pub const BFD_SESSIONS: u32 = 1 << 10;
    /// Slots of pools with earlier owners.
    pub const EARLIER_OWNERS: u32 = 1 << 18;
}

/// Map names, which are also their file names under the pin directory.
pub mod map {
    /// Makes a constant of each name, and the list of all.
    macro_rules! names {
        ($($name:ident)*) => {
            $(pub const $name: &str = stringify!($name);)*

            pub const ALL: [&str; [$($name),*].len()] = [$($name),*];
        };
    }

    names! {
        IDENTITY
        PARAMETERS
        FRONTENDS4
        FRONTENDS6
        FRONTEND_CACHE4
        FRONTEND_CACHE6
        POOLS
        POOL_SLOTS
        BACKENDS4
        BACKENDS6
        BACKEND_HOPS
        FLOWS4
        FLOWS6
        REPLIES4
        REPLIES6
        CROWDED4
        CROWDED6
        CROWDED_LATELY4
        CROWDED_LATELY6
        UNTRACKED4
        UNTRACKED6
        HINTS
        AFFINITIES4
        AFFINITIES6
        MEMBERS
        WEIGHTS
        SOURCE_RANGES4
        SOURCE_RANGES6
        FRAGMENTS4
        FRAGMENTS6
        DEVICES
        DEVICE_CACHE
        LINK_ADDRESSES
        NETWORK
        PEERS
        TARGETS
        TUNNEL_PEERS
        EARLIER_OWNERS
        RESERVED_PORTS
        TUNNEL_KEYS
        ANNOUNCED
        CLAIMS
        NEIGHBOUR_EVENTS
        BFD_SESSIONS
        BFD_HEARD
        SCRATCH
        DRAFTS4
        DRAFTS6
        XDP_STAGES
        TC_STAGES
        DESTINATIONS
        SOURCES
        HOST
        CONNECTED4
        CONNECTED6
        UNCONNECTED4
        UNCONNECTED6
        SERVICE_NAMES
        REASONS
        SERVICE_TRAFFIC
        BACKEND_TRAFFIC
        LISTENER
        EVENTS
        UNREPORTED
    }
}
