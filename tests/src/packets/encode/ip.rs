//! The IP header, its extension headers and fragments.

use std::net::IpAddr;

use etherparse::{
    IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6FragmentHeader, Ipv6Header,
    Ipv6RawExtHeader,
};

use super::FITS;
use crate::packets::address::PacketAddresses;
use crate::packets::description::{Datagram, Transport};

impl Datagram {
    pub fn encode(&self) -> Vec<u8> {
        match self.addresses() {
            PacketAddresses::V4(source, destination) => self.encode_v4(source, destination),
            PacketAddresses::V6(source, destination) => self.encode_v6(source, destination),
        }
    }

    pub fn addresses(&self) -> PacketAddresses {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                PacketAddresses::V4(source.octets(), destination.octets())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                PacketAddresses::V6(source.octets(), destination.octets())
            }
            (source, destination) => panic!("{source} and {destination} are of different families"),
        }
    }

    fn encode_v4(&self, source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
        let part = Part::of(self, self.encode_transport());
        let mut header = Ipv4Header {
            dscp: IpDscp::try_new(self.tos >> 2).expect("6 bits"),
            ecn: IpEcn::try_new(self.tos & 3).expect("2 bits"),
            identification: self.id,
            dont_fragment: self.dont_fragment && self.fragment.is_none(),
            more_fragments: part.more,
            fragment_offset: part.offset,
            options: Ipv4Options::try_from(self.options.as_slice())
                .expect("IPv4 options are 0, 4, ... 40 bytes"),
            ..Ipv4Header::new(0, self.ttl, self.protocol(), source, destination).expect(FITS)
        };
        header.set_payload_len(part.bytes.len()).expect(FITS);
        header.header_checksum = header.calc_header_checksum();
        [header.to_bytes().as_slice(), &part.bytes].concat()
    }

    fn encode_v6(&self, source: [u8; 16], destination: [u8; 16]) -> Vec<u8> {
        // From the last header to the first, because each names the one after it.
        let (mut next, mut bytes) =
            self.prepend_extensions(self.protocol(), self.encode_transport(), false);
        if self.fragment.is_some() {
            let part = Part::of(self, bytes);
            let header = Ipv6FragmentHeader::new(next, part.offset, part.more, self.id.into());
            bytes = [header.to_bytes().as_slice(), &part.bytes].concat();
            next = IpNumber::IPV6_FRAGMENTATION_HEADER;
        }
        (next, bytes) = self.prepend_extensions(next, bytes, true);
        let mut header = Ipv6Header {
            traffic_class: self.tos,
            next_header: next,
            hop_limit: self.ttl,
            source,
            destination,
            ..Default::default()
        };
        header.set_payload_length(bytes.len()).expect(FITS);
        [header.to_bytes().as_slice(), &bytes].concat()
    }

    /// Puts those extension headers in front that stand before a fragment header, or those that
    /// stand after it.
    fn prepend_extensions(
        &self,
        mut next: IpNumber,
        mut bytes: Vec<u8>,
        per_fragment: bool,
    ) -> (IpNumber, Vec<u8>) {
        for extension in
            self.extensions.iter().rev().filter(|it| is_per_fragment(it.protocol) == per_fragment)
        {
            let header = Ipv6RawExtHeader::new_raw(next, &extension.content)
                .expect("an extension header's content has 6, 14, 22, ... bytes");
            bytes = [header.to_bytes().as_slice(), &bytes].concat();
            next = IpNumber(extension.protocol);
        }
        (next, bytes)
    }

    /// From the start of the IP header to the transport header or a later fragment's share of the
    /// payload.
    pub fn header_length(&self) -> usize {
        if self.source.is_ipv4() {
            return Ipv4Header::MIN_LEN + self.options.len();
        }
        let later_fragment = self.fragment.as_ref().is_some_and(|part| part.start > 0);
        let extensions =
            self.extensions.iter().filter(|it| !later_fragment || is_per_fragment(it.protocol));
        let fragment = if self.fragment.is_some() { Ipv6FragmentHeader::LEN } else { 0 };
        Ipv6Header::LEN + extensions.map(|it| it.content.len() + 2).sum::<usize>() + fragment
    }

    fn protocol(&self) -> IpNumber {
        match self.transport {
            Transport::Tcp(_) => IpNumber::TCP,
            Transport::Udp { .. } => IpNumber::UDP,
            Transport::Sctp { .. } => IpNumber::SCTP,
            Transport::Icmp { .. } if self.source.is_ipv4() => IpNumber::ICMP,
            Transport::Icmp { .. } => IpNumber::IPV6_ICMP,
            Transport::Other(protocol) => IpNumber(protocol),
        }
    }
}

/// Hop-by-hop options and routing headers are read by routers, so every fragment has them (RFC
/// 8200, section 4.5).
fn is_per_fragment(protocol: u8) -> bool {
    matches!(IpNumber(protocol), IpNumber::IPV6_HEADER_HOP_BY_HOP | IpNumber::IPV6_ROUTE_HEADER)
}

/// The bytes of one fragment, or all of them.
struct Part {
    bytes: Vec<u8>,
    offset: IpFragOffset,
    more: bool,
}

impl Part {
    fn of(ip: &Datagram, bytes: Vec<u8>) -> Self {
        let Some(part) = &ip.fragment else {
            return Self { bytes, offset: IpFragOffset::ZERO, more: false };
        };
        let end = part.end.min(bytes.len());
        let more = end < bytes.len();
        assert!(part.start < end, "fragment {part:?} of {} bytes is empty", bytes.len());
        assert!(
            part.start % 8 == 0 && (end % 8 == 0 || !more),
            "fragments are cut at multiples of 8 bytes: {part:?}"
        );
        let offset =
            u16::try_from(part.start / 8).ok().and_then(|units| IpFragOffset::try_new(units).ok());
        Self { bytes: bytes[part.start..end].to_vec(), offset: offset.expect(FITS), more }
    }
}
