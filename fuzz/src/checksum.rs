//! Checksums over whole headers and payloads, written from the RFCs. They are independent of the
//! data plane, which updates checksums incrementally.

use std::net::IpAddr;

use lb_common::header::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// The Internet checksum (RFC 1071) of consecutive parts. Only the last may have an odd length.
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u64::from(low));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Where a protocol's checksum is in its header.
pub fn checksum_field(protocol: u8) -> Option<std::ops::Range<usize>> {
    match protocol {
        TCP => Some(16..18),
        UDP => Some(6..8),
        SCTP => Some(8..12),
        ICMP | ICMPV6 => Some(2..4),
        _ => None,
    }
}

/// The correct checksum field of a transport header and its payload.
pub fn transport_checksum(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    segment: &[u8],
) -> Vec<u8> {
    let Some(field) = checksum_field(protocol) else { return Vec::new() };
    let mut empty = segment.to_vec();
    empty[field].fill(0);
    if protocol == SCTP {
        return crc32c::crc32c(&empty).to_le_bytes().to_vec();
    }
    let sum = sum(source, destination, protocol, &empty);
    // In UDP, 0 means no checksum.
    let sum = if protocol == UDP && sum == 0 { 0xffff } else { sum };
    sum.to_be_bytes().to_vec()
}

/// Whether a segment's checksum is right. The Internet checksum represents zero in two forms.
pub fn is_right(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> bool {
    if protocol == SCTP {
        return segment[8..12] == transport_checksum(source, destination, protocol, segment);
    }
    sum(source, destination, protocol, segment) == 0
}

fn sum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    if protocol == ICMP {
        return internet_checksum(&[segment]);
    }
    let [high, low] = (segment.len() as u16).to_be_bytes();
    let (source, destination) = (address_octets(source), address_octets(destination));
    internet_checksum(&[&source, &destination, &[0, protocol, high, low], segment])
}

pub fn address_octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
