//! The data plane's input apart from the packet, and its counters.

use crate::branchless::is_zero;
use crate::conntrack::{Environment, FlowTables};
use crate::family::Family;
use crate::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, Backend, BackendHop, BfdSession, Device,
    Direction, Fragment, FragmentKey, Frontend, FrontendKey, LinkAddresses, Member, NeighbourEvent,
    Peer, Pool, PoolSlot, Reason, ReplyKey, TunnelKey, TunnelTarget, Untracked,
};

use super::allowance::Answer;
use super::carried::Draft;
use super::function::Function;
use super::handover::Handover;

/// Tables that choose a backend, whatever the address family.
pub trait PoolTables {
    fn pool(&self, index: u32) -> Option<Pool>;
    /// The backend index in one slot of `POOL_SLOTS`.
    fn slot(&self, index: u32) -> Option<u32>;
    /// Whether a backend is in a pool with session affinity.
    fn is_member(&self, member: Member) -> bool;
    /// The backend on this node that a packet from a tunnel is for.
    fn target(&self, target: TunnelTarget) -> Option<u32>;
    /// An earlier owner of a slot, from 0 for the last one: the backend's index.
    fn earlier_owner(&self, slot: PoolSlot, position: u32) -> Option<u32>;
}

/// The network around this node.
pub trait NetworkTables {
    fn device(&self, index: u32) -> Option<Device>;
    /// A word of [`LinkAddresses`](crate::layout::LinkAddresses).
    fn link_address(&self, index: u32) -> u64;
    /// Whether an interface takes frames to the link-layer address in this word: if it is one of its
    /// own, or none is known.
    fn takes(&self, device: u32, wanted: u64) -> bool {
        search_receiver(self, device, wanted)
    }
    /// Changes with every change of the network.
    fn network_epoch(&self) -> u32;
    /// Whether next hops depend on the destination only.
    fn shares_hops(&self) -> bool;
    /// The next hop of new flows to a backend.
    fn backend_hop(&self, backend: u32) -> Option<&BackendHop>;
    /// Whether an address belongs to a node of the cluster.
    fn is_peer(&self, peer: Peer) -> bool;
    /// Whether a node has shown that it takes packets out of tunnels.
    fn decapsulates(&self, node: Peer) -> bool;
    /// Whether it has also shown that it returns packets of connections that it does not know.
    fn returns(&self, node: Peer) -> bool;
    /// The cluster's tunnel key, or the other one that is accepted during key rotation; 0: none.
    fn tunnel_key(&self, which: TunnelKey) -> u64;
    /// Whether a port must not be used for SNAT, because this node may use it itself.
    fn is_port_reserved(&self, port: u16) -> bool;
}

/// The usual way of [`NetworkTables::takes`]. Without branches: the verifier would follow the rest of the
/// path once for each of them.
#[inline(always)]
pub fn search_receiver<T: NetworkTables + ?Sized>(tables: &T, device: u32, wanted: u64) -> bool {
    let bucket = LinkAddresses::bucket(device);
    let (mut is_receiver, mut is_known) = (0, 0);
    for slot in 0..LinkAddresses::SLOTS {
        let word = tables.link_address(bucket + slot);
        is_receiver |= is_zero(folded(word ^ wanted));
        is_known |= is_zero(LinkAddresses::device(word) ^ u64::from(device));
    }
    is_receiver != 0 || is_known == 0
}

/// Below 2^32, and 0 only for 0.
#[inline(always)]
fn folded(number: u64) -> u64 {
    (number | number >> 32) & u64::from(u32::MAX)
}

/// The addresses that this node announces.
pub trait NeighbourTables {
    /// The clock of deadlines and claims: nanoseconds since the machine started.
    fn since_boot(&self) -> u64;
    fn announced(&self, at: &AnnouncedAddress) -> Option<Announced>;
    /// Notes that a machine uses an address; false if the address is not watched.
    fn set_claim(&self, at: &AnnouncedAddress, link_address: [u8; 6]) -> bool;
}

/// Sessions of bidirectional forwarding detection.
pub trait BfdTables {
    fn bfd_session(&self, discriminator: u32) -> Option<BfdSession>;
    /// Notes that the session's peer was heard, and is answered.
    fn note_heard(&self, discriminator: u32);
}

/// State that a packet keeps from stage to stage.
pub trait Scratch {
    /// What the packet's next stage is given. Only the packet's CPU reads it.
    #[expect(clippy::mut_from_ref, reason = "the memory is the table's, one packet's at a time")]
    fn handover(&self) -> Option<&mut Handover>;
}

/// Counters of packets and flows.
pub trait Counters {
    fn count(&self, reason: Reason);
    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32);
    fn count_new_flow(&self, service_port: u32, backend: u32);
    fn count_neighbour(&self, event: NeighbourEvent);
    /// Whether the rate limit allows another reset, ICMP error or reply to a probe.
    fn may_reject(&self) -> bool;
    /// Whether the rate limit allows another question or answer about connections.
    fn may_ask(&self) -> bool;
    /// Whether the rate limits allow an answer from an assigned address to the source with this number, one of
    /// [`Answers::SOURCES`](super::Answers).
    fn may_answer(&self, answer: Answer, source: u32) -> bool;
}

/// All tables that both address families share.
pub trait Tables:
    Environment + PoolTables + NetworkTables + NeighbourTables + BfdTables + Scratch + Counters
{
}

impl<T> Tables for T where
    T: Environment + PoolTables + NetworkTables + NeighbourTables + BfdTables + Scratch + Counters
{
}

/// The tables of one address family.
pub trait FamilyTables<F: Family>: Tables + FlowTables<F> {
    /// The prefilter: false if no frontend has this address.
    fn may_be_destination(&self, address: F::Address) -> bool;
    /// The prefilter for replies: false if no backend has this address and port.
    fn may_be_source(&self, address: F::Address, port: u16, protocol: u8) -> bool;
    fn frontend(&self, key: &FrontendKey<F>) -> Option<Frontend>;
    fn backend(&self, index: u32) -> Option<Backend<F::Address>>;
    /// The draft of the flow that this packet begins. Only the packet's CPU reads it.
    #[expect(clippy::mut_from_ref, reason = "the memory is the table's, one packet's at a time")]
    fn draft(&self) -> Option<&mut Draft<F>>;
    /// Runs a function: [`execute`](super::execute), directly or as a function of its own.
    fn call(&self, function: Function) -> u32;
    fn affinity(&self, key: &AffinityKey<F>) -> Option<Affinity>;
    fn set_affinity(&self, key: &AffinityKey<F>, affinity: Affinity);
    fn is_source_allowed(&self, service_port: u32, client: F::Address) -> bool;
    fn fragment(&self, key: &FragmentKey<F>) -> Option<Fragment>;
    fn set_fragment(&self, key: &FragmentKey<F>, fragment: Fragment);
    /// The frontend that the client of a flow without an entry uses.
    fn untracked(&self, key: &ReplyKey<F>) -> Option<Untracked<F>>;
    fn set_untracked(&self, key: &ReplyKey<F>, untracked: &Untracked<F>);
}
