//! State that a packet keeps from stage to stage, so that no stage repeats the lookup of an earlier
//! one.

use super::arrival::Arrival;
use super::handover::Alone;
use crate::conntrack::Location;
use crate::datapath::segment::{Headers, Segment};
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{Direction, Flow, FlowKind, PoolSlot};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<A> {
    pub address: A,
    pub port: u16,
}

/// What to do with a packet: its new addresses and ports, where it is sent, and the backend that it
/// is counted for. It comes from a flow entry or from the tables.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Decision<F: Family> {
    pub source: End<F::Address>,
    pub destination: End<F::Address>,
    pub service_port: u32,
    pub backend_index: u32,
    /// The low bits of the backend's generation when it was chosen.
    pub backend_generation: u16,
    pub direction: Direction,
    pub kind: FlowKind,
}

/// A flow that is about to begin, and the decision for the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draft<F: Family> {
    pub flow: Flow<F>,
    pub decision: Decision<F>,
    /// The first state, and the track that is stored with it.
    pub state: u32,
    pub track: u32,
    /// The backend's generation. The flow stores the low bits.
    pub generation: u32,
    /// 1 if the Service has session affinity.
    pub sticky: u32,
    /// 1 if client and frontend select the flow's buckets, because the client has too many flows or its
    /// buckets are full; 2 if those are full, too, and they select two more.
    pub crowded: u32,
    pub alone: Alone,
    /// How a decapsulated packet came, for the functions that examine it.
    pub arrival: Arrival,
    /// The number of ports, or rounds of SNAT ports, that were in use.
    pub round: u32,
    /// The packet's sequence number, which differs between connections of a client.
    pub sequence: u32,
    /// The location of the flow that the decision came from, that has begun, or whose port may be taken over.
    pub at: Location,
    /// The network's epoch when the next hop was resolved.
    pub epoch: u32,
    /// The next hop, as flow entries store it; 0 if it is not known.
    pub hop: u64,
    /// The highest eviction rank of the flows whose ports were examined.
    pub rank: i64,
    /// The SNAT ports that the flow tries, and the number of the one that is tried.
    pub ports: SnatPortOrder,
    pub port: u32,
    /// The packet, or what a fragment or an ICMP error belongs to.
    pub segment: Segment<F>,
    /// The hash that selects the buckets in which its flow is looked for.
    pub hash: FlowHash,
    /// The one of them that is searched.
    pub bucket: u32,
    /// Where the headers of an ICMP error are. Those of the segment are in its quote.
    pub error: Headers,
    pub owners: Owners<F>,
    /// 1 if the packet is of a client on this node, whose connection may move.
    pub inside: u32,
}

/// The order in which a flow tries ports.
#[derive(Clone, Copy, Debug)]
pub struct SnatPortOrder {
    pub first: u32,
    pub count: u32,
    pub start: u32,
    pub stride: u32,
}

/// The search for an owner of a connection's slot.
#[derive(Clone, Copy, Debug)]
pub struct Owners<F: Family> {
    pub slot: PoolSlot,
    /// The slot's place in `POOL_SLOTS`.
    pub first: u32,
    /// Which owner is examined: from 0 for the current one, then the last one before it.
    pub position: u32,
    /// The node of the current owner.
    pub current: F::Address,
    /// The backend that was examined.
    pub index: u32,
    /// Which owner is looked for: [`SoughtOwner`](crate::datapath::forward::owners::SoughtOwner) as numbers.
    pub wanted: u32,
    pub number: u32,
    pub tag: u32,
    /// How many have been examined that can be asked.
    pub count: u32,
}

/// A packet that is sent through a tunnel: its backend, and the kind of tunnel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encapsulation {
    pub service_port: u32,
    pub backend_index: u32,
    pub backend_generation: u16,
    /// UDP's source port: the same for all packets of a flow.
    pub source_port: u16,
    pub kind: FlowKind,
    /// 1 if the sender may get an ICMP error when the packet cannot be sent.
    pub errors_allowed: u8,
    /// 1 if the flow has an entry.
    pub tracked: u8,
    pub reserved: [u8; 5],
    pub location: Location,
}

const _: () = assert!(size_of::<Encapsulation>() == 32);
