//! TCP, UDP, SCTP; ICMP has a file of its own.

use etherparse::err::tcp::HeaderSliceError;
use etherparse::{IpNumber, TcpHeaderSlice, UdpHeaderSlice};

use super::icmp;
use super::report::{Report, format_hex};
use super::segment::Segment;
use crate::packets::address::PacketAddresses;

/// Returns the packet that the segment contains, if it contains one.
pub fn dissect_transport<'a>(
    report: &mut Report,
    protocol: IpNumber,
    segment: Segment<'a>,
) -> Option<&'a [u8]> {
    match (protocol, segment.addresses) {
        (IpNumber::TCP, _) => dissect_tcp(report, segment),
        (IpNumber::UDP, _) => dissect_udp(report, segment),
        (IpNumber::SCTP, _) => dissect_sctp(report, segment),
        (IpNumber::ICMP, PacketAddresses::V4(..)) => return icmp::dissect_icmp4(report, segment),
        (IpNumber::IPV6_ICMP, PacketAddresses::V6(..)) => {
            return icmp::dissect_icmp6(report, segment);
        }
        (IpNumber::IPV4 | IpNumber::IPV6, _) => return Some(segment.bytes),
        _ => report.data("Data", segment.bytes),
    }
    None
}

fn dissect_tcp(report: &mut Report, segment: Segment<'_>) {
    let bytes = segment.bytes;
    let header = match TcpHeaderSlice::from_slice(bytes) {
        Ok(header) => header,
        Err(HeaderSliceError::Len(_)) => return cut_short(report, "TCP", bytes),
        Err(error) => return report.malformed("TCP", error, bytes),
    };
    let mut line =
        format!("{} > {} [{}]", header.source_port(), header.destination_port(), flags(&header));
    line += &format!(", seq {}, ack {}", header.sequence_number(), header.acknowledgment_number());
    line += &format!(", window {}", header.window_size());
    line += &if header.options().is_empty() {
        String::new()
    } else {
        format!(", options {}", format_hex(header.options()))
    };
    line += &format!(", {}", segment.verdict(IpNumber::TCP, bytes.len(), 16, header.checksum()));
    report.line("TCP", line);
    report.data("Data", &bytes[header.slice().len()..]);
}

fn flags(header: &TcpHeaderSlice<'_>) -> String {
    let names = [
        (header.syn(), "SYN"),
        (header.fin(), "FIN"),
        (header.rst(), "RST"),
        (header.psh(), "PSH"),
        (header.ack(), "ACK"),
        (header.urg(), "URG"),
        (header.ece(), "ECE"),
        (header.cwr(), "CWR"),
    ];
    names.into_iter().filter_map(|(set, name)| set.then_some(name)).collect::<Vec<_>>().join(" ")
}

fn dissect_udp(report: &mut Report, segment: Segment<'_>) {
    let bytes = segment.bytes;
    let header = match UdpHeaderSlice::from_slice(bytes) {
        Ok(header) => header,
        Err(_) => return cut_short(report, "UDP", bytes),
    };
    let start = header.slice().len();
    let length = usize::from(header.length());
    let end = length.clamp(start, bytes.len());
    let is_wrong = length < start || (segment.incomplete.is_none() && length != bytes.len());
    let note =
        if is_wrong { format!(" [WRONG, {} are there]", bytes.len()) } else { String::new() };
    let checksum = match (header.checksum(), segment.addresses) {
        (0, PacketAddresses::V4(..)) => "no checksum".to_owned(),
        (0, PacketAddresses::V6(..)) => "no checksum [WRONG, not allowed over IPv6]".to_owned(),
        // UDP uses the other zero of one's complement, because this one means that there is no
        // checksum.
        (0xffff, _) => {
            segment.verdict(IpNumber::UDP, end, 6, 0xffff).replace(", usually 0x0000", "")
        }
        (found, _) => segment.verdict(IpNumber::UDP, end, 6, found),
    };
    let (source, destination) = (header.source_port(), header.destination_port());
    report.line("UDP", format_args!("{source} > {destination}, length {length}{note}, {checksum}"));
    report.data("Data", &bytes[start..end]);
    report.data("Trailer", &bytes[end..]);
}

fn dissect_sctp(report: &mut Report, segment: Segment<'_>) {
    let bytes = segment.bytes;
    let Some((header, mut chunks)) = bytes.split_first_chunk::<12>() else {
        return cut_short(report, "SCTP", bytes);
    };
    let [s0, s1, d0, d1, t0, t1, t2, t3, checksum @ ..] = *header;
    let (source, destination) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    let tag = u32::from_be_bytes([t0, t1, t2, t3]);
    let found = u32::from_le_bytes(checksum);
    let should_be =
        crc32c::crc32c_append(crc32c::crc32c(&[&header[..8], &[0; 4]].concat()), chunks);
    let verdict = match segment.incomplete {
        Some(reason) => format!("[not verified: {reason}]"),
        None if found == should_be => "[correct]".to_owned(),
        None => format!("[WRONG, should be 0x{should_be:08x}]"),
    };
    report.line(
        "SCTP",
        format_args!("{source} > {destination}, tag 0x{tag:08x}, crc32c 0x{found:08x} {verdict}"),
    );

    while let [kind, flags, high, low, ..] = *chunks {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let name = match kind {
            0 => "DATA",
            1 => "INIT",
            2 => "INIT ACK",
            3 => "SACK",
            4 => "HEARTBEAT",
            6 => "ABORT",
            7 => "SHUTDOWN",
            _ => "",
        };
        report.line(
            "Chunk",
            format_args!("type {kind} {name}, flags 0x{flags:02x}, length {length}"),
        );
        // A chunk is at least its own header, so every round takes 4 bytes or more.
        let end = length.max(4).min(chunks.len());
        report.data("Data", &chunks[4..end]);
        chunks = &chunks[length.max(4).next_multiple_of(4).min(chunks.len())..];
    }
    report.data("Trailer", chunks);
}

/// Quoted packets often end in the transport header: the ports are still worth reading.
fn cut_short(report: &mut Report, layer: &str, bytes: &[u8]) {
    let reason = format!("cut short: {} bytes", bytes.len());
    match *bytes {
        [s0, s1, d0, d1, ref rest @ ..] => {
            let (source, destination) =
                (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
            report.line(layer, format_args!("{source} > {destination} [{reason}]"));
            report.data("Data", rest);
        }
        _ => report.malformed(layer, reason, bytes),
    }
}
