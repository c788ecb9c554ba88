//! Builds packets from a tuple, and describes packets.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use etherparse::{
    IpNumber, LaxNetSlice, LaxSlicedPacket, PacketBuilder, TcpHeader, TransportSlice,
};
use lb_common::datapath::{arp, ndp};
use lb_common::header::{LINK_HOP_LIMIT, protocol};
use lb_rules::notation::{TCP_FLAGS, tcp_flag_names};
use serde::Serialize;

/// The description of a packet on the command line.
#[derive(Clone, Debug)]
pub struct Tuple {
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// TCP flags, as in the header.
    pub flags: u8,
    /// Bytes after the transport header.
    pub payload: usize,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Tuple {
    /// The packet in an Ethernet frame, with arbitrary link-layer addresses.
    pub fn frame(&self) -> Result<Vec<u8>> {
        let Self { source, destination, .. } = *self;
        let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = match (source.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                link.ipv4(from.octets(), to.octets(), self.hop_limit)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                link.ipv6(from.octets(), to.octets(), self.hop_limit)
            }
            _ => bail!("{source} and {destination} are of two address families"),
        };
        let payload = vec![0; self.payload];
        let (from, to) = (source.port(), destination.port());
        let mut frame = Vec::new();
        match self.protocol {
            protocol::TCP => {
                let has = |name: &str| {
                    TCP_FLAGS.iter().any(|(known, bit)| *known == name && self.flags & bit != 0)
                };
                let mut header = TcpHeader::new(from, to, 1, 64_240);
                header.fin = has("fin");
                header.syn = has("syn");
                header.rst = has("rst");
                header.psh = has("psh");
                header.ack = has("ack");
                header.urg = has("urg");
                ip.tcp_header(header).write(&mut frame, &payload)
            }
            protocol::UDP => ip.udp(from, to).write(&mut frame, &payload),
            _ => {
                // SCTP's common header, and an INIT or DATA chunk.
                let chunk = if self.payload == 0 { 1 } else { 0 };
                let length = (self.payload + 4) as u16;
                let mut sctp = [from.to_be_bytes(), to.to_be_bytes()].concat();
                sctp.extend([0; 8]);
                sctp.extend([chunk, 0]);
                sctp.extend(length.to_be_bytes());
                sctp.extend(payload);
                ip.write(&mut frame, IpNumber::SCTP, &sctp)
            }
        }
        .context("such a packet can't be made")?;
        Ok(frame)
    }
}

/// A request of a machine for the link-layer address of another one, to all that may have it.
pub fn neighbour_request(arp: bool, source: IpAddr, target: IpAddr) -> Result<Vec<u8>> {
    const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
    match (arp, source, target) {
        (true, IpAddr::V4(source), IpAddr::V4(target)) => {
            // The form of a probe, with a sender.
            let mut frame = arp::arp_probe(SENDER, target.into(), arp::BROADCAST).to_vec();
            frame[SENDER_ADDRESS..SENDER_ADDRESS + 4].copy_from_slice(&source.octets());
            Ok(frame)
        }
        (false, IpAddr::V6(source), IpAddr::V6(target)) => {
            let group = ndp::solicited_node(target.into());
            let link = ndp::group_link(group);
            let mut rest = target.octets().to_vec();
            rest.extend([SOURCE_LINK, 1]);
            rest.extend(SENDER);
            let mut frame = Vec::new();
            PacketBuilder::ethernet2(SENDER, link)
                .ipv6(source.octets(), group.octets, LINK_HOP_LIMIT)
                .icmpv6_raw(ndp::SOLICITATION, 0, [0; 4])
                .write(&mut frame, &rest)
                .context("such a packet can't be made")?;
            Ok(frame)
        }
        (true, ..) => bail!("arp is for IPv4 addresses; use ndp for {source} and {target}"),
        (false, ..) => bail!("ndp is for IPv6 addresses; use arp for {source} and {target}"),
    }
}

/// Offset of the sender's protocol address in a frame with ARP.
const SENDER_ADDRESS: usize = 14 + 14;
/// The option with the sender's link-layer address.
const SOURCE_LINK: u8 = 1;

/// A parsed packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// `TCP`, `ICMPv6`, `ARP`, ...
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub flags: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
    pub fragment: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hop_limit: Option<u8>,
    /// Length of the frame, in bytes.
    pub length: usize,
}

impl Summary {
    pub fn of(frame: &[u8]) -> Self {
        let mut summary = Self { length: frame.len(), ..Self::default() };
        let Ok(sliced) = LaxSlicedPacket::from_ethernet(frame) else {
            "not Ethernet".clone_into(&mut summary.protocol);
            return summary;
        };
        summary.vlans = sliced.vlan_ids().iter().map(|id| id.value()).collect();
        let (source, destination): (IpAddr, IpAddr) = match &sliced.net {
            Some(LaxNetSlice::Ipv4(ip)) => {
                summary.hop_limit = Some(ip.header().ttl());
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            Some(LaxNetSlice::Ipv6(ip)) => {
                summary.hop_limit = Some(ip.header().hop_limit());
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            Some(LaxNetSlice::Arp(arp)) => {
                "ARP".clone_into(&mut summary.protocol);
                if let Ok(arp) = arp.to_packet().try_eth_ipv4() {
                    summary.source = Some(Ipv4Addr::from(arp.sender_ipv4).to_string());
                    summary.destination = Some(Ipv4Addr::from(arp.target_ipv4).to_string());
                }
                return summary;
            }
            None => {
                "not IP, or malformed".clone_into(&mut summary.protocol);
                return summary;
            }
        };
        let payload = sliced.net.as_ref().and_then(LaxNetSlice::ip_payload_ref);
        summary.fragment = payload.is_some_and(|payload| payload.fragmented);
        let number = payload.map(|payload| payload.ip_number);
        let mut ports = None;
        match &sliced.transport {
            Some(TransportSlice::Tcp(tcp)) => {
                ports = Some((tcp.source_port(), tcp.destination_port()));
                let bits = [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.urg()];
                let set = TCP_FLAGS.iter().zip(bits).filter(|(_, set)| *set);
                summary.flags = tcp_flag_names(set.fold(0, |flags, ((_, bit), _)| flags | bit));
            }
            Some(TransportSlice::Udp(udp)) => {
                ports = Some((udp.source_port(), udp.destination_port()));
            }
            _ if number == Some(IpNumber::SCTP) => {
                if let Some(&[a, b, c, d, ..]) = payload.map(|payload| payload.payload) {
                    ports = Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])));
                }
            }
            _ => {}
        }
        summary.protocol = number.map_or_else(|| "IP".to_owned(), protocol_name);
        let end = |address, port: Option<u16>| match port {
            Some(port) => SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        summary.source = Some(end(source, ports.map(|ports| ports.0)));
        summary.destination = Some(end(destination, ports.map(|ports| ports.1)));
        summary
    }
}

fn protocol_name(number: IpNumber) -> String {
    match number {
        IpNumber::TCP => "TCP".to_owned(),
        IpNumber::UDP => "UDP".to_owned(),
        IpNumber::SCTP => "SCTP".to_owned(),
        IpNumber::ICMP => "ICMP".to_owned(),
        IpNumber::IPV6_ICMP => "ICMPv6".to_owned(),
        IpNumber::IPV4 | IpNumber::IPV6 => "IP in IP".to_owned(),
        IpNumber(number) => format!("IP protocol {number}"),
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.protocol)?;
        if let (Some(source), Some(destination)) = (&self.source, &self.destination) {
            write!(f, " {source} → {destination}")?;
        }
        if !self.flags.is_empty() {
            write!(f, " [{}]", self.flags)?;
        }
        if self.fragment {
            f.write_str(", a fragment")?;
        }
        for vlan in &self.vlans {
            write!(f, ", VLAN {vlan}")?;
        }
        if let Some(hop_limit) = self.hop_limit {
            write!(f, ", TTL {hop_limit}")?;
        }
        write!(f, ", {} bytes", self.length)
    }
}

#[cfg(test)]
mod tests {
    use lb_rules::notation::parse_tcp_flags;

    use super::*;

    fn tuple(protocol: u8, source: &str, destination: &str) -> Tuple {
        Tuple {
            protocol,
            source: source.parse().expect("an end"),
            destination: destination.parse().expect("an end"),
            flags: parse_tcp_flags("SYN,ack").expect("flags"),
            payload: 3,
            hop_limit: 64,
        }
    }

    #[test]
    fn a_packet_from_a_tuple_reads_as_it() {
        for (number, ends, text) in [
            (
                protocol::TCP,
                ("192.0.2.2:40000", "203.0.113.10:80"),
                "TCP 192.0.2.2:40000 → 203.0.113.10:80 [syn,ack], TTL 64, 57 bytes",
            ),
            (
                protocol::UDP,
                ("[2001:db8::2]:1", "[fd00::1]:53"),
                "UDP [2001:db8::2]:1 → [fd00::1]:53, TTL 64, 65 bytes",
            ),
            (
                protocol::SCTP,
                ("192.0.2.2:7", "203.0.113.10:9"),
                "SCTP 192.0.2.2:7 → 203.0.113.10:9, TTL 64, 53 bytes",
            ),
        ] {
            let frame = tuple(number, ends.0, ends.1).frame().expect("it can be made");
            assert_eq!(Summary::of(&frame).to_string(), text);
        }
    }

    #[test]
    fn a_request_reads_as_it() {
        let ip = |text: &str| text.parse().expect("an address");
        let text = |arp, source, target| {
            neighbour_request(arp, ip(source), ip(target))
                .map(|frame| Summary::of(&frame).to_string())
        };
        let arp = text(true, "192.0.2.7", "192.0.2.10").expect("a request");
        assert_eq!(arp, "ARP 192.0.2.7 → 192.0.2.10, 42 bytes");
        let ndp = text(false, "2001:db8::7", "2001:db8::10").expect("a request");
        assert_eq!(ndp, "ICMPv6 2001:db8::7 → ff02::1:ff00:10, TTL 255, 86 bytes");
        let mixed = text(true, "192.0.2.7", "2001:db8::10").expect_err("of two families");
        assert!(mixed.to_string().contains("use ndp"), "{mixed}");
    }

    #[test]
    fn errors_in_a_tuple_are_explained() {
        let mixed = tuple(protocol::TCP, "192.0.2.2:1", "[fd00::1]:1").frame();
        assert!(mixed.is_err_and(|error| error.to_string().contains("two address families")));
    }

    #[test]
    fn any_bytes_can_be_described() {
        assert_eq!(Summary::of(&[]).protocol, "not Ethernet");
        assert_eq!(Summary::of(&[0; 20]).protocol, "not IP, or malformed");
    }
}
