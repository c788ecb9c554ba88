//! The layouts of everything that kernel and agent share through BPF maps.
//!
//! This is the only place where layout is known. Types are `repr(C)` without implicit padding;
//! the assertions beside them fail the build when that changes. Any change of a layout moves
//! [`SCHEMA`] on, so that an agent never adopts maps that it would misread.
//!
//! Ports are in host order here, addresses are octets in network order: `bpftool map dump`
//! then shows what a person expects.

mod affinity;
mod backend;
mod bitmap;
mod buffer_sum;
mod counters;
mod device;
mod event;
mod flow;
mod fragment;
mod frontend;
mod pool;
mod returns;
mod service_name;
mod settings;
mod socket;
mod source_range;
mod tunnel;

pub use affinity::{Affinity, AffinityKey, Member};
pub use backend::{Backend, NO_BACKEND};
pub use bitmap::{Bitmap, DESTINATION_WORDS, SOURCE_WORDS};
pub use buffer_sum::{BUFFER_OF_CONTEXT, BufferSum};
pub use counters::{Reason, Traffic};
pub use device::{Device, Network};
pub use event::{Ending, Event, Listener};
pub use flow::{Flow, FlowBucket, FlowKind, FlowPlace, FlowState, FlowTag, Ticks, WAYS, Ways};
pub use fragment::{Fragment, FragmentKey};
pub use frontend::{Forwarding, Frontend, FrontendKey, FrontendKind};
pub use pool::{NO_POOL, Pool, SlotPair};
pub use returns::{RETURN_WAYS, ReturnBucket};
pub use service_name::{ServicePortName, Text};
pub use settings::{Identity, Settings};
pub use socket::{Host, Side, SocketEnd, SocketFlow};
pub use source_range::{SERVICE_PORT_BITS, SourceRange};
pub use tunnel::{Peer, Target};

/// Moves on with every change of a layout or of what a field means.
pub const SCHEMA: u32 = 4;

/// How many entries each map holds, unless the agent is told otherwise; a map's memory is reserved
/// when it is made.
pub mod capacity {
    /// Four for each service port.
    pub const FRONTENDS: u32 = 1 << 18;
    pub const SERVICE_PORTS: u32 = 1 << 16;
    pub const POOLS: u32 = 1 << 17;
    /// 10,000 service ports of ten backends take ten million. An even number: they lie in pairs.
    pub const POOL_SLOTS: u32 = 1 << 24;
    pub const BACKENDS: u32 = 1 << 17;
    /// Buckets of [`super::WAYS`] flows each, per family; a power of two.
    pub const FLOW_BUCKETS: u32 = 1 << 16;
    /// Connected sockets of processes on this node, per family.
    pub const CONNECTED: u32 = 1 << 16;
    /// Flows of unconnected sockets, twice each, per family.
    pub const UNCONNECTED: u32 = 1 << 15;
    /// Clients that stay with a backend, per family; the one unseen for longest makes room.
    pub const AFFINITIES: u32 = 1 << 18;
    /// Backends in pools whose clients stay with them.
    pub const MEMBERS: u32 = 1 << 18;
    /// Ranges of all restricted service ports, per family.
    pub const SOURCE_RANGES: u32 = 1 << 16;
    /// Fragmented packets whose first fragment was seen, per family.
    pub const FRAGMENTS: u32 = 1 << 13;
    pub const DEVICES: u32 = 1 << 12;
    /// In bytes: what is told of packets and not taken yet.
    pub const EVENTS: u32 = 1 << 18;
    /// Addresses of the cluster's nodes.
    pub const PEERS: u32 = 1 << 15;
    /// Backends on this node that tunnels lead to.
    pub const TARGETS: u32 = 1 << 14;
}

/// Map names, which are also their file names under the pin directory.
pub mod map {
    pub const IDENTITY: &str = "IDENTITY";
    pub const FRONTENDS4: &str = "FRONTENDS4";
    pub const FRONTENDS6: &str = "FRONTENDS6";
    pub const POOLS: &str = "POOLS";
    pub const POOL_SLOTS: &str = "POOL_SLOTS";
    pub const BACKENDS4: &str = "BACKENDS4";
    pub const BACKENDS6: &str = "BACKENDS6";
    pub const FLOWS4: &str = "FLOWS4";
    pub const FLOWS6: &str = "FLOWS6";
    pub const RETURNS4: &str = "RETURNS4";
    pub const RETURNS6: &str = "RETURNS6";
    pub const AFFINITIES4: &str = "AFFINITIES4";
    pub const AFFINITIES6: &str = "AFFINITIES6";
    pub const MEMBERS: &str = "MEMBERS";
    pub const SOURCE_RANGES4: &str = "SOURCE_RANGES4";
    pub const SOURCE_RANGES6: &str = "SOURCE_RANGES6";
    pub const FRAGMENTS4: &str = "FRAGMENTS4";
    pub const FRAGMENTS6: &str = "FRAGMENTS6";
    pub const DEVICES: &str = "DEVICES";
    pub const NETWORK: &str = "NETWORK";
    pub const PEERS: &str = "PEERS";
    pub const TARGETS: &str = "TARGETS";
    pub const SCRATCH: &str = "SCRATCH";
    pub const DRAFTS4: &str = "DRAFTS4";
    pub const DRAFTS6: &str = "DRAFTS6";
    pub const XDP_STAGES: &str = "XDP_STAGES";
    pub const TC_STAGES: &str = "TC_STAGES";
    pub const DESTINATIONS: &str = "DESTINATIONS";
    pub const SOURCES: &str = "SOURCES";
    pub const HOST: &str = "HOST";
    pub const CONNECTED4: &str = "CONNECTED4";
    pub const CONNECTED6: &str = "CONNECTED6";
    pub const UNCONNECTED4: &str = "UNCONNECTED4";
    pub const UNCONNECTED6: &str = "UNCONNECTED6";
    pub const SERVICE_NAMES: &str = "SERVICE_NAMES";
    pub const REASONS: &str = "REASONS";
    pub const SERVICE_TRAFFIC: &str = "SERVICE_TRAFFIC";
    pub const BACKEND_TRAFFIC: &str = "BACKEND_TRAFFIC";
    pub const LISTENER: &str = "LISTENER";
    pub const EVENTS: &str = "EVENTS";
    pub const UNTOLD: &str = "UNTOLD";

    pub const ALL: [&str; 41] = [
        IDENTITY,
        FRONTENDS4,
        FRONTENDS6,
        POOLS,
        POOL_SLOTS,
        BACKENDS4,
        BACKENDS6,
        FLOWS4,
        FLOWS6,
        RETURNS4,
        RETURNS6,
        AFFINITIES4,
        AFFINITIES6,
        MEMBERS,
        SOURCE_RANGES4,
        SOURCE_RANGES6,
        FRAGMENTS4,
        FRAGMENTS6,
        DEVICES,
        NETWORK,
        PEERS,
        TARGETS,
        SCRATCH,
        DRAFTS4,
        DRAFTS6,
        XDP_STAGES,
        TC_STAGES,
        DESTINATIONS,
        SOURCES,
        HOST,
        CONNECTED4,
        CONNECTED6,
        UNCONNECTED4,
        UNCONNECTED6,
        SERVICE_NAMES,
        REASONS,
        SERVICE_TRAFFIC,
        BACKEND_TRAFFIC,
        LISTENER,
        EVENTS,
        UNTOLD,
    ];
}
