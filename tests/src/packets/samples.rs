//! One packet of every kind, for tests of properties of all packets.

use super::*;

pub const CLIENT4: &str = "198.51.100.7:40000";
pub const SERVICE4: &str = "203.0.113.10:80";
pub const CLIENT6: &str = "[2001:db8::7]:40000";
pub const SERVICE6: &str = "[2001:db8:1::10]:80";

pub fn sample_packets() -> Vec<(&'static str, Packet)> {
    let mut samples = vec![
        ("ARP", arp("192.0.2.1", "192.0.2.2")),
        (
            "TCP with IP options",
            tcp(CLIENT4, SERVICE4).ack().payload(b"x").ip_options(&[148, 4, 0, 0]),
        ),
        (
            "TCP after extension headers",
            tcp(CLIENT6, SERVICE6).syn().hop_by_hop().destination_options(),
        ),
        ("IPv6 in IPv4", ip_in_ip("192.0.2.1", "192.0.2.2", &tcp(CLIENT6, SERVICE6).syn())),
        ("ICMP echo", icmp_echo("192.0.2.1", "192.0.2.2").payload(b"abcdefgh")),
        ("ICMPv6 echo", icmp_echo("2001:db8::1", "2001:db8::2").payload(b"abcdefg")),
        ("UDP without a checksum", udp(CLIENT4, SERVICE4).payload(b"abc").no_checksum()),
        ("another protocol", ip("192.0.2.1", "192.0.2.2", 47).payload(b"abc")),
    ];
    for (client, service, router) in
        [(CLIENT4, SERVICE4, "192.0.2.1"), (CLIENT6, SERVICE6, "2001:db8::1")]
    {
        let tcp =
            tcp(client, service).psh_ack().seq(7).ack_number(9).payload(b"GET / HTTP/1.1\r\n\r\n");
        let udp = udp(client, service).payload(b"hello");
        let long = udp.payload(&[0xab; 2001]);
        let sctp = sctp(client, service);
        samples.extend([
            ("TCP", tcp.clone()),
            ("TCP with options", tcp.syn().mss(1460)),
            ("TCP in a VLAN", tcp.vlan(100)),
            ("TCP in two VLANs", tcp.qinq(200, 100)),
            ("UDP", udp.clone()),
            ("UDP with nothing in it", udp.payload(b"")),
            ("a first fragment", long.fragment(..1480)),
            ("a middle fragment", long.fragment(1480..1488)),
            ("a last fragment", long.fragment(1488..)),
            ("SCTP INIT", sctp.clone()),
            ("SCTP DATA", sctp.payload(b"hello").verification_tag(0x1234_5678)),
            ("port unreachable", port_unreachable(router, &udp)),
            ("packet too big", packet_too_big(router, &tcp, 1400)),
            ("time exceeded, 8 bytes quoted", time_exceeded(router, &tcp).quoting_only(8)),
        ]);
    }
    samples
}
