//! Decisions from a flow entry, or from what is stored for flows without one.

use crate::datapath::carried::{Decision, End};
use crate::datapath::segment::Segment;
use crate::family::Family;
use crate::layout::{Direction, Flow, FlowKind, Untracked};

impl<F: Family> Decision<F> {
    /// For a packet from the client.
    #[inline(always)]
    pub fn of_request(flow: &Flow<F>) -> Self {
        Self {
            source: End { address: flow.snat, port: flow.snat_port },
            destination: End { address: flow.backend, port: flow.backend_port },
            service_port: flow.service_port,
            backend_index: flow.backend_index,
            backend_generation: flow.backend_generation,
            direction: Direction::Forward,
            kind: flow.kind,
        }
    }

    /// For a packet from the backend.
    #[inline(always)]
    pub fn of_reply(flow: &Flow<F>) -> Self {
        Self {
            source: End { address: flow.frontend, port: flow.frontend_port },
            destination: End { address: flow.client, port: flow.client_port },
            service_port: flow.service_port,
            backend_index: flow.backend_index,
            backend_generation: flow.backend_generation,
            direction: Direction::Reverse,
            kind: flow.kind,
        }
    }

    /// For a packet from the backend to a client whose flow has no entry.
    #[inline(always)]
    pub fn of_untracked_reply(segment: &Segment<F>, untracked: &Untracked<F>) -> Self {
        Self {
            source: End { address: untracked.frontend, port: untracked.frontend_port },
            destination: End { address: segment.destination, port: segment.destination_port },
            service_port: untracked.service_port,
            backend_index: untracked.backend_index,
            backend_generation: 0,
            direction: Direction::Reverse,
            kind: FlowKind::default(),
        }
    }
}
