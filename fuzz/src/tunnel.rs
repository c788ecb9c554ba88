//! Writes and reads tunnels independently of the data plane: RFC 2003, RFC 2473, and Generic UDP
//! Encapsulation, variant 1, or variant 0 with a key.

use std::net::IpAddr;

use crate::checksum::{address_octets, internet_checksum};
use crate::inspect::{self, ParsedDatagram};
use crate::universe::{self, BACKEND_PORTS, BACKENDS};
use crate::{Input, backend_tag};

const IPIP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const UDP: u8 = 17;
const GUE: u16 = 6080;

/// Bytes before the inner packet in variant 0: version and length, protocol, flags, key.
const KEYED: usize = 12;

/// What marks a returned question, beside its number.
const RETURNED: u8 = 0x80;

/// The possible tunnel keys of the tables: current and accepted.
pub const KEYS: [[u64; 2]; 4] = [[0, 0], [0, 0], [7, 0], [7, 8]];

/// The keys with which [`wrap_question`] is accepted.
pub const ASKING_KEYS: [u64; 2] = KEYS[2];

/// Encapsulates a packet as another node would, or with a source address that is no node's.
pub fn wrap_in_tunnel(input: &mut Input, v6: bool, packet: &[u8]) -> Vec<u8> {
    let source = match input.below(8) {
        0 => universe::foreign_address(v6),
        number => universe::peer_address(v6, number),
    };
    let destination = universe::node_address(v6, input.below(2));
    let known = backend_tag(universe::backend_address(v6, input.below(BACKENDS)), BACKEND_PORTS[0]);
    let tag = input.choose(&[known, known, known, 0x1234]).to_be_bytes();
    let class = input.choose(&[0, 0, 1, 2, 3, 0xb8]);
    let in_udp = input.chance(128);
    let mut bytes = Vec::new();
    let key: Option<u64> =
        if in_udp { input.choose(&[None, Some(7), Some(8), Some(9)]) } else { None };
    if in_udp {
        let length = (8 + key.map_or(0, |_| KEYED) + packet.len()) as u16;
        for number in [input.choose(&[50_000, 50_001]), GUE, length, 0u16] {
            bytes.extend(number.to_be_bytes());
        }
    }
    if let Some(key) = key {
        // Sometimes a probe, or its reply.
        let kind =
            if input.chance(32) { [0x22, input.choose(&[1, 1, 2, 0])] } else { [2, in_ip(v6)] };
        bytes.extend(kind);
        // Sometimes a question about the connection, or one that is returned.
        let marks = [1, 2, 3, RETURNED | 1, RETURNED | 2, RETURNED | 3, 4];
        bytes.extend([0, if input.chance(112) { input.choose(&marks) } else { 0 }]);
        bytes.extend(key.to_be_bytes());
    }
    bytes.extend(packet);
    let protocol = if in_udp { UDP } else { in_ip(v6) };
    outer(v6, [source, destination], protocol, class, tag, &bytes)
}

/// A packet about whose connection another node asks, with the key of [`ASKING_KEYS`].
pub fn wrap_question(v6: bool, number: u8, packet: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [50_000, GUE, (8 + KEYED + packet.len()) as u16, 0] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend([2, in_ip(v6), 0, number]);
    bytes.extend(ASKING_KEYS[0].to_be_bytes());
    bytes.extend(packet);
    outer(
        v6,
        [universe::peer_address(v6, 0), universe::node_address(v6, 0)],
        UDP,
        0,
        [0; 2],
        &bytes,
    )
}

/// The outer header of a tunnel, and what is behind it.
fn outer(
    v6: bool,
    [source, destination]: [IpAddr; 2],
    protocol: u8,
    class: u8,
    tag: [u8; 2],
    bytes: &[u8],
) -> Vec<u8> {
    let length = bytes.len() as u16;
    let mut header = if v6 {
        let mut header = vec![0x60 | class >> 4, class << 4, tag[0], tag[1]];
        header.extend(length.to_be_bytes());
        header.extend([protocol, 64]);
        header
    } else {
        let mut header = vec![0x45, class];
        header.extend((20 + length).to_be_bytes());
        header.extend([tag[0], tag[1], 0x40, 0, 64, protocol, 0, 0]);
        header
    };
    header.extend(address_octets(source));
    header.extend(address_octets(destination));
    if !v6 {
        let sum = internet_checksum(&[&header]).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
    }
    header.extend(bytes);
    header
}

fn in_ip(v6: bool) -> u8 {
    if v6 { IPV6_IN_IP } else { IPIP }
}

/// A frame with a packet in a tunnel.
pub struct Tunnel {
    pub outer: ParsedDatagram,
    /// The frame without the tunnel.
    pub inner: Vec<u8>,
    /// The traffic class of the outer header.
    pub class: u8,
    /// Beside a key: the number of a question, and whether it is returned; 0: neither.
    mark: u8,
}

impl Tunnel {
    pub fn read(frame: &[u8]) -> Option<Self> {
        let outer = inspect::parse_frame(frame).ok()?;
        let plain = outer.transport == outer.network + if outer.v6 { 40 } else { 20 };
        let at = match outer.protocol {
            // Variant 1 has the inner packet's version (4 or 6) here.
            UDP if outer.ports(frame)?.1 == GUE && frame.get(outer.transport + 8)? >> 6 == 0 => {
                outer.transport + 8 + KEYED
            }
            UDP if outer.ports(frame)?.1 == GUE => outer.transport + 8,
            protocol if protocol == in_ip(outer.v6) => outer.transport,
            _ => return None,
        };
        inspect::parse_datagram(frame, at, outer.v6).ok()?;
        let inner = [&frame[..outer.network], &frame[at..]].concat();
        let class = traffic_class(frame, &outer);
        let mark = if at == outer.transport + 8 + KEYED { frame[outer.transport + 11] } else { 0 };
        plain.then_some(Self { outer, inner, class, mark })
    }

    /// Whether the outer checksums are right. UDP must have none (RFC 6935).
    pub fn is_right(&self, frame: &[u8]) -> bool {
        let ParsedDatagram { v6, network, transport, protocol, .. } = self.outer;
        (v6 || internet_checksum(&[&frame[network..transport]]) == 0)
            && (protocol != UDP || frame[transport + 6..transport + 8] == [0; 2])
    }
}

/// The traffic class of an IP packet.
pub fn traffic_class(frame: &[u8], packet: &ParsedDatagram) -> u8 {
    let header = &frame[packet.network..];
    if packet.v6 { header[0] << 4 | header[1] >> 4 } else { header[1] }
}

/// The frame with the traffic class of another, and the IPv4 checksum updated. Used for packets
/// that take over a congestion mark from their tunnel (RFC 6040, figure 4).
pub fn with_class_of(frame: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let (Ok(packet), Ok(like)) = (inspect::parse_frame(frame), inspect::parse_frame(other)) else {
        return bytes;
    };
    let class = traffic_class(other, &like);
    let header = &mut bytes[packet.network..];
    if packet.v6 {
        header[0] = header[0] & 0xf0 | class >> 4;
        header[1] = header[1] & 0x0f | class << 4;
        return bytes;
    }
    // A header may be cut off.
    let whole = header.get(..packet.transport - packet.network);
    let right = whole.is_some_and(|whole| internet_checksum(&[whole]) == 0);
    header[1] = class;
    let sum = if right {
        header[10..12].fill(0);
        internet_checksum(&[&header[..packet.transport - packet.network]]).to_be_bytes()
    } else {
        // The packet need not be right: a checksum over octets that were cut off, or that is wrong,
        // is updated for the changed class only. What it is wrong by stays, in the octets that are
        // there; otherwise the field is not what is expected.
        let end = header.len().min(packet.transport - packet.network);
        let difference = |header: &[u8]| internet_checksum(&[&header[..end]]) % 0xffff;
        let kept = frame[packet.network..].to_vec();
        let sum = [other[like.network + 10], other[like.network + 11]];
        header[10..12].copy_from_slice(&sum);
        if difference(header) == difference(&kept) { sum } else { [kept[10], kept[11]] }
    };
    header[10..12].copy_from_slice(&sum);
    bytes
}

/// Whether a frame is a probe of this node's data plane, and another one the same as it is returned:
/// with the ends swapped, of another type, and with a checksum that is wrong by what it was wrong by.
pub fn is_returned_probe(before: &[u8], after: &[u8]) -> bool {
    let Ok(probe) = inspect::parse_frame(before) else { return false };
    let at = probe.transport + 8;
    let is_probe = probe.protocol == UDP
        && probe.ports(before).is_some_and(|(_, port)| port == GUE)
        && before.get(at..at + 2) == Some(&[0x22, 1]);
    let mut expected = before.to_vec();
    if !is_probe || after.len() != before.len() {
        return false;
    }
    expected[..12].rotate_left(6);
    let (addresses, length) =
        if probe.v6 { (probe.network + 8, 32) } else { (probe.network + 12, 8) };
    expected[addresses..addresses + length].rotate_left(length / 2);
    expected[probe.transport..probe.transport + 4].rotate_left(2);
    expected[at + 1] = 2;
    let sum = probe.transport + 6..at;
    let field = |bytes: &[u8]| u16::from_be_bytes([bytes[sum.start], bytes[sum.start + 1]]);
    // The type is the second octet of a word, and grows by one; the sum, which is complemented, falls
    // by one. 0 means that there is none.
    let fallen = match field(before) {
        0 => 0,
        old => u32::from(old).wrapping_sub(1) % 0xffff,
    };
    let sums_fit =
        u32::from(field(after)) % 0xffff == fallen && (field(before) == 0) == (field(after) == 0);
    expected[sum.clone()].copy_from_slice(&after[sum]);
    sums_fit && expected == after
}

/// Whether a frame is a question about a connection, and another one the same as it is returned.
pub fn is_returned_question(before: &[u8], after: &[u8]) -> bool {
    let Some(Tunnel { outer, mark, .. }) = Tunnel::read(before) else { return false };
    if !(1..=3).contains(&mark) || after.len() != before.len() {
        return false;
    }
    let mut expected = before.to_vec();
    expected[..12].rotate_left(6);
    let (addresses, length) =
        if outer.v6 { (outer.network + 8, 32) } else { (outer.network + 12, 8) };
    expected[addresses..addresses + length].rotate_left(length / 2);
    expected[outer.transport + 11] |= RETURNED;
    // Tunnels have no checksum of UDP; one that is there is updated.
    let sum = outer.transport + 6..outer.transport + 8;
    let has_sum = before[sum.clone()] != [0; 2];
    if has_sum {
        expected[sum.clone()].copy_from_slice(&after[sum]);
    }
    expected == after
}

/// Whether a packet from a tunnel may leave in another one: as a question about its connection with a
/// higher number than the packet had. A question itself may not.
pub fn may_be_asked(before: &Tunnel, after: &Tunnel) -> bool {
    let (number, is_question) = (before.mark & 0x7f, (1..RETURNED).contains(&before.mark));
    !is_question && (1..=3).contains(&after.mark) && after.mark > number
}

/// Whether decapsulation may change the traffic class from `before` to `after`. The DSCP never
/// changes. A congestion mark is set only on packets of ECN-capable transports.
pub fn may_become(before: u8, after: u8, outer: u8) -> bool {
    let (old, new, met) = (before & 3, after & 3, outer & 3);
    before >> 2 == after >> 2
        && (old == new && (met != 3 || old == 3)
            || old != 0 && new == 3 && met == 3
            || old == 2 && new == 1 && met == 1)
}

/// Whether the source is an address of this node, and the destination one of another node.
pub fn between_nodes(outer: &ParsedDatagram) -> bool {
    let is_node = |address: IpAddr| (0..2).any(|n| universe::node_address(outer.v6, n) == address);
    let is_peer = |address: IpAddr| (0..2).any(|n| universe::peer_address(outer.v6, n) == address);
    is_node(outer.source) && is_peer(outer.destination)
}
