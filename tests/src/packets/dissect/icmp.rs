//! ICMP and ICMPv6, with the packets that errors quote.

use etherparse::IpNumber;
use etherparse::checksum::Sum16BitWords;

use super::checksum::{compare_checksums, compute_checksum};
use super::report::Report;
use super::segment::Segment;

/// The meaning of the second half of the header, and of the rest.
enum IcmpMessageKind {
    Echo,
    Error,
    Other,
}

/// Returns the quoted packet of an error.
pub fn dissect_icmp4<'a>(report: &mut Report, segment: Segment<'a>) -> Option<&'a [u8]> {
    let Some(header) = IcmpHeader::read(segment.bytes) else {
        report.malformed("ICMP", "the header has 8 bytes", segment.bytes);
        return None;
    };
    let (kind, name) = match (header.kind, header.code) {
        (0, _) => (IcmpMessageKind::Echo, "echo reply"),
        (8, _) => (IcmpMessageKind::Echo, "echo request"),
        (3, 0) => (IcmpMessageKind::Error, "network unreachable"),
        (3, 1) => (IcmpMessageKind::Error, "host unreachable"),
        (3, 3) => (IcmpMessageKind::Error, "port unreachable"),
        (3, 4) => (IcmpMessageKind::Error, "fragmentation needed"),
        (3, _) => (IcmpMessageKind::Error, "destination unreachable"),
        (5, _) => (IcmpMessageKind::Error, "redirect"),
        (11, _) => (IcmpMessageKind::Error, "time exceeded"),
        (12, _) => (IcmpMessageKind::Error, "parameter problem"),
        _ => (IcmpMessageKind::Other, "message"),
    };
    let verdict = match segment.incomplete {
        Some(reason) => format!("checksum 0x{:04x} [not verified: {reason}]", header.checksum),
        None => compare_checksums(
            header.checksum,
            compute_checksum(Sum16BitWords::new(), segment.bytes, 2),
        ),
    };
    let mtu = ((header.kind, header.code) == (3, 4)).then_some(header.rest & 0xffff);
    message(report, "ICMP", &header, (kind, name), mtu, &verdict)
}

pub fn dissect_icmp6<'a>(report: &mut Report, segment: Segment<'a>) -> Option<&'a [u8]> {
    let Some(header) = IcmpHeader::read(segment.bytes) else {
        report.malformed("ICMPv6", "the header has 8 bytes", segment.bytes);
        return None;
    };
    let (kind, name) = match (header.kind, header.code) {
        (1, 0) => (IcmpMessageKind::Error, "no route"),
        (1, 3) => (IcmpMessageKind::Error, "address unreachable"),
        (1, 4) => (IcmpMessageKind::Error, "port unreachable"),
        (1, _) => (IcmpMessageKind::Error, "destination unreachable"),
        (2, _) => (IcmpMessageKind::Error, "packet too big"),
        (3, _) => (IcmpMessageKind::Error, "time exceeded"),
        (4, _) => (IcmpMessageKind::Error, "parameter problem"),
        (128, _) => (IcmpMessageKind::Echo, "echo request"),
        (129, _) => (IcmpMessageKind::Echo, "echo reply"),
        (133, _) => (IcmpMessageKind::Other, "router solicitation"),
        (134, _) => (IcmpMessageKind::Other, "router advertisement"),
        (135, _) => (IcmpMessageKind::Other, "neighbour solicitation"),
        (136, _) => (IcmpMessageKind::Other, "neighbour advertisement"),
        _ => (IcmpMessageKind::Other, "message"),
    };
    let verdict = segment.verdict(IpNumber::IPV6_ICMP, segment.bytes.len(), 2, header.checksum);
    let mtu = (header.kind == 2).then_some(header.rest);
    message(report, "ICMPv6", &header, (kind, name), mtu, &verdict)
}

fn message<'a>(
    report: &mut Report,
    layer: &str,
    header: &IcmpHeader<'a>,
    (kind, name): (IcmpMessageKind, &str),
    mtu: Option<u32>,
    verdict: &str,
) -> Option<&'a [u8]> {
    let rest = match (&kind, mtu) {
        (IcmpMessageKind::Echo, _) => {
            format!("id 0x{:04x}, sequence {}", header.rest >> 16, header.rest & 0xffff)
        }
        (_, Some(mtu)) => format!("mtu {mtu}"),
        _ => format!("rest 0x{:08x}", header.rest),
    };
    report.line(
        layer,
        format_args!("{name}, type {}, code {}, {rest}, {verdict}", header.kind, header.code),
    );
    if let IcmpMessageKind::Error = kind {
        return Some(header.body);
    }
    report.data("Data", header.body);
    None
}

struct IcmpHeader<'a> {
    kind: u8,
    code: u8,
    checksum: u16,
    rest: u32,
    body: &'a [u8],
}

impl<'a> IcmpHeader<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&[kind, code, c0, c1, r0, r1, r2, r3], body) = bytes.split_first_chunk()?;
        let (checksum, rest) = (u16::from_be_bytes([c0, c1]), u32::from_be_bytes([r0, r1, r2, r3]));
        Some(Self { kind, code, checksum, rest, body })
    }
}
