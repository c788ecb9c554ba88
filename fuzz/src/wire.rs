//! Writes and reads Ethernet frames with IPv4 and TCP or UDP, without allocating: a flood has ten
//! million of them.

use std::net::Ipv4Addr;

use crate::checksum;
use lb_common::header::protocol::{IPIP, TCP, UDP};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
/// Not scaled: no window scale is negotiated.
const WINDOW: [u8; 2] = [0xfa, 0xf0];

/// An address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ipv4End {
    pub address: Ipv4Addr,
    pub port: u16,
}

impl Ipv4End {
    pub const fn new(address: [u8; 4], port: u16) -> Self {
        let [a, b, c, d] = address;
        Self { address: Ipv4Addr::new(a, b, c, d), port }
    }
}

/// A TCP segment or UDP datagram with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: Ipv4End,
    pub destination: Ipv4End,
    pub protocol: u8,
    /// The next three are fields of TCP; 0 in UDP.
    pub flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// Payload bytes, at most 255. Each payload byte equals the length.
    pub length: u8,
}

impl Packet {
    pub fn tcp(source: Ipv4End, destination: Ipv4End, flags: u8, sequence: u32) -> Self {
        Self { source, destination, protocol: TCP, flags, sequence, acknowledgement: 0, length: 0 }
    }

    pub fn udp(source: Ipv4End, destination: Ipv4End, length: u8) -> Self {
        Self { protocol: UDP, length, ..Self::tcp(source, destination, 0, 0) }
    }

    /// Sets the flag ACK and the acknowledgement number.
    pub fn acknowledging(self, acknowledgement: u32) -> Self {
        Self { flags: self.flags | ACK, acknowledgement, ..self }
    }

    pub fn with_payload(self, length: u8) -> Self {
        Self { length, ..self }
    }

    /// The sequence number after this segment.
    pub fn end_of_sequence(&self) -> u32 {
        let control = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.sequence.wrapping_add(u32::from(self.length) + control)
    }

    pub fn write(&self, bytes: &mut Vec<u8>) {
        let header = if self.protocol == TCP { 20 } else { 8 };
        let length = (header + usize::from(self.length)) as u16;
        bytes.clear();
        bytes.extend([2, 0, 0, 0, 0, 0x0d, 2, 0, 0, 0, 0, 0xc1, 0x08, 0x00]);
        bytes.extend([0x45, 0]);
        bytes.extend((IPV4 as u16 + length).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, self.protocol, 0, 0]);
        bytes.extend(self.source.address.octets());
        bytes.extend(self.destination.address.octets());
        let sum = checksum::internet_checksum(&[&bytes[ETHERNET..]]).to_be_bytes();
        bytes[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);

        bytes.extend(self.source.port.to_be_bytes());
        bytes.extend(self.destination.port.to_be_bytes());
        if self.protocol == TCP {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend(self.acknowledgement.to_be_bytes());
            bytes.extend([5 << 4, self.flags]);
            bytes.extend(WINDOW);
            bytes.extend([0; 4]);
        } else {
            bytes.extend(length.to_be_bytes());
            bytes.extend([0; 2]);
        }
        bytes.resize(ETHERNET + IPV4 + usize::from(length), self.length);
        let at = ETHERNET + IPV4 + if self.protocol == TCP { 16 } else { 6 };
        let sum = transport_sum(&bytes[ETHERNET..]);
        let sum = if self.protocol == UDP && sum == 0 { 0xffff } else { sum };
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Reads a frame; `None` if a length or checksum is wrong.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_ip(bytes.get(ETHERNET..)?)
    }

    /// Reads the packet inside an IP-in-IP tunnel, and the tunnel's destination.
    pub fn read_tunnelled(bytes: &[u8]) -> Option<(Self, Ipv4Addr)> {
        let ip = bytes.get(ETHERNET..)?;
        let outer = ip.get(..IPV4)?;
        let right = outer[9] == IPIP && checksum::internet_checksum(&[outer]) == 0;
        let node = Ipv4Addr::new(outer[16], outer[17], outer[18], outer[19]);
        right.then_some((Self::read_ip(&ip[IPV4..])?, node))
    }

    fn read_ip(ip: &[u8]) -> Option<Self> {
        let header = ip.get(..IPV4)?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let transport = ip.get(IPV4..length)?;
        if checksum::internet_checksum(&[header]) != 0 || transport_sum(&ip[..length]) != 0 {
            return None;
        }
        let protocol = header[9];
        let minimum = if protocol == TCP { 20 } else { 8 };
        let payload = transport.get(minimum..)?;
        let short = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let long = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        let address = |at: usize| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
        let is_tcp = protocol == TCP;
        let whole = payload.iter().all(|byte| usize::from(*byte) == payload.len());
        whole.then(|| Self {
            source: Ipv4End::new(address(12), short(0)),
            destination: Ipv4End::new(address(16), short(2)),
            protocol,
            flags: if is_tcp { transport[13] } else { 0 },
            sequence: if is_tcp { long(4) } else { 0 },
            acknowledgement: if is_tcp { long(8) } else { 0 },
            length: payload.len() as u8,
        })
    }
}

/// Internet checksum of the transport segment in a whole IPv4 packet. 0 if its checksum field is
/// right; with a zero field, the value for it.
fn transport_sum(ip: &[u8]) -> u16 {
    let [high, low] = ((ip.len() - IPV4) as u16).to_be_bytes();
    checksum::internet_checksum(&[&ip[12..20], &[0, ip[9], high, low], &ip[IPV4..]])
}

#[test]
fn written_entries_are_read() {
    let (one, other) = (Ipv4End::new([192, 0, 2, 1], 1), Ipv4End::new([203, 0, 113, 10], 80));
    let tcp = Packet::tcp(one, other, SYN, 7).acknowledging(9).with_payload(3);
    let mut bytes = Vec::new();
    for packet in [tcp, Packet::udp(other, one, 5)] {
        packet.write(&mut bytes);
        assert_eq!(Packet::read(&bytes), Some(packet));
        bytes[30] ^= 1;
        assert_eq!(Packet::read(&bytes), None, "a wrong checksum");
    }
}
