//! A packet that arrives on an interface: to a Service, or a reply to an SNAT address of this node.

use super::{bfd, earlier, neighbour, receiver};
use crate::datapath::arrival::Arrival;
use crate::datapath::forward::lookup::{self, FlowPlace, RequestLookup};
use crate::datapath::forward::{refuse, send};
use crate::datapath::handover::NextStage;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::outer::Outer;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};
use crate::header::{NetworkHeader, TransportPorts, protocol};
use crate::layout::Reason;
use crate::verifier::rarely;

/// A packet that arrives on an interface. `RAW`: without a link-layer header.
#[inline(always)]
pub fn process_arriving<const RAW: bool, F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Some(header) = packet.header::<F::Header>(network) else {
        return pass_for(tables, Reason::Malformed);
    };
    // Claims are noted whatever address they are to, and whatever the frame's receiver is.
    let unless_claim = |verdict| {
        if F::is_neighbours(header) && neighbour::answers_here(packet) {
            return Verdict::Next(NextStage::NEIGHBOUR);
        }
        verdict
    };
    let mut stage = None;
    if !tables.may_be_destination(header.destination()) {
        stage = stage_of_datagram::<F, P, T>(packet, tables, network, header);
        if stage.is_none() {
            return unless_claim(Verdict::Pass);
        }
    }
    if !receiver::is_receiver(packet, tables) {
        return unless_claim(Verdict::Yield);
    }
    if let Some(stage) = stage {
        return Verdict::Next(stage);
    }
    match parse::parse_frequent_packet(packet, network) {
        // Interfaces without link-layer headers are few and slow: that stage handles whole packets, too,
        // so that the verifier need not check the rest of this one again.
        Parsed::Segment(_) if RAW => Verdict::Next(NextStage::FRAGMENT_IN),
        Parsed::Segment(segment) => process_arriving_segment(packet, tables, &segment),
        Parsed::Icmp => Verdict::Next(NextStage::error_in(tables, Arrival::BY_LINK)),
        Parsed::Fragment => Verdict::Next(NextStage::FRAGMENT_IN),
        Parsed::Tunnel => Verdict::Next(NextStage::DECAPSULATE),
        other => Verdict::Next(NextStage::unserved(tables, other.reason())),
    }
}

/// The stage of a datagram to an address without frontends, without options or extension headers:
/// to a backend, or of a session of BFD.
#[inline(always)]
fn stage_of_datagram<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
    header: &F::Header,
) -> Option<NextStage> {
    if !F::is_plain(header, protocol::UDP) {
        return None;
    }
    let ports: &TransportPorts = packet.header(network + size_of::<F::Header>())?;
    let port = u16::from_be_bytes(ports.destination);
    if tables.may_be_source(header.destination(), port, protocol::UDP) {
        return Some(NextStage::SHADOW);
    }
    bfd::is_port(port).then_some(NextStage::BFD)
}

/// A whole packet with ports that arrives: sends it by its flow, or chooses the stage that opens one.
#[inline(always)]
pub fn process_arriving_segment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
) -> Verdict {
    // Requests to ports in the SNAT range are few, so there replies are looked for first. A packet
    // that opens a connection is no reply.
    if !segment.opens() && tables.settings().has_snat_port(segment.destination_port) {
        match lookup::find_reply(tables, segment, FlowPlace::ReplyIndex) {
            Ok(Some(found)) => {
                if !lookup::update_reply(tables, segment, &found) {
                    rarely();
                    // Only tc has the stage.
                    let location = found.location();
                    return if packet.resolves() {
                        Verdict::Next(NextStage::redispatch(tables, location))
                    } else {
                        Verdict::Defer
                    };
                }
                return send::past_tunnels(
                    packet,
                    tables,
                    segment,
                    &found.record,
                    Some(found.hops()),
                );
            }
            Ok(None) => {}
            Err(reason) => return drop_for(tables, reason),
        }
    }
    let (lookup, alone) = lookup::update_request_flow(tables, segment);
    match lookup {
        Ok(RequestLookup::Flow(found)) => {
            send::send_packet(packet, tables, segment, &found.record, Some(found.hops()))
        }
        Ok(RequestLookup::Gone(found)) => {
            rarely();
            if earlier::may_be_later(packet, tables, &found.record) {
                found.release();
                return Verdict::Next(stage_without_flow(tables, segment, false));
            }
            refuse::refuse_gone_backend(packet, tables, segment.headers, &found)
        }
        // Few connections are opened again: the stage that handles packets of any shape does that, too.
        Ok(RequestLookup::Opens) => Verdict::Next(NextStage::FRAGMENT_IN),
        Ok(RequestLookup::Nothing) => Verdict::Next(stage_without_flow(tables, segment, alone)),
        Err(reason) => drop_for(tables, reason),
    }
}

/// The stage of a packet that belongs to no flow here.
#[inline(always)]
fn stage_without_flow<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    alone: bool,
) -> NextStage {
    if lookup::has_spread_flows(tables, segment) {
        return NextStage::spread(tables, Arrival::BY_LINK);
    }
    NextStage::open(tables, alone)
}
