//! Packets of all kinds, written byte by byte.

use std::net::IpAddr;

use lb_common::header::protocol::{
    DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMP, ICMPV6, ROUTING, SCTP, TCP, UDP,
};

use crate::checksum::{self, address_octets};
use crate::universe::{
    self, BACKEND_PORTS, BACKENDS, CLIENT_PORTS, NODE_PORTS, PORTS, PROTOCOLS, client_address,
    node_address,
};
use crate::{Hook, Input, TransportAddress, tunnel};

/// The contents of a packet.
#[derive(Clone, Debug)]
struct DatagramContents {
    source: TransportAddress,
    destination: TransportAddress,
    ttl: u8,
    tos: u8,
    /// NOPs as IPv4 options, or the types of the IPv6 extension headers.
    between: Vec<u8>,
    tcp_flags: u8,
    /// TCP's sequence and acknowledgement numbers. The first is also SCTP's verification tag.
    numbers: [u32; 2],
    chunk: u8,
    /// Type and code of an ICMP message, and the word after its checksum.
    icmp: [u8; 6],
    payload: Vec<u8>,
    checksum: Checksum,
    fragment: Option<Fragment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksum {
    Right,
    None,
    Wrong,
}

/// Offset in units of eight bytes, whether more fragments follow, and the packet's identification.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    offset: u16,
    more: bool,
    id: u8,
}

/// Differences of sequence numbers. Mostly none; otherwise within the window, at its edges, or far
/// outside.
pub const SKEWS: [u32; 16] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1_400, 0xffff, 0x1_0000, 0x10_0000, 0x100_0000, 1 << 31, !0];

/// A packet as it would arrive at a hook, or a damaged one.
pub fn generate_packet(input: &mut Input, hook: Hook) -> Vec<u8> {
    let v6 = input.chance(128);
    let tags = input.choose(&[0, 0, 0, 0, 1, 2, 2, 3]);
    let datagram =
        if input.chance(40) { error(input, v6, hook) } else { generate_datagram(input, v6, hook) };
    let mut bytes = ethernet(tags, v6);
    let packet = datagram.write();
    // Before tc the device strips VLAN tags. The kernel can move headers of untagged packets only.
    let may_be_wrapped = hook == Hook::Forward || hook == Hook::Workload && tags == 0;
    if may_be_wrapped && input.chance(32) {
        bytes.extend(tunnel::wrap_in_tunnel(input, v6, &packet));
    } else {
        bytes.extend(packet);
    }
    match input.below(16) {
        12 => bytes.resize(bytes.len() + 1 + input.below(60), 0),
        13 => bytes.truncate(input.below(bytes.len().min(256))),
        14 => {
            for _ in 0..1 + input.below(3) {
                let at = input.below(bytes.len().min(160));
                bytes[at] = input.byte();
            }
        }
        _ => {}
    }
    bytes
}

/// The first packet of a connection, without options or fragments.
pub fn opening_packet(
    v6: bool,
    which: usize,
    (number, port): (usize, u16),
    service: usize,
) -> Vec<u8> {
    let protocol = PROTOCOLS[which];
    let end = |address, port| TransportAddress { address, port, protocol };
    let datagram = DatagramContents {
        source: end(client_address(v6, number), port),
        destination: end(universe::service_address(v6, service), PORTS[which]),
        ttl: 64,
        tos: 0,
        between: Vec::new(),
        tcp_flags: 0x02,
        numbers: [7, 9],
        chunk: 1,
        icmp: [0; 6],
        payload: Vec::new(),
        checksum: Checksum::Right,
        fragment: None,
    };
    let mut bytes = ethernet(0, v6);
    bytes.extend(datagram.write());
    bytes
}

/// The SYN of a connection in a tunnel from another node, which asks whether this one knows the connection.
pub fn tunnelled_question(
    v6: bool,
    which: usize,
    client: (usize, u16),
    service: usize,
    number: u8,
) -> Vec<u8> {
    let opening = opening_packet(v6, which, client, service);
    let mut bytes = ethernet(0, v6);
    let packet = &opening[bytes.len()..];
    bytes.extend(tunnel::wrap_question(v6, number, packet));
    bytes
}

fn ethernet(tags: usize, v6: bool) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 0x0d, 2, 0, 0, 0, 0, 0xc1];
    for tag in (0..tags).rev() {
        let ether_type = if tag > 0 { [0x88, 0xa8] } else { [0x81, 0x00] };
        bytes.extend(ether_type);
        bytes.extend([0, 100 + tag as u8]);
    }
    bytes.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    bytes
}

fn generate_datagram(input: &mut Input, v6: bool, hook: Hook) -> DatagramContents {
    let which = input.below(PROTOCOLS.len());
    let (one, other) = ends(input, v6, which);
    // Replies go in the opposite direction. Now and then a packet reaches the other hook.
    let outward = (hook == Hook::Reverse) != input.chance(24);
    let (source, destination) = if outward { (other, one) } else { (one, other) };
    let length = if input.chance(16) { 1400 } else { input.below(48) };
    let between =
        if v6 { extensions(input) } else { vec![1; 4 * input.choose(&[0, 0, 0, 0, 0, 1, 3, 10])] };
    let fragment = input.chance(24).then(|| Fragment {
        offset: input.choose(&[0, 0, 1, 3, 185, 8191]),
        more: input.chance(128),
        id: input.choose(&[1, 2]),
    });
    DatagramContents {
        source,
        destination,
        ttl: input.choose(&[64, 64, 64, 64, 255, 2, 1, 0]),
        tos: input.byte(),
        between,
        tcp_flags: input
            .choose(&[0x02, 0x10, 0x12, 0x18, 0x11, 0x04, 0x14, 0x02, 0x10, 0, 0xff, 3, 1, 8]),
        numbers: [7, 9].map(|number: u32| number.wrapping_add(input.choose(&SKEWS))),
        chunk: input.choose(&[1, 0, 2, 3, 6, 7, 8, 14, 10, 255]),
        icmp: [0; 6],
        payload: vec![input.byte(); length],
        checksum: input.choose(&[
            Checksum::Right,
            Checksum::Right,
            Checksum::Right,
            Checksum::Right,
            Checksum::Right,
            Checksum::Right,
            Checksum::None,
            Checksum::Wrong,
        ]),
        fragment,
    }
}

/// A client, and the frontend or other address that it connects to.
fn ends(input: &mut Input, v6: bool, which: usize) -> (TransportAddress, TransportAddress) {
    let protocol = PROTOCOLS[which];
    let end = |address, port| TransportAddress { address, port, protocol };
    let one = end(client_address(v6, input.below(4)), input.choose(&CLIENT_PORTS));
    let number = input.below(8);
    let other = match input.below(16) {
        0..8 => end(universe::service_address(v6, number), PORTS[which]),
        8..11 => end(node_address(v6, number), input.choose(&NODE_PORTS)),
        11..14 => {
            end(universe::backend_address(v6, number % BACKENDS), input.choose(&BACKEND_PORTS))
        }
        14 => end(universe::service_address(v6, number), input.choose(&[81, 0, 443, 80])),
        _ => end(universe::foreign_address(v6), PORTS[which]),
    };
    (one, other)
}

/// Types of IPv6 extension headers: up to five, one more than the data plane accepts.
fn extensions(input: &mut Input) -> Vec<u8> {
    let count = input.choose(&[0, 0, 0, 0, 0, 1, 2, 5]);
    let numbers = [HOP_BY_HOP, DESTINATION_OPTIONS, ROUTING, DESTINATION_OPTIONS, ROUTING];
    numbers[..count].to_vec()
}

/// An ICMP message that quotes the start of a packet in the opposite direction.
fn error(input: &mut Input, v6: bool, hook: Hook) -> DatagramContents {
    let quoted = generate_datagram(
        input,
        v6,
        if hook == Hook::Reverse { Hook::Forward } else { Hook::Reverse },
    );
    let mut quote = quoted.write();
    if input.chance(160) {
        let whole = quote.len() - quoted.payload.len();
        quote.truncate(whole.saturating_sub(input.choose(&[0, 12, 12, 16, 20, 24])));
    }
    let kinds: [[u8; 2]; 8] = if v6 {
        [[1, 4], [2, 0], [3, 0], [4, 1], [128, 0], [129, 0], [135, 0], [1, 0]]
    } else {
        [[3, 3], [3, 4], [11, 0], [12, 0], [8, 0], [0, 0], [5, 0], [3, 1]]
    };
    let [kind, code] = input.choose(&kinds);
    let protocol = if v6 { ICMPV6 } else { ICMP };
    // From a router on the path, or the receiver itself, to the sender of the quoted packet.
    let router = match input.below(3) {
        0 => quoted.destination.address,
        1 => client_address(v6, 1),
        _ => node_address(v6, 0),
    };
    DatagramContents {
        source: TransportAddress { address: router, port: 0, protocol },
        destination: TransportAddress { protocol, port: 0, ..quoted.source },
        between: Vec::new(),
        icmp: [kind, code, 0, 0, 5, 0x14],
        payload: quote,
        checksum: Checksum::Right,
        fragment: None,
        ttl: quoted.ttl,
        ..quoted
    }
}

impl DatagramContents {
    fn write(&self) -> Vec<u8> {
        let mut segment = self.transport();
        if let Some(fragment) = self.fragment
            && fragment.more
        {
            // Every fragment but the last is a multiple of eight bytes long.
            segment.truncate(segment.len() / 8 * 8);
        }
        match self.source.address {
            IpAddr::V4(_) => self.ipv4(segment),
            IpAddr::V6(_) => self.ipv6(segment),
        }
    }

    fn transport(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        let protocol = self.source.protocol;
        if matches!(protocol, TCP | UDP | SCTP) {
            segment.extend(self.source.port.to_be_bytes());
            segment.extend(self.destination.port.to_be_bytes());
        }
        let length = self.payload.len();
        match protocol {
            TCP => {
                segment.extend(self.numbers.into_iter().flat_map(u32::to_be_bytes));
                segment.extend([5 << 4, self.tcp_flags, 0xfa, 0xf0, 0, 0, 0, 0]);
            }
            UDP => {
                segment.extend((8 + length as u16).to_be_bytes());
                segment.extend([0; 2]);
            }
            SCTP => {
                segment.extend(self.numbers[0].to_be_bytes());
                segment.extend([0; 4]);
                segment.extend([self.chunk, 0]);
                segment.extend((4 + length as u16).to_be_bytes());
            }
            _ => {
                let [kind, code, rest @ ..] = self.icmp;
                segment.extend([kind, code, 0, 0]);
                segment.extend(rest);
            }
        }
        segment.extend(&self.payload);
        let (source, destination) = (self.source.address, self.destination.address);
        let right = checksum::transport_checksum(source, destination, protocol, &segment);
        if let Some(field) = checksum::checksum_field(protocol) {
            match self.checksum {
                Checksum::Right => segment[field].copy_from_slice(&right),
                Checksum::Wrong => {
                    segment[field].iter_mut().zip(right).for_each(|(at, byte)| *at = byte ^ 0x5a);
                }
                Checksum::None => {}
            }
        }
        segment
    }

    fn ipv4(&self, segment: Vec<u8>) -> Vec<u8> {
        let length = 20 + self.between.len();
        let mut header = vec![0x40 | (length / 4) as u8, self.tos];
        header.extend(((length + segment.len()) as u16).to_be_bytes());
        let (id, flags) = match self.fragment {
            Some(Fragment { offset, more, id }) => {
                (id, (offset & 0x1fff) | if more { 0x2000 } else { 0 })
            }
            None => (0, 0x4000),
        };
        header.extend([0, id]);
        header.extend(flags.to_be_bytes());
        header.extend([self.ttl, self.source.protocol, 0, 0]);
        header.extend(address_octets(self.source.address));
        header.extend(address_octets(self.destination.address));
        header.extend(&self.between);
        let sum = checksum::internet_checksum(&[&header]).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        header.extend(segment);
        header
    }

    fn ipv6(&self, segment: Vec<u8>) -> Vec<u8> {
        let mut numbers = self.between.clone();
        numbers.extend(self.fragment.map(|_| FRAGMENT));
        numbers.push(self.source.protocol);
        let mut chain = Vec::new();
        for pair in numbers.windows(2) {
            if pair[0] == FRAGMENT {
                let Some(Fragment { offset, more, id }) = self.fragment else { continue };
                let field = (offset << 3 | u16::from(more)).to_be_bytes();
                chain.extend([pair[1], 0, field[0], field[1], 0, 0, 0, id]);
            } else {
                // Padding options.
                chain.extend([pair[1], 1, 1, 12]);
                chain.extend([0; 12]);
            }
        }
        let mut header = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
        header.extend(((chain.len() + segment.len()) as u16).to_be_bytes());
        header.extend([numbers[0], self.ttl]);
        header.extend(address_octets(self.source.address));
        header.extend(address_octets(self.destination.address));
        header.extend(chain);
        header.extend(segment);
        header
    }
}
