//! What the data plane knows apart from the packet, and where it leaves its counts.

use crate::conntrack::{Environment, FlowTables};
use crate::family::Family;
use crate::layout::{
    Affinity, AffinityKey, Backend, Device, Direction, Fragment, FragmentKey, Frontend,
    FrontendKey, Hints, Member, Peer, Pool, Reason, ReplyKey, TunnelKey, TunnelTarget, Untracked,
};

use super::carried::{Draft, Handover};
use super::verdict::Rejection;

/// Tables that choose a backend, whatever the address family.
pub trait PoolTables {
    fn pool(&self, index: u32) -> Option<Pool>;
    /// The backend index in one slot of `POOL_SLOTS`.
    fn slot(&self, index: u32) -> Option<u32>;
    /// Whether a backend is in a pool whose clients stay with their backends.
    fn is_member(&self, member: Member) -> bool;
    /// The backend on this node that a packet from a tunnel is for.
    fn target(&self, target: TunnelTarget) -> Option<u32>;
}

/// What is known of the network around this node.
pub trait NetworkTables {
    fn device(&self, index: u32) -> Option<Device>;
    /// Moves on with every change of the network.
    fn network_epoch(&self) -> u32;
    /// Whether an address is of a node of the cluster.
    fn is_peer(&self, peer: Peer) -> bool;
    /// The key that tunnels of this cluster carry, or the other one that is accepted while keys are
    /// changed; 0: none.
    fn tunnel_key(&self, which: TunnelKey) -> u64;
    /// Whether a port must not be used for SNAT: something on this node may use it.
    fn is_port_reserved(&self, port: u16) -> bool;
}

/// What a packet takes along from stage to stage.
pub trait Scratch {
    /// Keeps what the next stage of this packet is to answer.
    fn set_rejection(&self, rejection: Rejection);
    fn rejection(&self) -> Rejection;
    /// Keeps whether this packet, whose flow may lie elsewhere, came through a tunnel.
    fn set_delivered(&self, delivered: bool);
    fn is_delivered(&self) -> bool;
    /// Keeps whether the look-up of this packet, which may open a flow, has met no other flow of its client's
    /// address and port. Every stage before [`Open`](super::Stage::Open) and [`Begin`](super::Stage::Begin)
    /// says so anew.
    fn set_alone(&self, alone: bool);
    fn is_alone(&self) -> bool;
    /// Keeps by what this packet, which came through a tunnel, names its backend.
    fn set_tag(&self, tag: u32);
    fn tag(&self) -> u32;
    /// What has been decided of this packet, which another stage sends. Only the packet's own CPU reads it.
    #[expect(clippy::mut_from_ref, reason = "the memory is the table's, one packet's at a time")]
    fn handover(&self) -> Option<&mut Handover>;
}

/// Where packets and flows are counted.
pub trait Counters {
    fn count(&self, reason: Reason);
    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32);
    fn count_new_flow(&self, service_port: u32, backend: u32);
    /// Whether one more packet of our own making may be sent.
    fn may_answer(&self) -> bool;
}

/// All tables that the address families share.
pub trait Tables: Environment + PoolTables + NetworkTables + Scratch + Counters {}

impl<T: Environment + PoolTables + NetworkTables + Scratch + Counters> Tables for T {}

/// The tables that each address family has for itself.
pub trait FamilyTables<F: Family>: Tables + FlowTables<F> {
    /// The prefilter: false if no frontend has this address.
    fn may_be_destination(&self, address: F::Address) -> bool;
    /// The prefilter for replies: false if no backend has this address and port.
    fn may_be_source(&self, address: F::Address, port: u16, protocol: u8) -> bool;
    fn frontend(&self, key: &FrontendKey<F>) -> Option<Frontend>;
    fn backend(&self, index: u32) -> Option<Backend<F::Address>>;
    /// The flow that this packet is to begin, from stage to stage. Only the packet's own CPU reads it.
    #[expect(clippy::mut_from_ref, reason = "the memory is the table's, one packet's at a time")]
    fn draft(&self) -> Option<&mut Draft<F>>;
    fn affinity(&self, key: &AffinityKey<F>) -> Option<Affinity>;
    fn set_affinity(&self, key: &AffinityKey<F>, affinity: Affinity);
    fn is_source_allowed(&self, service_port: u32, client: F::Address) -> bool;
    fn fragment(&self, key: &FragmentKey<F>) -> Option<Fragment>;
    fn set_fragment(&self, key: &FragmentKey<F>, fragment: Fragment);
    fn hints(&self) -> Option<&Hints>;
    /// What the client of a flow without an entry has dialled.
    fn untracked(&self, key: &ReplyKey<F>) -> Option<Untracked<F>>;
    fn set_untracked(&self, key: &ReplyKey<F>, untracked: &Untracked<F>);
}
