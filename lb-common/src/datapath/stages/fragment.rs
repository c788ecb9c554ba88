//! Fragments. Only the first fragment of a packet contains the ports, which are stored for the
//! later ones. A later fragment that arrives before the first cannot be assigned to a flow.
//!
//! SCTP's checksum is over the whole packet, and by how much a changed port changes it depends on the packet's length,
//! which a first fragment does not tell. So fragments of SCTP are translated only by flows that keep both ports.

use super::{earlier, egress, node};
use crate::conntrack::{Location, Signal};
use crate::datapath::arrival::Arrival;
use crate::datapath::carried::Draft;
use crate::datapath::forward::carry::{self, Carried};
use crate::datapath::forward::lookup::FlowPlace;
use crate::datapath::forward::next_hop::Out;
use crate::datapath::forward::rewrite;
use crate::datapath::forward::send::{self, Departure};
use crate::datapath::forward::stored;
use crate::datapath::function::{Function, PacketFunction, function_result};
use crate::datapath::handover::NextStage;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Part, Transport};
use crate::header::NetworkHeader;
use crate::layout::{Direction, Fragment, FragmentKey, Reason, Ticks};
use crate::verifier::hide;

/// A fragment that arrives for a frontend or SNAT address.
#[inline(always)]
pub fn process_arriving_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match FragmentKind::of_packet::<F, P, T>(packet, tables, network) {
        kind @ (FragmentKind::First | FragmentKind::FirstOfSctp) => {
            // Or the verifier would follow the lookup twice.
            let is_of_sctp = hide((kind == FragmentKind::FirstOfSctp).into(), network as u32) != 0;
            process_first_fragment(packet, tables, network, is_of_sctp)
        }
        FragmentKind::Later => process_later_fragment(packet, tables, network),
        FragmentKind::Other => Verdict::Next(NextStage::unserved(tables, Reason::UnknownProtocol)),
        FragmentKind::Malformed => Verdict::Next(NextStage::unserved(tables, Reason::Malformed)),
    }
}

/// A fragment that leaves, or a whole SCTP packet. Most are not replies from backends, and pass uncounted.
#[inline(always)]
pub fn process_leaving_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    const FIRST: u32 = 1;
    /// Possibly of SCTP.
    const PART: u32 = 2;
    let kind = match FragmentKind::of_packet::<F, P, T>(packet, tables, network) {
        FragmentKind::First => FIRST,
        FragmentKind::FirstOfSctp => FIRST | PART,
        FragmentKind::Later
            if packet.call::<F>(PacketFunction::Recall, network, || {
                u32::from(recall_fragment_ports::<F, P, T>(packet, tables, network))
            }) != 0 =>
        {
            PART
        }
        FragmentKind::Later | FragmentKind::Other | FragmentKind::Malformed => {
            return Verdict::Pass;
        }
    };
    let Some(segment) = stored::read_segment::<F, T>(tables, network) else {
        return Verdict::Pass;
    };
    // Or the verifier would follow the lookup twice.
    let kind = hide(kind, segment.source_port.into());
    let is_first = kind & FIRST != 0;
    let is_reply =
        tables.may_be_source(segment.source, segment.source_port, segment.headers.protocol);
    match if is_reply { carry::find_leaving(tables) } else { Carried::Nothing } {
        Carried::Found(_) if kind & PART != 0 && !keeps_checksum(tables) => {
            pass_for(tables, Reason::Fragment)
        }
        Carried::Found(decision) if is_first => {
            tables.call(Function::NoteReply);
            Verdict::Next(NextStage::reply(decision))
        }
        Carried::Found(_) => {
            let Some(draft) = tables.draft() else {
                return drop_for(tables, Reason::CorruptTable);
            };
            let decision = &draft.decision;
            let rewritten = rewrite::rewrite_later_fragment(packet, tables, &segment, decision);
            send::pass_rewritten(tables, rewritten)
        }
        Carried::Nothing if is_first && node::is_request(packet, tables, &segment) => {
            packet.set_role(Role::Node);
            Verdict::Next(NextStage::FRAGMENT_IN)
        }
        Carried::Nothing if is_first && is_reply => egress::without_flow(tables, &segment),
        Carried::Nothing => Verdict::Pass,
        Carried::Failed(reason) => drop_for(tables, reason),
    }
}

function_result! {
    /// What a fragment is.
    pub enum FragmentKind {
        /// A whole packet, or a first fragment, whose ports are stored for the later ones.
        First,
        Later,
        /// The first fragment of an SCTP packet. Its ports are stored, too.
        FirstOfSctp,
        /// Fragmented ICMP is not handled.
        Other,
        Malformed,
    }
    otherwise Malformed
}

impl FragmentKind {
    /// Classifies a packet by [`PacketFunction::Look`], and stores its segment.
    #[inline(always)]
    pub fn of_packet<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
        packet: &P,
        tables: &T,
        network: usize,
    ) -> Self {
        Self::from_number(packet.call::<F>(PacketFunction::Look, network, || {
            classify_fragment::<F, P, T>(packet, tables, network).number()
        }))
    }
}

/// The function [`PacketFunction::Look`]. Stores the segment of what has ports.
#[inline(always)]
pub fn classify_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> FragmentKind {
    let found = F::transport::<true, P>(packet, network);
    match found.part {
        Part::Later => return FragmentKind::Later,
        Part::Malformed => return FragmentKind::Malformed,
        Part::Whole | Part::First => {}
    }
    let segment: Segment<F> = match parse::segment_of_packet(packet, found.headers) {
        Parsed::Segment(segment) => segment,
        Parsed::Malformed => return FragmentKind::Malformed,
        _ => return FragmentKind::Other,
    };
    stored::store_segment(tables, &segment);
    if found.part == Part::First {
        store_fragment_ports(tables, &found, &segment);
        if segment.headers.is_sctp() {
            return FragmentKind::FirstOfSctp;
        }
    }
    FragmentKind::First
}

/// Whether the decision in the draft translates fragments of the stored segment's packet.
#[inline(always)]
fn keeps_checksum<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    tables.draft().is_some_and(|Draft { segment, decision, .. }| {
        !segment.headers.is_sctp()
            || decision.source.port == segment.source_port
                && decision.destination.port == segment.destination_port
    })
}

#[inline(always)]
fn process_first_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    is_of_sctp: bool,
) -> Verdict {
    let found = carry::find_stored(tables, Direction::Forward, FlowPlace::ClientBuckets);
    let found = node::unless_of_another::<F, P, T>(packet, tables, found);
    let mut carried = carry::update_found_request(tables, found, packet.resolves());
    if carried == Carried::Nothing && carry::may_be_reply(tables) {
        carried = carry::find_stored(tables, Direction::Reverse, FlowPlace::ReplyIndex);
        if carried.is_found() {
            if node::is_forged_reply::<F, P, T>(packet, tables) {
                return drop_for(tables, Reason::SourceNotAllowed);
            }
            tables.call(Function::NoteReply);
        }
    }
    match carried {
        Carried::Found(decision) if !is_of_sctp || keeps_checksum(tables) => {
            Verdict::Next(NextStage::send(decision))
        }
        Carried::Found(_) => Verdict::Next(NextStage::unserved(tables, Reason::Fragment)),
        // An INIT, which opens a flow, is never a fragment.
        Carried::Nothing if is_of_sctp => {
            Verdict::Next(NextStage::unserved(tables, Reason::Fragment))
        }
        // It has ended. There is no other of the same client and frontend.
        Carried::Nothing if found.is_found() => Verdict::Next(NextStage::open(tables, false)),
        // Most clients have no flows in other buckets: then that stage continues with the one that
        // opens flows.
        Carried::Nothing => Verdict::Next(NextStage::spread(tables, Arrival::BY_LINK)),
        // Only tc has the stage.
        Carried::Failed(Reason::Moved) if !packet.resolves() => Verdict::Defer,
        Carried::Failed(Reason::Moved) => {
            let location = tables.draft().map_or(Location::NONE, |draft| draft.at);
            Verdict::Next(NextStage::redispatch(tables, location))
        }
        // tc releases the flow.
        Carried::Failed(Reason::BackendGone) if !packet.resolves() => Verdict::Defer,
        Carried::Failed(Reason::BackendGone) => {
            if let Some(draft) = tables.draft()
                && earlier::may_be_later(packet, tables, &draft.decision)
            {
                return Verdict::Next(NextStage::spread(tables, Arrival::BY_LINK));
            }
            send::refuse_gone::<F, P, T>(packet, tables, network)
        }
        Carried::Failed(reason) => drop_for(tables, reason),
    }
}

#[inline(always)]
pub fn store_fragment_ports<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    found: &Transport,
    segment: &Segment<F>,
) {
    let fragment = Fragment {
        source_port: segment.source_port,
        destination_port: segment.destination_port,
        seen: tables.now(),
        protocol: segment.headers.protocol,
        reserved: [0; 3],
    };
    tables.set_fragment(&fragment_key(found, segment.source, segment.destination), fragment);
}

#[inline(always)]
fn fragment_key<F: PacketFamily>(
    found: &Transport,
    source: F::Address,
    destination: F::Address,
) -> FragmentKey<F> {
    FragmentKey {
        source,
        destination,
        identification: found.identification,
        protocol: found.protocol,
        reserved: [0; 3],
    }
}

/// The function [`PacketFunction::Recall`]: false if the first fragment has not arrived.
#[inline(always)]
pub fn recall_fragment_ports<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> bool {
    let found = F::transport::<true, P>(packet, network);
    let Some(header) = packet.header::<F::Header>(network) else { return false };
    let (source, destination) = (header.source(), header.destination());
    let Some(fragment) = tables.fragment(&fragment_key(&found, source, destination)) else {
        return false;
    };
    if tables.now().since(fragment.seen) > Ticks::in_seconds(Fragment::LIFETIME) {
        return false;
    }
    let mut headers = found.headers;
    headers.protocol = fragment.protocol;
    let segment = Segment {
        headers,
        source,
        destination,
        source_port: fragment.source_port,
        destination_port: fragment.destination_port,
        signal: Signal::default(),
    };
    stored::store_segment::<F, T>(tables, &segment);
    true
}

#[inline(always)]
fn process_later_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let carried = if packet.call::<F>(PacketFunction::Recall, network, || {
        u32::from(recall_fragment_ports::<F, P, T>(packet, tables, network))
    }) != 0
    {
        Carried::call(tables, Function::FindArriving)
    } else {
        Carried::Failed(Reason::Fragment)
    };
    match carried {
        Carried::Found(_) if !keeps_checksum(tables) => {
            Verdict::Next(NextStage::unserved(tables, Reason::Fragment))
        }
        // Only first fragments cause ICMP errors.
        Carried::Found(_) => send::in_steps::<F, P, T>(
            packet,
            tables,
            network,
            aim_later_fragment::<F, P, T>,
            rewrite_recalled_fragment::<F, P, T>,
        ),
        // The first fragment may be on its way to tc, and open its flow there.
        Carried::Nothing if !packet.resolves() => Verdict::Defer,
        Carried::Nothing | Carried::Failed(Reason::Fragment) => {
            Verdict::Next(NextStage::unserved(tables, Reason::Fragment))
        }
        Carried::Failed(reason) => drop_for(tables, reason),
    }
}

#[inline(never)]
fn aim_later_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    out: &mut Out,
) -> Departure {
    packet.keep_whole();
    match stored::read_segment::<F, T>(tables, network) {
        Some(segment) => send::aim_without_errors(packet, tables, segment.headers, &segment, out),
        None => Departure::Ended(drop_for(tables, Reason::CorruptTable)),
    }
}

#[inline(never)]
fn rewrite_recalled_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Result<(), Reason> {
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let segment = stored::read_segment::<F, T>(tables, network);
    let segment = segment.ok_or(Reason::CorruptTable)?;
    rewrite::rewrite_later_fragment(packet, tables, &segment, &draft.decision)
}
