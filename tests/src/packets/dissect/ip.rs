//! IPv4, IPv6 and its extension headers, fragments.

use etherparse::{
    IpNumber, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, checksum::Sum16BitWords,
};

use super::checksum::{compare_checksums, compute_checksum};
use super::report::{Report, format_hex, protocol_name};
use super::segment::Segment;
use super::transport;
use crate::packets::address::PacketAddresses;

/// Packets in packets deeper than this are shown as data, so that hostile bytes cannot exhaust the
/// stack.
const DEEPEST: usize = 8;

/// Selects the family by the version in the first four bits.
pub fn dissect_any_ip(report: &mut Report, bytes: &[u8]) {
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) => dissect_ipv4(report, bytes),
        Some(6) => dissect_ipv6(report, bytes),
        _ => report.data("Data", bytes),
    }
}

pub fn dissect_ipv4(report: &mut Report, bytes: &[u8]) {
    let header = match Ipv4HeaderSlice::from_slice(bytes) {
        Ok(header) => header,
        Err(error) => return report.malformed("IPv4", error, bytes),
    };
    let length = usize::from(header.total_len());
    let start = header.slice().len();
    let end = length.clamp(start, bytes.len());
    let should_be = compute_checksum(Sum16BitWords::new(), header.slice(), 10);
    let offset = header.fragments_offset().byte_offset();

    let mut line = format!("{} > {}", header.source_addr(), header.destination_addr());
    line += &format!(", ttl {}, tos 0x{:02x}", header.ttl(), bytes[1]);
    line += &format!(", id 0x{:04x}", header.identification());
    line += if header.dont_fragment() { ", DF" } else { "" };
    line += if header.more_fragments() { ", MF" } else { "" };
    line += &if offset > 0 { format!(", fragment offset {offset}") } else { String::new() };
    line += &format!(", length {length}{}", length_note(length, start, bytes.len()));
    line += &format!(", protocol {}", protocol_name(header.protocol()));
    line += &if header.options().is_empty() {
        String::new()
    } else {
        format!(", options {}", format_hex(header.options()))
    };
    line += &format!(", {}", compare_checksums(header.header_checksum(), should_be));
    report.line("IPv4", line);

    let segment = Segment {
        addresses: PacketAddresses::V4(header.source(), header.destination()),
        bytes: &bytes[start..end],
        incomplete: incomplete(length > bytes.len(), header.is_fragmenting_payload()),
    };
    if offset > 0 {
        report.data("Data", segment.bytes);
    } else {
        content(report, header.protocol(), segment);
    }
    report.data("Padding", &bytes[end..]);
}

pub fn dissect_ipv6(report: &mut Report, bytes: &[u8]) {
    let header = match Ipv6HeaderSlice::from_slice(bytes) {
        Ok(header) => header,
        Err(error) => return report.malformed("IPv6", error, bytes),
    };
    let start = header.slice().len();
    let length = start + usize::from(header.payload_length());
    let end = length.min(bytes.len());

    let mut line = format!("{} > {}", header.source_addr(), header.destination_addr());
    line += &format!(", hop limit {}, class 0x{:02x}", header.hop_limit(), header.traffic_class());
    line += &format!(", flow 0x{:05x}", header.flow_label().value());
    line += &format!(
        ", payload {}{}",
        header.payload_length(),
        length_note(length - start, 0, bytes.len() - start)
    );
    line += &format!(", next {}", protocol_name(header.next_header()));
    report.line("IPv6", line);

    let segment = Segment {
        addresses: PacketAddresses::V6(header.source(), header.destination()),
        bytes: &bytes[start..end],
        incomplete: incomplete(length > bytes.len(), false),
    };
    extensions(report, header.next_header(), segment);
    report.data("Padding", &bytes[end..]);
}

fn content(report: &mut Report, protocol: IpNumber, segment: Segment<'_>) {
    let Some(packet) = transport::dissect_transport(report, protocol, segment) else { return };
    if report.depth == DEEPEST {
        return report.data("Data", packet);
    }
    report.depth += 1;
    dissect_any_ip(report, packet);
    report.depth -= 1;
}

/// Each iteration removes at least 8 bytes from the segment.
fn extensions(report: &mut Report, mut next: IpNumber, mut segment: Segment<'_>) {
    loop {
        let name = match next {
            IpNumber::IPV6_HEADER_HOP_BY_HOP => "HopByHop",
            IpNumber::IPV6_ROUTE_HEADER => "Routing",
            IpNumber::IPV6_DESTINATION_OPTIONS => "DestOpts",
            IpNumber::IPV6_FRAGMENTATION_HEADER => "Fragment",
            IpNumber::AUTHENTICATION_HEADER => "AH",
            _ => return content(report, next, segment),
        };
        let units = segment.bytes.get(1).map_or(0, |&units| usize::from(units));
        let length = match next {
            IpNumber::IPV6_FRAGMENTATION_HEADER => 8,
            IpNumber::AUTHENTICATION_HEADER => (4 * (units + 2)).max(8),
            _ => 8 * (units + 1),
        };
        let Some((header, rest)) = segment.bytes.split_at_checked(length) else {
            let reason = format!("{length} bytes are needed, {} are there", segment.bytes.len());
            return report.malformed(name, reason, segment.bytes);
        };
        segment.bytes = rest;
        if let (IpNumber::IPV6_FRAGMENTATION_HEADER, Ok(fragment)) =
            (next, Ipv6FragmentHeaderSlice::from_slice(header))
        {
            let offset = fragment.fragment_offset().byte_offset();
            let more = if fragment.more_fragments() { ", more follow" } else { "" };
            let id = fragment.identification();
            let next = fragment.next_header();
            report.line(
                name,
                format_args!("offset {offset}{more}, id 0x{id:08x}, next {}", protocol_name(next)),
            );
            if offset > 0 {
                return report.data("Data", rest);
            }
            segment.incomplete =
                segment.incomplete.or(incomplete(false, fragment.is_fragmenting_payload()));
        } else {
            report.line(
                name,
                format_args!(
                    "{length} bytes: {}, next {}",
                    format_hex(&header[2..]),
                    protocol_name(IpNumber(header[0]))
                ),
            );
        }
        next = IpNumber(header[0]);
    }
}

/// Why the transport checksum cannot be verified.
fn incomplete(truncated: bool, fragment: bool) -> Option<&'static str> {
    if truncated {
        Some("the packet is truncated")
    } else if fragment {
        Some("the packet is a fragment")
    } else {
        None
    }
}

fn length_note(length: usize, header: usize, there: usize) -> String {
    if length < header {
        " [WRONG, less than the header]".to_owned()
    } else if length > there {
        format!(" [truncated, {there} are there]")
    } else {
        String::new()
    }
}
