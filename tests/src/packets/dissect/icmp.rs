//! ICMP and ICMPv6, with the packets that errors quote.

use etherparse::IpNumber;
use etherparse::checksum::Sum16BitWords;

use super::checksum::{computed, verdict};
use super::report::Report;
use super::segment::Segment;

/// The meaning of the second half of the header, and of the rest.
enum Kind {
    Echo,
    Error,
    Other,
}

/// Returns the quoted packet of an error.
pub fn v4<'a>(report: &mut Report, segment: Segment<'a>) -> Option<&'a [u8]> {
    let Some(header) = Header::read(segment.bytes) else {
        report.malformed("ICMP", "the header has 8 bytes", segment.bytes);
        return None;
    };
    let (kind, name) = match (header.kind, header.code) {
        (0, _) => (Kind::Echo, "echo reply"),
        (8, _) => (Kind::Echo, "echo request"),
        (3, 0) => (Kind::Error, "network unreachable"),
        (3, 1) => (Kind::Error, "host unreachable"),
        (3, 3) => (Kind::Error, "port unreachable"),
        (3, 4) => (Kind::Error, "fragmentation needed"),
        (3, _) => (Kind::Error, "destination unreachable"),
        (5, _) => (Kind::Error, "redirect"),
        (11, _) => (Kind::Error, "time exceeded"),
        (12, _) => (Kind::Error, "parameter problem"),
        _ => (Kind::Other, "message"),
    };
    let verdict = match segment.incomplete {
        Some(reason) => format!("checksum 0x{:04x} [not verified: {reason}]", header.checksum),
        None => verdict(header.checksum, computed(Sum16BitWords::new(), segment.bytes, 2)),
    };
    let mtu = ((header.kind, header.code) == (3, 4)).then_some(header.rest & 0xffff);
    message(report, "ICMP", &header, (kind, name), mtu, &verdict)
}

pub fn v6<'a>(report: &mut Report, segment: Segment<'a>) -> Option<&'a [u8]> {
    let Some(header) = Header::read(segment.bytes) else {
        report.malformed("ICMPv6", "the header has 8 bytes", segment.bytes);
        return None;
    };
    let (kind, name) = match (header.kind, header.code) {
        (1, 0) => (Kind::Error, "no route"),
        (1, 3) => (Kind::Error, "address unreachable"),
        (1, 4) => (Kind::Error, "port unreachable"),
        (1, _) => (Kind::Error, "destination unreachable"),
        (2, _) => (Kind::Error, "packet too big"),
        (3, _) => (Kind::Error, "time exceeded"),
        (4, _) => (Kind::Error, "parameter problem"),
        (128, _) => (Kind::Echo, "echo request"),
        (129, _) => (Kind::Echo, "echo reply"),
        (133, _) => (Kind::Other, "router solicitation"),
        (134, _) => (Kind::Other, "router advertisement"),
        (135, _) => (Kind::Other, "neighbour solicitation"),
        (136, _) => (Kind::Other, "neighbour advertisement"),
        _ => (Kind::Other, "message"),
    };
    let verdict = segment.verdict(IpNumber::IPV6_ICMP, segment.bytes.len(), 2, header.checksum);
    let mtu = (header.kind == 2).then_some(header.rest);
    message(report, "ICMPv6", &header, (kind, name), mtu, &verdict)
}

fn message<'a>(
    report: &mut Report,
    layer: &str,
    header: &Header<'a>,
    (kind, name): (Kind, &str),
    mtu: Option<u32>,
    verdict: &str,
) -> Option<&'a [u8]> {
    let rest = match (&kind, mtu) {
        (Kind::Echo, _) => {
            format!("id 0x{:04x}, sequence {}", header.rest >> 16, header.rest & 0xffff)
        }
        (_, Some(mtu)) => format!("mtu {mtu}"),
        _ => format!("rest 0x{:08x}", header.rest),
    };
    report.line(
        layer,
        format_args!("{name}, type {}, code {}, {rest}, {verdict}", header.kind, header.code),
    );
    if let Kind::Error = kind {
        return Some(header.body);
    }
    report.data("Data", header.body);
    None
}

struct Header<'a> {
    kind: u8,
    code: u8,
    checksum: u16,
    rest: u32,
    body: &'a [u8],
}

impl<'a> Header<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&[kind, code, c0, c1, r0, r1, r2, r3], body) = bytes.split_first_chunk()?;
        let (checksum, rest) = (u16::from_be_bytes([c0, c1]), u32::from_be_bytes([r0, r1, r2, r3]));
        Some(Self { kind, code, checksum, rest, body })
    }
}
