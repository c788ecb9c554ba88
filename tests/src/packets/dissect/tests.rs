use super::{dissect, dissect_ip};
use crate::packets::samples::{self, CLIENT4, CLIENT6, SERVICE4, SERVICE6};
use crate::packets::*;

#[test]
fn every_layer_is_named_and_decoded() {
    let reply = tcp(SERVICE4, CLIENT4).ack().payload(b"hello");
    let cases: &[(&str, Packet, &[&str])] = &[
        (
            "TCP",
            tcp(CLIENT4, SERVICE4).syn_ack().seq(7).ack_number(9).payload(b"GET /").ttl(3),
            &[
                "Ethernet  02:00:00:00:00:c1 > 02:00:00:00:00:0d, type 0x0800 (IPv4)",
                "IPv4      198.51.100.7 > 203.0.113.10, ttl 3, tos 0x00, id 0x1d1d, DF, length 45, protocol 6 (TCP)",
                "TCP       40000 > 80 [SYN ACK], seq 7, ack 9, window 64240",
                "Data      5 bytes: 47 45 54 20 2f \"GET /\"",
            ],
        ),
        (
            "VLANs",
            reply.qinq(200, 100),
            &["VLAN      id 200", "VLAN      id 100", "(802.1ad)", "(802.1Q)"],
        ),
        ("IP options", reply.ip_options(&[148, 4, 0, 0]), &["options 94 04 00 00"]),
        ("TCP options", reply.mss(1460), &["options 02 04 05 b4"]),
        (
            "UDP",
            udp(CLIENT6, SERVICE6),
            &["2001:db8::7 > 2001:db8:1::10, hop limit 64", "UDP       40000 > 80, length 8"],
        ),
        ("no checksum", udp(CLIENT4, SERVICE4).no_checksum(), &["no checksum"]),
        (
            "no checksum, IPv6",
            udp(CLIENT6, SERVICE6).no_checksum(),
            &["no checksum [WRONG, not allowed over IPv6]"],
        ),
        ("SCTP", sctp(CLIENT4, SERVICE4), &["SCTP      40000 > 80", "crc32c", "type 1 INIT"]),
        (
            "SCTP DATA",
            sctp(CLIENT4, SERVICE4).payload(b"hello"),
            &["type 0 DATA, flags 0x03, length 21", "hello"],
        ),
        ("ARP", arp("192.0.2.1", "192.0.2.2"), &["ARP       who has 192.0.2.2? tell 192.0.2.1"]),
        (
            "echo",
            icmp_echo("192.0.2.1", "192.0.2.2"),
            &["ICMP      echo request, type 8, code 0, id 0x1234, sequence 1"],
        ),
        (
            "echo reply, IPv6",
            icmp_echo_reply("2001:db8::1", "2001:db8::2"),
            &["ICMPv6    echo reply"],
        ),
        (
            "an error",
            packet_too_big("192.0.2.1", &reply, 1400),
            &[
                "ICMP      fragmentation needed, type 3, code 4, mtu 1400",
                "    IPv4      203.0.113.10",
                "    TCP       80 >",
            ],
        ),
        (
            "a short quote",
            port_unreachable("192.0.2.1", &reply).quoting_only(8),
            &[
                "port unreachable",
                "[truncated, 28 are there]",
                "    TCP       80 > 40000 [cut short: 8 bytes]",
            ],
        ),
        (
            "extension headers",
            tcp(CLIENT6, SERVICE6).syn().hop_by_hop().destination_options().fragment(..),
            &[
                "HopByHop  8 bytes",
                "Fragment  offset 0, id 0x00001d1d",
                "DestOpts  16 bytes",
                "[SYN]",
            ],
        ),
        (
            "a first fragment",
            udp(CLIENT4, SERVICE4).payload(&[1; 64]).fragment(..40),
            &["MF", "[not verified: the packet is a fragment]"],
        ),
        (
            "a later fragment",
            udp(CLIENT4, SERVICE4).payload(&[1; 64]).fragment(40..),
            &["fragment offset 40", "Data      32 bytes: 01 01"],
        ),
        (
            "a tunnel",
            ip_in_ip("192.0.2.1", "192.0.2.2", &reply),
            &["protocol 4 (IPv4)", "    TCP       80 > 40000"],
        ),
        (
            "truncated",
            reply.truncated(50),
            &["[truncated, 36 are there]", "TCP       80 > 40000 [cut short"],
        ),
        ("padded", reply.padded(64), &["Padding   5 bytes"]),
        ("nonsense", raw(b"hello"), &["Ethernet  [MALFORMED", "hello"]),
    ];
    for (name, packet, words) in cases {
        let text = dissect(packet);
        for word in *words {
            assert!(text.contains(word), "{name}: no {word:?} in\n{text}");
        }
    }
}

#[test]
fn nothing_is_wrong_with_the_samples() {
    for (name, packet) in samples::sample_packets() {
        let text = dissect(&packet);
        assert!(!text.contains("WRONG") && !text.contains("MALFORMED"), "{name}:\n{text}");
    }
}

#[test]
fn a_wrong_checksum_is_shown_with_the_right_one() {
    let cases = [
        ("IPv4", tcp(CLIENT4, SERVICE4).syn(), 14 + 10),
        ("TCP", tcp(CLIENT4, SERVICE4).syn(), 34 + 16),
        ("TCP", tcp(CLIENT6, SERVICE6).syn(), 54 + 16),
        ("UDP", udp(CLIENT4, SERVICE4).payload(b"x"), 34 + 6),
        ("UDP", udp(CLIENT6, SERVICE6).payload(b"x"), 54 + 6),
        ("ICMP", icmp_echo("192.0.2.1", "192.0.2.2"), 34 + 2),
        ("ICMPv6", icmp_echo("2001:db8::1", "2001:db8::2"), 54 + 2),
    ];
    for (layer, packet, field) in cases {
        let right = u16::from_be_bytes([packet[field], packet[field + 1]]);
        let text = dissect(&packet.with(move |bytes| bytes[field] ^= 0x55));
        let line = text.lines().find(|line| line.starts_with(&format!("{layer} "))).unwrap();
        assert!(line.contains(&format!("[WRONG, should be 0x{right:04x}]")), "{text}");
    }
    let sctp = sctp(CLIENT4, SERVICE4).with(|bytes| bytes[34 + 8] ^= 0x55);
    assert!(dissect(&sctp).contains("[WRONG, should be 0x"), "{sctp:?}");
}

#[test]
fn both_zeros_of_a_checksum_are_accepted() {
    // This sequence number makes the TCP checksum zero.
    let packet = tcp(CLIENT4, SERVICE4).seq(0);
    let [high, low] = [packet[50], packet[51]];
    let packet = packet.seq(u32::from(u16::from_be_bytes([high, low])));
    assert_eq!(packet[50..52], [0, 0], "{packet:?}");
    let other = packet.with(|bytes| bytes[50..52].fill(0xff));
    assert!(dissect(&other).contains("0xffff [correct, usually 0x0000]"), "{other:?}");
}

#[test]
fn no_bytes_make_it_panic() {
    let mut random = Random(0x5eed);
    for (_, packet) in samples::sample_packets() {
        for length in 0..packet.len().min(200) {
            dissect(&packet[..length]);
            dissect_ip(&packet[..length]);
        }
        for _ in 0..200 {
            let mut bytes = packet.to_vec();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len().min(120));
                bytes[at] = random.below(256) as u8;
            }
            dissect(&bytes);
        }
    }
    for _ in 0..5_000 {
        let length = random.below(200);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        dissect(&bytes);
        dissect_ip(&bytes);
    }
}

#[test]
fn packets_in_packets_in_packets_come_to_an_end() {
    let mut packet = tcp(CLIENT4, SERVICE4).syn();
    for _ in 0..100 {
        packet = ip_in_ip("192.0.2.1", "192.0.2.2", &packet);
    }
    assert_eq!(dissect(&packet).matches("IPv4      192.0.2.1").count(), 9);
    let tags = dissect(&[0x81, 0].repeat(30_000));
    assert!(tags.matches("VLAN").count() > 14_000);
}

/// xorshift64: the same bytes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}
