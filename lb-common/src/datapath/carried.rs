//! What a packet takes along from stage to stage, so that no stage looks up what one before it knew.

use crate::conntrack::Location;
use crate::family::Family;
use crate::layout::{Direction, Flow, FlowKind};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<A> {
    pub address: A,
    pub port: u16,
}

/// What to do with a packet, whoever decided it, a flow's entry or the tables: what becomes of its
/// addresses and ports, where it goes, and for which backend it counts.
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

/// A flow that is to begin, and the decision of what to do with the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draft<F: Family> {
    pub flow: Flow<F>,
    pub decision: Decision<F>,
    /// The state that it begins in, and what is remembered with it.
    pub state: u32,
    pub track: u32,
    /// The backend's, all of it: the flow keeps a part.
    pub generation: u32,
    /// 1 if the client is to stay with the backend.
    pub sticky: u32,
    /// 1 if the client has so many flows that this one lies where client and frontend lead.
    pub crowded: u32,
    /// How often its stage began anew.
    pub round: u32,
    /// The packet's sequence number: each connection of a client has another.
    pub sequence: u32,
    /// Where the flow lies that decided it, or has begun.
    pub at: Location,
    /// The network's epoch when the next hop was resolved.
    pub epoch: u32,
    /// The next hop of the flow's packets, as flows keep it; 0 if it is not known.
    pub hop: u64,
}

/// A packet that goes through a tunnel: which backend it is for, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    pub service_port: u32,
    pub backend_index: u32,
    pub backend_generation: u16,
    /// UDP's source port: the same for all packets of a flow.
    pub source_port: u16,
    pub kind: FlowKind,
    /// 1 if the packet's sender may be told by an error why it can't be sent.
    pub answerable: u8,
    /// 1 if the flow has an entry.
    pub tracked: u8,
    pub reserved: [u8; 5],
    pub location: Location,
}

const _: () = assert!(size_of::<Handover>() == 32);
