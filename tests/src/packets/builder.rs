//! [`Packet`]: the bytes of a packet and their description.
//!
//! Every modifier returns a changed copy that is encoded again, so its checksums are correct.
//! Modifiers panic if they do not apply: a test that sets the TTL of an ARP packet is wrong.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;

use etherparse::{EtherType, IpNumber};

use super::description::{Body, Content, Datagram, Description, Edit, Extension, Tag};
use super::{Endpoint, Mac, dissect};

/// An Ethernet frame and its description. Dereferences to its bytes.
#[derive(Clone)]
#[must_use = "a modifier returns the changed packet and leaves its own as it was"]
pub struct Packet {
    description: Description,
    bytes: Vec<u8>,
}

/// Addresses and links.
impl Packet {
    /// A copy of the packet from another address, or address and port.
    pub fn from(&self, source: impl Into<Endpoint>) -> Self {
        let source = source.into();
        self.change_ip(|ip| {
            ip.source = source.address;
            if let Some(port) = source.port {
                *ip.transport.ports().expect("only TCP, UDP and SCTP have ports").0 = port;
            }
        })
    }

    /// A copy of the packet to another address, or address and port.
    pub fn to(&self, destination: impl Into<Endpoint>) -> Self {
        let destination = destination.into();
        self.change_ip(|ip| {
            ip.destination = destination.address;
            if let Some(port) = destination.port {
                *ip.transport.ports().expect("only TCP, UDP and SCTP have ports").1 = port;
            }
        })
    }

    /// The packet in the other direction: MACs, addresses and ports are swapped.
    pub fn reversed(&self) -> Self {
        let ethernet = &self.description.ethernet;
        self.macs(ethernet.destination, ethernet.source).change_ip(|ip| {
            std::mem::swap(&mut ip.source, &mut ip.destination);
            if let Some((source, destination)) = ip.transport.ports() {
                std::mem::swap(source, destination);
            }
        })
    }

    pub fn macs(&self, source: impl Into<Mac>, destination: impl Into<Mac>) -> Self {
        self.change(|packet| {
            packet.ethernet.source = source.into();
            packet.ethernet.destination = destination.into();
        })
    }

    /// Adds an 802.1Q tag, inside those that are there.
    pub fn vlan(&self, id: u16) -> Self {
        self.change(|packet| {
            packet.ethernet.tags.push(Tag { ether_type: EtherType::VLAN_TAGGED_FRAME.0, id })
        })
    }

    /// Adds two tags: 802.1ad outside, 802.1Q inside.
    pub fn qinq(&self, outer: u16, inner: u16) -> Self {
        self.change(|packet| {
            packet.ethernet.tags.push(Tag { ether_type: EtherType::PROVIDER_BRIDGING.0, id: outer })
        })
        .vlan(inner)
    }

    pub fn untagged(&self) -> Self {
        self.change(|packet| packet.ethernet.tags.clear())
    }
}

/// The IP header.
impl Packet {
    /// TTL or hop limit.
    pub fn ttl(&self, ttl: u8) -> Self {
        self.change_ip(|ip| ip.ttl = ttl)
    }

    /// Type of service or traffic class: DSCP and ECN.
    pub fn tos(&self, tos: u8) -> Self {
        self.change_ip(|ip| ip.tos = tos)
    }

    pub fn traffic_class(&self) -> u8 {
        self.ip().tos
    }

    /// The identification: of an IPv4 packet, or in the fragment header of an IPv6 one.
    pub fn id(&self, id: u16) -> Self {
        self.change_ip(|ip| ip.id = id)
    }

    /// The DF bit of IPv4. Set by default, except in fragments.
    pub fn dont_fragment(&self, set: bool) -> Self {
        self.change_ip(|ip| ip.dont_fragment = set)
    }

    /// Encoded IPv4 options: a multiple of 4 bytes, at most 40.
    pub fn ip_options(&self, options: &[u8]) -> Self {
        self.change_ip(|ip| {
            assert!(ip.source.is_ipv4(), "only IPv4 has options");
            ip.options = options.to_vec();
        })
    }

    /// Adds an IPv6 extension header after the existing ones. Hop-by-hop and routing headers come
    /// first. The content follows next header and length: 6, 14, 22, … bytes.
    pub fn extension(&self, protocol: u8, content: &[u8]) -> Self {
        self.change_ip(|ip| {
            assert!(ip.source.is_ipv6(), "only IPv6 has extension headers");
            ip.extensions.push(Extension { protocol, content: content.to_vec() });
        })
    }

    /// Adds a hop-by-hop header of 8 bytes with padding.
    pub fn hop_by_hop(&self) -> Self {
        self.extension(IpNumber::IPV6_HEADER_HOP_BY_HOP.0, &[1, 4, 0, 0, 0, 0])
    }

    /// Adds a destination options header of 16 bytes with padding, in the fragmentable part.
    pub fn destination_options(&self) -> Self {
        self.extension(
            IpNumber::IPV6_DESTINATION_OPTIONS.0,
            &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        )
    }

    /// The fragment with this part of the IP payload, such as `fragment(..1480)` and
    /// `fragment(1480..)`. The flag for more fragments is set unless the part reaches the end. The
    /// transport checksum is that of the whole packet.
    pub fn fragment(&self, part: impl RangeBounds<usize>) -> Self {
        let start = match part.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(_) | Bound::Unbounded => 0,
        };
        let end = match part.end_bound() {
            Bound::Excluded(&end) => end,
            Bound::Included(&last) => last + 1,
            Bound::Unbounded => usize::MAX,
        };
        self.change_ip(|ip| ip.fragment = Some(start..end))
    }

    /// The packet before fragmentation.
    pub fn whole(&self) -> Self {
        self.change_ip(|ip| ip.fragment = None)
    }
}

/// Payload, encapsulated packets, damage, and offsets.
impl Packet {
    /// Sets the payload. SCTP carries it in a DATA chunk, which replaces the other chunk.
    pub fn payload(&self, payload: &[u8]) -> Self {
        self.change_ip(|ip| ip.body = Body::Bytes(payload.to_vec()))
    }

    /// Changes the inner packet: the one that an ICMP error quotes or a tunnel carries.
    pub fn inner(&self, change: impl FnOnce(&Packet) -> Packet) -> Self {
        self.change_ip(|ip| match &mut ip.body {
            Body::Packet { inner, .. } => **inner = change(inner),
            Body::Bytes(_) => panic!("there is no packet inside this one"),
        })
    }

    /// Keeps the inner packet's IP header and this number of bytes after it; old routers quote 8.
    pub fn quoting_only(&self, bytes: usize) -> Self {
        self.change_ip(|ip| match &mut ip.body {
            Body::Packet { transport_bytes, .. } => *transport_bytes = Some(bytes),
            Body::Bytes(_) => panic!("there is no packet inside this one"),
        })
    }

    /// Changes the encoded bytes, as in `.with(|bytes| bytes[14] = 0x4f)`. The change is applied again
    /// to packets derived from this one.
    pub fn with(&self, edit: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> Self {
        self.change(|packet| packet.edits.push(Edit(Arc::new(edit))))
    }

    /// Keeps only the first bytes. The lengths in the headers do not change.
    pub fn truncated(&self, length: usize) -> Self {
        self.with(move |bytes| bytes.truncate(length))
    }

    /// Appends zeros, as Ethernet does for short packets.
    pub fn padded(&self, length: usize) -> Self {
        self.with(move |bytes| bytes.resize(length.max(bytes.len()), 0))
    }

    /// The offset of the IP header.
    pub fn network_offset(&self) -> usize {
        14 + 4 * self.description.ethernet.tags.len()
    }

    /// The offset of the transport header, or of the payload of a later fragment.
    pub fn transport_offset(&self) -> usize {
        self.network_offset() + self.ip().header_length()
    }

    /// The destination address.
    pub fn destination(&self) -> IpAddr {
        self.ip().destination
    }

    /// The bytes without the Ethernet header.
    pub fn ip_bytes(&self) -> &[u8] {
        self.bytes.get(self.network_offset()..).unwrap_or_default()
    }
}

impl Packet {
    pub(super) fn new(description: Description) -> Self {
        let bytes = description.encode();
        Self { description, bytes }
    }

    pub(super) fn ip(&self) -> &Datagram {
        match &self.description.content {
            Content::Ip(ip) => ip,
            Content::Arp(_) | Content::Raw(_) => panic!("this is not an IP packet"),
        }
    }

    pub(super) fn change_ip(&self, change: impl FnOnce(&mut Datagram)) -> Self {
        self.change(|packet| match &mut packet.content {
            Content::Ip(ip) => change(ip),
            Content::Arp(_) | Content::Raw(_) => panic!("this is not an IP packet"),
        })
    }

    fn change(&self, change: impl FnOnce(&mut Description)) -> Self {
        let mut description = self.description.clone();
        change(&mut description);
        Self::new(description)
    }
}

impl Deref for Packet {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Packets are equal when their bytes are.
impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", dissect(&self.bytes))
    }
}
