//! A parser of frames that is independent of the data plane's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::header::protocol::{
    DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMP, ICMPV6, ROUTING, SCTP, TCP, UDP,
};

use crate::checksum;

/// An IP packet in a frame, or quoted by an ICMP error.
#[derive(Clone, Copy, Debug)]
pub struct ParsedDatagram {
    pub v6: bool,
    pub network: usize,
    pub transport: usize,
    pub protocol: u8,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The end according to the length field; the rest of the frame is padding.
    pub end: usize,
    /// `None` if the packet is not a fragment.
    pub fragment: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    First,
    Later,
}

/// Why a frame cannot belong to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Not recognized as IP.
    NotIp,
    Malformed,
}

/// The most extension headers that are skipped.
const EXTENSIONS: usize = 4;

/// Finds the IP packet in an Ethernet frame with up to two VLAN tags.
pub fn parse_frame(bytes: &[u8]) -> Result<ParsedDatagram, Other> {
    let mut at = 12;
    for _ in 0..3 {
        let ether_type = bytes.get(at..at + 2).ok_or(Other::NotIp)?;
        match (ether_type, at) {
            ([0x81, 0x00] | [0x88, 0xa8], 12 | 16) => at += 4,
            ([0x08, 0x00], _) => return parse_datagram(bytes, at + 2, false),
            ([0x86, 0xdd], _) => return parse_datagram(bytes, at + 2, true),
            _ => return Err(Other::NotIp),
        }
    }
    Err(Other::NotIp)
}

/// Reads the IP header at an offset.
pub fn parse_datagram(bytes: &[u8], network: usize, v6: bool) -> Result<ParsedDatagram, Other> {
    let rest = bytes.get(network..).ok_or(Other::Malformed)?;
    if v6 { ipv6(rest, network) } else { ipv4(rest, network) }
}

fn ipv4(rest: &[u8], network: usize) -> Result<ParsedDatagram, Other> {
    let header = rest.first_chunk::<20>().ok_or(Other::Malformed)?;
    let words = usize::from(header[0] & 15);
    if header[0] >> 4 != 4 || words < 5 {
        return Err(Other::Malformed);
    }
    let (offset, more) = (u16::from_be_bytes([header[6] & 0x1f, header[7]]), header[6] & 0x20);
    let fragment = match (offset, more) {
        (0, 0) => None,
        (0, _) => Some(Part::First),
        _ => Some(Part::Later),
    };
    let address = |at: usize| {
        Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into()
    };
    Ok(ParsedDatagram {
        v6: false,
        network,
        transport: network + words * 4,
        protocol: header[9],
        source: address(12),
        destination: address(16),
        end: network + usize::from(u16::from_be_bytes([header[2], header[3]])),
        fragment,
    })
}

fn ipv6(rest: &[u8], network: usize) -> Result<ParsedDatagram, Other> {
    let header = rest.first_chunk::<40>().ok_or(Other::Malformed)?;
    if header[0] >> 4 != 6 {
        return Err(Other::Malformed);
    }
    let address = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().expect("sixteen");
        Ipv6Addr::from(octets).into()
    };
    let mut found = ParsedDatagram {
        v6: true,
        network,
        transport: network + 40,
        protocol: header[6],
        source: address(8),
        destination: address(24),
        end: network + 40 + usize::from(u16::from_be_bytes([header[4], header[5]])),
        fragment: None,
    };
    for _ in 0..EXTENSIONS {
        let at = found.transport - network;
        match found.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                let start = rest.get(at..at + 2).ok_or(Other::Malformed)?;
                found.protocol = start[0];
                found.transport += 8 + 8 * usize::from(start[1]);
            }
            FRAGMENT => {
                let Some(start) = rest.get(at..at + 8) else {
                    found.fragment = Some(Part::Later);
                    break;
                };
                let first = start[2] == 0 && start[3] & 0xf8 == 0;
                found.fragment = Some(if first { Part::First } else { Part::Later });
                found.protocol = start[0];
                found.transport += 8;
                break;
            }
            _ => break,
        }
    }
    Ok(found)
}

impl ParsedDatagram {
    pub fn is_icmp(&self) -> bool {
        self.protocol == if self.v6 { ICMPV6 } else { ICMP }
    }

    /// Source and destination port, if the packet has ports and a complete transport header.
    pub fn ports(&self, bytes: &[u8]) -> Option<(u16, u16)> {
        let length = match self.protocol {
            TCP => 20,
            UDP => 8,
            SCTP => 16,
            _ => return None,
        };
        let header = bytes.get(self.transport..self.transport + length)?;
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        (self.fragment != Some(Part::Later)).then(|| (port(0), port(2)))
    }

    /// Whether all checksums are right, as far as the packet is complete enough to tell.
    pub fn is_right(&self, bytes: &[u8]) -> bool {
        let header = bytes.get(self.network..self.transport).filter(|_| !self.v6);
        if header.is_some_and(|header| checksum::internet_checksum(&[header]) != 0) {
            return false;
        }
        let segment = bytes.get(self.transport..self.end);
        let (Some(segment), None) = (segment, self.fragment) else { return true };
        let Some(field) = checksum::checksum_field(self.protocol) else { return true };
        let Some(found) = segment.get(field) else { return true };
        let none_meant = match self.protocol {
            UDP => found == [0; 2] && !self.v6,
            // An offloading device will complete it.
            SCTP => found == [0; 4],
            _ => false,
        };
        // UDP has its own length field.
        let own = (self.protocol == UDP).then(|| u16::from_be_bytes([segment[4], segment[5]]));
        none_meant
            || own.is_some_and(|own| usize::from(own) != segment.len())
            || checksum::is_right(self.source, self.destination, self.protocol, segment)
    }
}
