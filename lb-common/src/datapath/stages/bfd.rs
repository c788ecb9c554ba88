//! Bidirectional forwarding detection (BFD): answers the packets of sessions that are up, so that
//! neither a busy machine nor a restart of the agent is taken for a broken path.
//!
//! The agent says for each session what its peer sends and what the answer is. Whatever differs
//! passes unmodified to the agent's socket. An answer goes only to the peer, for a packet with both
//! discriminators that is as long, so nothing limits its rate.

use core::mem::offset_of;

use crate::checksum::Delta;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::link;
use crate::datapath::wire::outer::{Outer, UDP};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;
use crate::header::{Bfd, LINK_HOP_LIMIT, NetworkHeader, Udp, protocol};
use crate::layout::{BfdSession, Device, Reason};

const LENGTH: u16 = (size_of::<Udp>() + size_of::<Bfd>()) as u16;

/// Whether the packet may belong to a session. Tested late, because a Service may use the port.
#[inline(always)]
pub fn is_bfd<F: PacketFamily>(segment: &Segment<F>) -> bool {
    segment.headers.is_datagram() && is_port(segment.destination_port)
}

/// Whether datagrams to this port may belong to a session.
#[inline(always)]
pub fn is_port(port: u16) -> bool {
    port == Bfd::ONE_HOP || port == Bfd::SEVERAL_HOPS
}

#[inline(always)]
pub fn answer_bfd<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    packet.keep_whole();
    let Some((session, received)) = find_bfd_session::<F, P, T>(packet, tables, network) else {
        return Verdict::Pass;
    };
    // XDP sees packets on the interface below: tc sees them on the VLAN's or the bond's. If they
    // cannot be marked for tc, they pass to the agent.
    if session.device != 0 && session.device != packet.device() {
        return Verdict::Yield;
    }
    let can_send = packet.resolves()
        || tables.device(packet.device()).is_some_and(|it| it.flags & Device::TRANSMIT != 0);
    if !can_send {
        return Verdict::Yield;
    }
    tables.note_heard(received.receiver());
    match write_bfd_reply::<F, P>(packet, network, &session, &received) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

/// The session of a packet that is to be answered on the session's interface, and what the packet
/// says.
#[inline(always)]
fn find_bfd_session<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> Option<(BfdSession, Bfd)> {
    let header: &F::Header = packet.header(network)?;
    if !F::is_plain(header, protocol::UDP) || !F::is_whole(header) {
        return None;
    }
    let (source, destination) = (header.source(), header.destination());
    let hop_limit = header.hop_limit();
    let at = network + size_of::<F::Header>();
    let udp: &Udp = packet.header(at)?;
    let is_whole = u16::from_be_bytes(udp.length) == LENGTH
        && header.length() == (size_of::<F::Header>() as u32) + u32::from(LENGTH);
    let port = u16::from_be_bytes(udp.ports.destination);
    let received: Bfd = *packet.header(at + UDP)?;
    let session = tables.bfd_session(received.receiver())?;
    let is_of_session = is_whole
        && session.peer == source.into()
        && session.local == destination.into()
        && session.destination_port == port
        && session.min_hop_limit <= hop_limit;
    if !is_of_session || session.deadline <= tables.since_boot() {
        return None;
    }
    is_expected(&session, &received).then_some((session, received))
}

/// The peer may poll while it says nothing new.
#[inline(always)]
fn is_expected(session: &BfdSession, received: &Bfd) -> bool {
    let flags = received.state_and_flags & !Bfd::POLL;
    let plain = Bfd { state_and_flags: flags, ..*received }.words();
    let expected = session.expected.words();
    let mut difference = 0;
    for word in 0..plain.len() {
        difference |= u32::from_ne_bytes(plain[word]) ^ u32::from_ne_bytes(expected[word]);
    }
    difference == 0
}

#[inline(always)]
fn write_bfd_reply<F: Outer, P: Packet>(
    packet: &mut P,
    network: usize,
    session: &BfdSession,
    received: &Bfd,
) -> Option<()> {
    let mut answer = session.answer;
    if received.state_and_flags & Bfd::POLL != 0 {
        answer.state_and_flags |= Bfd::FINAL;
    }
    let header: &mut F::Header = packet.header_mut(network)?;
    // Neither address changes a sum, nor does the port to which both send.
    let (source, destination) = (header.source(), header.destination());
    header.set_source(destination);
    header.set_destination(source);
    header.set_hop_limit(LINK_HOP_LIMIT);
    let at = network + size_of::<F::Header>();
    let udp: &mut Udp = packet.header_mut(at)?;
    let mut delta = Delta::of_port(u16::from_be_bytes(udp.ports.source), session.source_port);
    udp.ports.source = session.source_port.to_be_bytes();
    let (old, new) = (received.words(), answer.words());
    for word in 0..old.len() {
        delta = delta.plus(Delta::of_octets(old[word], new[word]));
    }
    *packet.header_mut::<Bfd>(at + UDP)? = answer;
    link::send_back(packet)?;
    let checksum = at + offset_of!(Udp, checksum);
    packet.update_transport_checksum::<F>(checksum, Delta::default(), delta, true)
}
