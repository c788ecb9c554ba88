//! Neighbour discovery (RFC 4861) and duplicate address detection (RFC 4862), and the reports by
//! which switches learn which multicast groups a port wants (MLDv2, RFC 3810).

use super::arp::LinkAddress;
use super::made::Answering;
use super::packet::Packet;
use crate::branchless::{choose, is_zero};
use crate::family::{Address, Address6, Family, V6};
use crate::header::{
    Ethernet, Ipv6, LINK_HOP_LIMIT, LinkOption, NeighbourMessage, NetworkHeader, protocol,
};
use crate::verifier::hide;

pub const SOLICITATION: u8 = 135;
pub const ADVERTISEMENT: u8 = 136;

const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;

const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// The longest message that is read, in octets. Senders with longer ones, such as signed messages
/// (RFC 3971), are answered by no announcement.
const LONGEST: usize = size_of::<NeighbourMessage>() + 13 * 8;

pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

#[inline(always)]
pub fn is_multicast(address: Address6) -> bool {
    address.octets[0] == 0xff
}

/// The group to which solicitations for an address are sent.
#[inline(always)]
pub fn solicited_node(address: Address6) -> Address6 {
    let [.., a, b, c] = address.octets;
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c].into()
}

/// The link-layer address of a multicast group.
#[inline(always)]
pub fn group_link(group: Address6) -> LinkAddress {
    let [.., a, b, c, d] = group.octets;
    [0x33, 0x33, a, b, c, d]
}

/// A solicitation or advertisement that is valid by RFC 4861, 7.1.
pub struct Message {
    pub is_solicitation: bool,
    /// Unspecified in duplicate address detection.
    pub source: Address6,
    pub target: Address6,
    /// The link-layer address of the target that an advertisement gives; otherwise zeros.
    pub target_link: LinkAddress,
}

/// Reads the message in the packet at `network`. Extension headers are not accepted, which includes
/// fragments (RFC 6980).
#[inline(always)]
pub fn read_ndp<P: Packet>(packet: &P, network: usize) -> Option<Message> {
    let header: &Ipv6 = packet.header(network)?;
    let is_local = header.version_and_class[0] >> 4 == 6
        && header.next_header == protocol::ICMPV6
        && header.hop_limit == LINK_HOP_LIMIT;
    let length = usize::from(u16::from_be_bytes(header.payload_length));
    let whole = length >= size_of::<NeighbourMessage>() && length <= LONGEST && length % 8 == 0;
    if !is_local || !whole {
        return None;
    }
    let (source, destination) = (header.source(), header.destination());
    let at = network + size_of::<Ipv6>();
    let message: &NeighbourMessage = packet.header(at)?;
    let (kind, flags, target) = (message.kind, message.flags, message.target());
    let is_solicitation = kind == SOLICITATION;
    let is_known = (is_solicitation || kind == ADVERTISEMENT) && message.code == 0;
    if !is_known || is_multicast(target) {
        return None;
    }
    // Hidden: otherwise the verifier would follow what comes after once for each end of the sum.
    let summed = hide(length as u32, source.words()[0] as u32) as usize;
    if !is_whole(packet, at, summed, source, destination) {
        return None;
    }
    let links = links(packet, at, length)?;
    if is_solicitation {
        let is_detection = source == Address6::default();
        let to_group = destination == solicited_node(target);
        if is_detection && (!to_group || links.has_source) {
            return None;
        }
        if !is_multicast(destination) && destination != target {
            return None;
        }
    } else if is_multicast(destination) && flags[0] & SOLICITED != 0 {
        return None;
    }
    Some(Message { is_solicitation, source, target, target_link: links.target })
}

/// Whether the checksum is right.
#[inline(never)]
fn is_whole<P: Packet>(
    packet: &P,
    at: usize,
    length: usize,
    source: Address6,
    destination: Address6,
) -> bool {
    let mut sum = V6::pseudo_header(source, destination, length as u16);
    for word in 0..LONGEST / 4 {
        if word * 4 >= length {
            break;
        }
        let Some(octets) = packet.header::<[u8; 4]>(at + word * 4) else { return false };
        sum = sum.octets(*octets);
    }
    sum.checksum() == [0; 2]
}

/// Link-layer addresses in options.
struct Links {
    has_source: bool,
    target: LinkAddress,
}

/// Reads the options of a message that is `length` octets long; `None` if one of them has no
/// length, or is cut off.
#[inline(always)]
fn links<P: Packet>(packet: &P, at: usize, length: usize) -> Option<Links> {
    // Without branches: the verifier would follow each combination of options.
    let (mut has_source, mut target) = (0, 0);
    let mut offset = size_of::<NeighbourMessage>();
    for _ in 0..(LONGEST - size_of::<NeighbourMessage>()) / 8 {
        if offset >= length {
            break;
        }
        let option: &LinkOption = packet.header(packet.blur(at + offset))?;
        let units = usize::from(option.length);
        if units == 0 || offset + units * 8 > length {
            return None;
        }
        has_source |= is_zero(u64::from(option.kind ^ SOURCE_LINK));
        let is_target = is_zero(u64::from((option.kind ^ TARGET_LINK) | (option.length ^ 1)));
        let [a, b, c, d, e, f] = option.address;
        target = choose(is_target, u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), target);
        offset += units * 8;
    }
    let [a, b, c, d, e, f, ..] = target.to_le_bytes();
    let links = Links { has_source: has_source != 0, target: [a, b, c, d, e, f] };
    (offset == length).then_some(links)
}

/// The length of an advertisement with the target's link-layer address.
const ANSWER: u16 = (size_of::<NeighbourMessage>() + size_of::<LinkOption>()) as u16;

/// The headers of such an advertisement, from IPv6 on.
#[repr(C)]
struct Advertisement {
    network: Ipv6,
    message: NeighbourMessage,
    option: LinkOption,
}

/// The advertisement by which `own` says that it has the address `target`.
#[inline(always)]
fn advertised(
    target: Address6,
    destination: Address6,
    own: LinkAddress,
    flags: u8,
) -> Advertisement {
    let mut network = V6::header(target, destination, protocol::ICMPV6, ANSWER);
    network.hop_limit = LINK_HOP_LIMIT;
    let [a, b, c, d, e, f] = own;
    let checksum = V6::pseudo_header(target, destination, ANSWER)
        .word(u16::from(ADVERTISEMENT) << 8)
        .octets([flags, 0, 0, 0])
        .address(target)
        .octets([TARGET_LINK, 1, a, b])
        .octets([c, d, e, f])
        .checksum();
    Advertisement {
        network,
        message: NeighbourMessage {
            kind: ADVERTISEMENT,
            code: 0,
            checksum,
            flags: [flags, 0, 0, 0],
            target: target.octets,
        },
        option: LinkOption { kind: TARGET_LINK, length: 1, address: own },
    }
}

/// Turns a solicitation into the advertisement that its sender gets from `own`; all nodes if it is
/// from duplicate address detection.
#[inline(always)]
pub fn write_ndp_advertisement<P: Packet>(
    packet: &mut P,
    network: usize,
    message: &Message,
    own: LinkAddress,
) -> Option<()> {
    let end = (network + size_of::<Advertisement>()) as u32;
    if packet.length() != end {
        packet.resize(end)?;
    }
    let to_all = message.source == Address6::default();
    let destination = if to_all { ALL_NODES.into() } else { message.source };
    let flags = if to_all { OVERRIDE } else { SOLICITED | OVERRIDE };
    let Advertisement { network: header, message, option } =
        advertised(message.target, destination, own, flags);
    *packet.header_mut::<Ipv6>(network)? = header;
    let at = network + size_of::<Ipv6>();
    *packet.header_mut::<NeighbourMessage>(at)? = message;
    *packet.header_mut::<LinkOption>(at + size_of::<NeighbourMessage>())? = option;
    let ethernet: &mut Ethernet = packet.header_mut(0)?;
    ethernet.destination = if to_all { group_link(destination) } else { ethernet.source };
    ethernet.source = own;
    Some(())
}

#[repr(C)]
struct Framed<T> {
    ethernet: Ethernet,
    packet: T,
}

/// The headers of a solicitation without options, from IPv6 on.
#[repr(C)]
struct Solicitation {
    network: Ipv6,
    message: NeighbourMessage,
}

pub const ADVERTISEMENT_FRAME: usize = size_of::<Framed<Advertisement>>();
pub const PROBE_FRAME: usize = size_of::<Framed<Solicitation>>();
const _: () = assert!(ADVERTISEMENT_FRAME == 86 && PROBE_FRAME == 78);

fn frame_ndp<T>(own: LinkAddress, to: LinkAddress, packet: T) -> Framed<T> {
    let ether_type = V6::ETHER_TYPE.to_be_bytes();
    Framed { ethernet: Ethernet { destination: to, source: own, ether_type }, packet }
}

/// An unsolicited advertisement to all nodes: an address is `own`'s from now on.
pub fn ndp_announcement(own: LinkAddress, address: Address6) -> [u8; ADVERTISEMENT_FRAME] {
    let all = ALL_NODES.into();
    let framed = frame_ndp(own, group_link(all), advertised(address, all, own, OVERRIDE));
    // SAFETY: headers of octets without padding, as many as asserted.
    unsafe { core::mem::transmute(framed) }
}

/// A probe as in duplicate address detection: asks who uses an address, without claiming it. To
/// the address's group, or to the one host `to`. The answer goes to all nodes.
pub fn ndp_probe(
    own: LinkAddress,
    address: Address6,
    to: Option<LinkAddress>,
) -> [u8; PROBE_FRAME] {
    const LENGTH: u16 = size_of::<NeighbourMessage>() as u16;
    let (source, group) = (Address6::default(), solicited_node(address));
    let mut network = V6::header(source, group, protocol::ICMPV6, LENGTH);
    network.hop_limit = LINK_HOP_LIMIT;
    let checksum = V6::pseudo_header(source, group, LENGTH)
        .word(u16::from(SOLICITATION) << 8)
        .address(address)
        .checksum();
    let message = NeighbourMessage {
        kind: SOLICITATION,
        code: 0,
        checksum,
        flags: [0; 4],
        target: address.octets,
    };
    let to = to.unwrap_or(group_link(group));
    let framed = frame_ndp(own, to, Solicitation { network, message });
    // SAFETY: headers of octets without padding, as many as asserted.
    unsafe { core::mem::transmute(framed) }
}

/// The most groups that one report can have in a packet of 1,280 octets.
pub const GROUPS_PER_REPORT: usize = (1280 - 40 - 8 - 8) / 20;

/// A report that this interface wants these groups, at most [`GROUPS_PER_REPORT`], from all
/// sources. `source` is a link-local address: routers ignore reports from others.
#[cfg(feature = "std")]
pub fn group_report(own: LinkAddress, source: Address6, groups: &[Address6]) -> std::vec::Vec<u8> {
    const REPORTS: Address6 =
        Address6 { octets: [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16] };
    const REPORT: u8 = 143;
    /// Everything except the sources of an empty list, as news.
    const CHANGE_TO_EXCLUDE: u8 = 4;
    /// ICMPv6 follows; the router alert for MLD; padding.
    const ROUTER_ALERT: [u8; 8] = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

    let groups = &groups[..groups.len().min(GROUPS_PER_REPORT)];
    let length = (8 + 20 * groups.len()) as u16;
    let mut sum = V6::pseudo_header(source, REPORTS, length)
        .word(u16::from(REPORT) << 8)
        .word(groups.len() as u16);
    let mut frame = std::vec::Vec::new();
    frame.extend(group_link(REPORTS));
    frame.extend(own);
    frame.extend(V6::ETHER_TYPE.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((length + ROUTER_ALERT.len() as u16).to_be_bytes());
    frame.extend([protocol::HOP_BY_HOP, 1]);
    frame.extend(source.octets);
    frame.extend(REPORTS.octets);
    frame.extend(ROUTER_ALERT);
    let checksum = frame.len() + 2;
    frame.extend([REPORT, 0, 0, 0, 0, 0]);
    frame.extend((groups.len() as u16).to_be_bytes());
    for group in groups {
        sum = sum.word(u16::from(CHANGE_TO_EXCLUDE) << 8).address(*group);
        frame.extend([CHANGE_TO_EXCLUDE, 0, 0, 0]);
        frame.extend(group.octets);
    }
    frame[checksum..checksum + 2].copy_from_slice(&sum.checksum());
    frame
}
