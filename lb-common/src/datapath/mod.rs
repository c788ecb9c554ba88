//! The data plane: what happens to a packet, as a function of its bytes and the tables.
//!
//! [`ingress`] handles packets that arrive on an interface, [`egress`] those that leave through
//! one. Both test the cheapest exit first: parse, prefilter, flow. What only few packets need is a
//! [`Stage`]: opening a flow, rejecting, ICMP errors, fragments. In the kernel a stage is a program
//! with its own stack; the verdict names the next one, which has been given what it needs
//! ([`NextStage`]).
//!
//! | layer | contents | may use |
//! | --- | --- | --- |
//! | `stages` | what a hook runs | all below |
//! | `forward` | the decision about a packet, and the one sender | all below |
//! | `select` | the choice of a backend for a new flow | all below |
//! | `wire` | parsing and writing headers | the base |
//! | [`conntrack`](crate::conntrack) | the state of connections | the base |
//! | the base | `verdict`, `handover`, `tables`, `route`, `carried`, `redispatch`, [`layout`](crate::layout), hashes, checksums | |
//!
//! # Invariants
//! - A packet that is not addressed to a Service passes unmodified. Packets are dropped only for a
//!   counted [`Reason`](crate::layout::Reason).
//! - No I/O, no clock, no allocation: all input comes through [`Packet`] and [`Tables`].
//! - A packet is not modified before it continues in another stage, except that a tunnelled packet
//!   is decapsulated, and a refusal hidden from its client.
//!
//! Tests: the packet tables in the crate `tests`, run on the host and in the kernel.

mod allowance;
mod arrival;
mod carried;
mod forward;
mod function;
mod handover;
mod redispatch;
mod rejection;
mod route;
mod segment;
mod select;
mod stages;
mod tables;
mod verdict;
mod wire;

use crate::family::{Family, V4, V6};
use crate::layout::Reason;

pub use crate::layout::Direction;
pub use allowance::{Answer, Answers, Questions, Rejections, Reports};
pub use carried::{Decision, Draft, Encapsulation, End};
pub use forward::execute::execute_function;
pub use function::{Function, PacketFunction};
pub use handover::{Handover, NextStage, given_rejection};
pub use rejection::{Rejection, RejectionKind};
pub use route::{NextHop, Query, Route};
pub use segment::{OFFSETS, Segment};
pub use select::frontend_at;
pub use stages::execute::execute_on;
pub use stages::socket;
pub use tables::{
    BfdTables, Counters, FamilyTables, NeighbourTables, NetworkTables, PoolTables, Scratch, Tables,
    search_receiver,
};
pub use verdict::{ARRIVE, DEFERRED, MOST_STAGES, REPORT, Stage, Verdict};
pub use wire::arp;
pub use wire::describe::describe_packet;
pub use wire::link::{Frame, parse_frame};
pub use wire::ndp;
pub use wire::packet::{BY_PIECES, Packet, Role};
pub use wire::parse::PacketFamily;

use forward::{begin, send};
use handover::{
    DraftedFlow, given_alone, given_arrival, given_encapsulation, given_location, given_redispatch,
    given_unserved,
};
use redispatch::Redispatch;
use stages::{
    bfd, decapsulate, delivered, earlier, egress as leaving, encapsulate, fragment, icmp_error,
    ingress as arriving, neighbour, open, redispatching, reject, shadow, spread, unserved,
};
use wire::outer;

/// A packet that arrives on an interface.
#[inline(always)]
pub fn ingress<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    arrive::<false, P, T>(packet, tables)
}

/// A packet that arrives on an interface without link-layer headers.
#[inline(always)]
pub fn ingress_raw<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    arrive::<true, P, T>(packet, tables)
}

#[inline(always)]
fn arrive<const RAW: bool, P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let Some(frame) = packet.frame() else {
        return Verdict::Pass;
    };
    match frame.ether_type {
        V4::ETHER_TYPE => {
            arriving::process_arriving::<RAW, V4, P, T>(packet, tables, frame.network)
        }
        V6::ETHER_TYPE => {
            arriving::process_arriving::<RAW, V6, P, T>(packet, tables, frame.network)
        }
        arp::ETHER_TYPE if neighbour::answers_here(packet) => Verdict::Next(NextStage::NEIGHBOUR),
        _ => Verdict::Pass,
    }
}

/// A packet that XDP has passed to the stack: only what asks for an announced address needs more.
/// `frame`: what the hook knows about it already, so that nothing is parsed.
#[inline(always)]
pub fn passed<P: Packet>(packet: &P, frame: Frame) -> Verdict {
    let is_neighbours = match frame.ether_type {
        arp::ETHER_TYPE => true,
        V6::ETHER_TYPE => {
            packet.header::<<V6 as Family>::Header>(frame.network).is_some_and(V6::is_neighbours)
        }
        _ => false,
    };
    if is_neighbours && neighbour::answers_here(packet) {
        Verdict::Next(NextStage::NEIGHBOUR)
    } else {
        Verdict::Pass
    }
}

/// A packet that leaves through an interface.
#[inline(always)]
pub fn egress<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let Some(frame) = packet.frame() else {
        return Verdict::Pass;
    };
    match frame.ether_type {
        V4::ETHER_TYPE => leaving::process_leaving::<V4, P, T>(packet, tables, frame.network),
        V6::ETHER_TYPE => leaving::process_leaving::<V6, P, T>(packet, tables, frame.network),
        _ => Verdict::Pass,
    }
}

/// Runs the stage that [`Verdict::Next`] named.
#[inline(always)]
pub fn stage<P, T>(stage: Stage, packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    if stage == Stage::Neighbour {
        return neighbour::answer_neighbour(packet, tables);
    }
    let Some(frame) = packet.frame() else {
        return Verdict::Pass;
    };
    match frame.ether_type {
        V4::ETHER_TYPE => stage_of::<V4, P, T>(stage, packet, tables, frame.network),
        V6::ETHER_TYPE => stage_of::<V6, P, T>(stage, packet, tables, frame.network),
        _ => Verdict::Pass,
    }
}

#[inline(always)]
fn stage_of<F, P, T>(stage: Stage, packet: &mut P, tables: &T, network: usize) -> Verdict
where
    F: outer::Outer,
    P: Packet,
    T: FamilyTables<F>,
{
    match stage {
        Stage::Open => {
            // Only tc has the stage that moves connections.
            let is_moved = packet.resolves();
            let redispatch = if is_moved { given_redispatch(tables) } else { Redispatch::NONE };
            let given = (given_alone(tables), redispatch);
            open::open_flow(packet, tables, network, given)
        }
        Stage::Begin => begin::begin_drafted_flow(tables, Function::Begin, DraftedFlow::proven()),
        Stage::Send => send::send_draft(packet, tables, network),
        Stage::Spread => {
            spread::process_spread_packet(packet, tables, network, given_arrival(tables))
        }
        Stage::Snat => {
            begin::begin_drafted_flow(tables, Function::BeginIndexed, DraftedFlow::proven())
        }
        Stage::Untracked => open::forward_untracked(tables, DraftedFlow::proven()),
        Stage::Reset => reject::reject_with_reset(packet, tables, network),
        Stage::Reject => {
            reject::reject_with_icmp(packet, tables, network, || given_rejection(tables))
        }
        Stage::Unserved => {
            unserved::process_unserved(packet, tables, network, given_unserved(tables))
        }
        Stage::ErrorIn => {
            icmp_error::process_arriving_error(packet, tables, network, given_arrival(tables))
        }
        Stage::ErrorOut => icmp_error::process_leaving_error(packet, tables, network),
        Stage::FragmentIn => fragment::process_arriving_fragment(packet, tables, network),
        Stage::FragmentOut => fragment::process_leaving_fragment(packet, tables, network),
        Stage::Reply => leaving::send_stored_reply(packet, tables, network),
        Stage::Encapsulate => match given_encapsulation(tables) {
            Some(given) => encapsulate::encapsulate_packet(packet, tables, network, given),
            None => verdict::drop_for(tables, Reason::CorruptTable),
        },
        Stage::Decapsulate => decapsulate::decapsulate_packet(packet, tables, network),
        Stage::Delivered => {
            delivered::send_from_tunnel(packet, tables, network, given_arrival(tables))
        }
        Stage::Accept => {
            delivered::accept_from_tunnel(packet, tables, network, given_arrival(tables))
        }
        Stage::Earlier => {
            earlier::ask_earlier_owner(packet, tables, network, given_arrival(tables))
        }
        Stage::Shadow => shadow::end_shadowed_flow(packet, tables, network),
        Stage::Redispatch => {
            redispatching::redispatch_packet(packet, tables, network, given_location(tables))
        }
        Stage::Bfd => bfd::answer_bfd(packet, tables, network),
        // Of both families, and of ARP.
        Stage::Neighbour => Verdict::Pass,
    }
}
