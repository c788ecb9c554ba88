//! A builder and a dissector of packets for tests. [`datapath`] sends them through the data plane, [`scenario`] makes
//! random ones.
//!
//! The builder is an oracle: it must never use `lb-common`. `etherparse` encodes every derived packet
//! again, with checksums computed over the whole packet, so it does not share faults with the
//! incremental checksums of the data plane. Samples for its own tests are in `samples.rs`.
//!
//! ```
//! use tests::packets::{assert_same_packet, dissect, tcp};
//!
//! let request = tcp("198.51.100.7:40000", "203.0.113.10:80").ack().payload(b"GET /
//! HTTP/1.1\r\n\r\n").ttl(64); let expected = request.to("10.244.1.10:8080").ttl(63);
//!
//! println!("{}", dissect(&expected));
//! let actual = request.ttl(63).to("10.244.1.10:8080");
//! assert_same_packet("an established flow is translated", &expected, &actual);
//! ```

mod address;
mod builder;
pub mod datapath;
mod description;
mod difference;
mod dissect;
mod encode;
mod icmp;
mod make;
pub mod scenario;
mod transport;

#[cfg(test)]
mod samples;

pub use address::{Endpoint, Mac};
pub use builder::Packet;
pub use difference::{assert_same_packet, explain_difference};
pub use dissect::{dissect, dissect_ip};
pub use icmp::{
    icmp, icmp_echo, icmp_echo_reply, icmp_error, icmp_unreachable, packet_too_big,
    port_unreachable, time_exceeded,
};
pub use make::{CLIENT_MAC, NODE_MAC, arp, arp_message, ip, ip_in_ip, raw, sctp, tcp, udp};
