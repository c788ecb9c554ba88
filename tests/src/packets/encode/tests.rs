//! The builder against parsers and arithmetic that are not its own.

use etherparse::{LaxSlicedPacket, SlicedPacket};

use crate::packets::samples::{self, CLIENT4, CLIENT6, SERVICE4, SERVICE6};
use crate::packets::*;

/// RFC 1071 as it is written.
fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn every_sample_parses_strictly() {
    for (name, packet) in samples::sample_packets() {
        let parsed = SlicedPacket::from_ethernet(&packet);
        assert!(parsed.is_ok(), "{name}: {parsed:?}{packet:?}");
        let lax = LaxSlicedPacket::from_ethernet(&packet).unwrap();
        assert_eq!(lax.stop_err, None, "{name}: {packet:?}");
    }
}

#[test]
fn a_textbook_header_has_its_textbook_checksum() {
    let packet = udp("192.168.0.1:68", "192.168.0.199:67").id(0).payload(&[0; 87]);
    let header = [
        0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
        0xc7,
    ];
    assert_eq!(packet[14..34], header);
}

#[test]
fn checksums_verify_by_plain_addition() {
    for (client, service) in [(CLIENT4, SERVICE4), (CLIENT6, SERVICE6)] {
        let tcp = tcp(client, service).ack().payload(b"odd");
        let udp = udp(client, service).payload(b"odd");
        for (name, packet, protocol) in [("TCP", &tcp, 6), ("UDP", &udp, 17)] {
            let ip = packet.ip_bytes();
            let addresses = if client == CLIENT4 { &ip[12..20] } else { &ip[8..40] };
            let segment = &packet[packet.transport_offset()..];
            let length = (segment.len() as u32).to_be_bytes();
            assert_eq!(
                sum(&[addresses, &length, &[0, protocol], segment]),
                0xffff,
                "{name}: {packet:?}"
            );
        }
    }
    let echo = icmp_echo("192.0.2.1", "192.0.2.2").payload(b"odd");
    assert_eq!(sum(&[&echo[34..]]), 0xffff);
    let v6 = icmp_echo("2001:db8::1", "2001:db8::2").payload(b"odd");
    assert_eq!(sum(&[&v6[22..54], &[0, 0, 0, 11, 0, 58], &v6[54..]]), 0xffff);
}

#[test]
fn a_udp_checksum_is_never_written_as_zero() {
    // The last two bytes are chosen so that the sum comes out as zero.
    let packet = udp(CLIENT4, SERVICE4).payload(&[0, 0]);
    let rest = u16::from_be_bytes([packet[40], packet[41]]).to_be_bytes();
    assert_eq!(packet.payload(&rest)[40..42], [0xff, 0xff]);
}

#[test]
fn a_derived_packet_is_the_one_built_that_way() {
    let request = tcp(CLIENT4, SERVICE4).ack().payload(b"hello");
    let cases = [
        (
            "to",
            request.to("10.244.1.10:8080"),
            tcp(CLIENT4, "10.244.1.10:8080").ack().payload(b"hello"),
        ),
        (
            "to an address",
            request.to("10.244.1.10"),
            tcp(CLIENT4, "10.244.1.10:80").ack().payload(b"hello"),
        ),
        ("from", request.from("192.0.2.1:7"), tcp("192.0.2.1:7", SERVICE4).ack().payload(b"hello")),
        (
            "reversed",
            request.reversed(),
            tcp(SERVICE4, CLIENT4).ack().payload(b"hello").macs(NODE_MAC, CLIENT_MAC),
        ),
        ("untagged", request.qinq(1, 2).untagged(), request.clone()),
        ("whole", request.fragment(..8).whole(), request.clone()),
    ];
    for (name, actual, expected) in cases {
        assert_same_packet(name, &expected, &actual);
    }
}

#[test]
fn a_packet_derived_from_a_corrupted_one_is_corrupted_likewise() {
    let corrupted = tcp(CLIENT4, SERVICE4).syn().with(|bytes| bytes[50] ^= 0xff).truncated(52);
    let derived = corrupted.to("10.244.1.10:8080");
    let sound = tcp(CLIENT4, "10.244.1.10:8080").syn();
    assert_eq!(derived.len(), 52);
    assert_eq!(derived[50], sound[50] ^ 0xff);
    assert_eq!(derived[..50], sound[..50]);
}

#[test]
fn fragments_put_together_are_the_whole() {
    for (client, service) in [(CLIENT4, SERVICE4), (CLIENT6, SERVICE6)] {
        let whole = udp(client, service).payload(&[7; 3000]);
        let parts = [whole.fragment(..1480), whole.fragment(1480..2960), whole.fragment(2960..)];
        let together: Vec<u8> =
            parts.iter().flat_map(|part| part[part.transport_offset()..].to_vec()).collect();
        assert_eq!(together, whole[whole.transport_offset()..]);
    }
}

#[test]
fn destination_options_are_fragmented_with_what_follows() {
    let whole = udp(CLIENT6, SERVICE6).payload(&[7; 64]).hop_by_hop().destination_options();
    let first = whole.fragment(..48);
    // IPv6, hop-by-hop, fragment, destination options, UDP.
    let next_headers = [first[20], first[54], first[62], first[70]];
    assert_eq!(next_headers, [0, 44, 60, 17]);
    assert_eq!(first.transport_offset(), 14 + 40 + 8 + 8 + 16);
    assert_eq!(whole.fragment(48..).transport_offset(), 14 + 40 + 8 + 8);
}

#[test]
fn an_error_quotes_the_packet_it_is_about() {
    let cases = [
        (CLIENT4, SERVICE4, "192.0.2.1", "10.244.1.10:8080"),
        (CLIENT6, SERVICE6, "2001:db8::1", "[fd00::10]:8080"),
    ];
    for (client, service, router, backend) in cases {
        let reply = tcp(service, client).ack().payload(b"hello");
        let error = packet_too_big(router, &reply, 1400);
        assert!(error.ends_with(reply.ip_bytes()));

        let translated = error.inner(|quoted| quoted.from(backend));
        assert!(translated.ends_with(reply.from(backend).ip_bytes()));

        let short = error.quoting_only(8);
        let header = reply.transport_offset() - reply.network_offset();
        assert!(short.ends_with(&reply.ip_bytes()[..header + 8]));
    }
}

#[test]
#[should_panic(expected = "of different families")]
fn families_do_not_mix() {
    let _ = tcp(CLIENT4, SERVICE6);
}
