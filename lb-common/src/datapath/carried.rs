//! State that a packet keeps from stage to stage, so that no stage repeats a lookup.

use crate::conntrack::Location;
use crate::family::Family;
use crate::layout::{Direction, Flow, FlowKind};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<A> {
    pub address: A,
    pub port: u16,
}

/// What to do with a packet: its new addresses and ports, where it goes, and the backend for which
/// it is counted. Made from a flow's entry or from other tables.
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

/// A flow to be stored, and the decision for its packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draft<F: Family> {
    pub flow: Flow<F>,
    pub decision: Decision<F>,
    /// The flow's initial state, and what is tracked with it.
    pub state: u32,
    pub track: u32,
    /// The backend's full generation: the flow stores only its low bits.
    pub generation: u32,
    /// 1 if the client's session affinity is to be stored.
    pub sticky: u32,
    /// 1 if the client has so many flows that client and frontend select the buckets of this one.
    pub crowded: u32,
    /// How often its stage has been restarted.
    pub round: u32,
    /// The packet's sequence number. It differs between a client's connections.
    pub sequence: u32,
    /// Where the entry of the flow is.
    pub at: Location,
    /// The network epoch when the next hop was resolved.
    pub epoch: u32,
    /// The next hop of the flow's packets, as stored in flows; 0 if unknown.
    pub hop: u64,
}

/// A packet to be tunnelled: its backend, and the kind of tunnel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    pub service_port: u32,
    pub backend_index: u32,
    pub backend_generation: u16,
    /// The tunnel's UDP source port: the same for all packets of a flow.
    pub source_port: u16,
    pub kind: FlowKind,
    /// 1 if an ICMP error may be sent about the packet.
    pub answerable: u8,
    /// 1 if the flow has an entry.
    pub tracked: u8,
    pub reserved: [u8; 5],
    pub location: Location,
}

const _: () = assert!(size_of::<Handover>() == 32);
