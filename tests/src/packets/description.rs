//! The description of a packet: the values that the builder collects and `encode` writes.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use etherparse::{ArpEthIpv4Packet, TcpHeader};

use super::{Mac, Packet};

#[derive(Clone, Debug)]
pub struct Description {
    pub ethernet: Ethernet,
    pub content: Content,
    pub edits: Vec<Edit>,
}

#[derive(Clone, Debug)]
pub struct Ethernet {
    pub source: Mac,
    pub destination: Mac,
    /// Outermost first.
    pub tags: Vec<Tag>,
}

#[derive(Clone, Copy, Debug)]
pub struct Tag {
    pub ether_type: u16,
    pub id: u16,
}

#[derive(Clone, Debug)]
pub enum Content {
    Ip(Datagram),
    Arp(ArpEthIpv4Packet),
    /// The whole frame, including the Ethernet header.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Datagram {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    pub tos: u8,
    pub id: u16,
    pub dont_fragment: bool,
    /// IPv4 options.
    pub options: Vec<u8>,
    /// IPv6 extension headers, in their order.
    pub extensions: Vec<Extension>,
    /// The part of the fragmentable bytes that this packet carries.
    pub fragment: Option<Range<usize>>,
    pub transport: Transport,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub struct Extension {
    pub protocol: u8,
    /// The content without next header and length.
    pub content: Vec<u8>,
}

#[derive(Clone, Debug)]
pub enum Transport {
    /// The checksum in it is ignored; `encode` computes it.
    Tcp(TcpHeader),
    Udp {
        source: u16,
        destination: u16,
        checksum: bool,
    },
    Sctp {
        source: u16,
        destination: u16,
        tag: u32,
        /// The type of the only chunk, if there is no payload.
        chunk: u8,
    },
    Icmp {
        kind: u8,
        code: u8,
        rest: [u8; 4],
    },
    /// No transport header: the body follows the IP header.
    Other(u8),
}

impl Transport {
    /// Source and destination.
    pub fn ports(&mut self) -> Option<(&mut u16, &mut u16)> {
        match self {
            Self::Tcp(tcp) => Some((&mut tcp.source_port, &mut tcp.destination_port)),
            Self::Udp { source, destination, .. } | Self::Sctp { source, destination, .. } => {
                Some((source, destination))
            }
            Self::Icmp { .. } | Self::Other(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Body {
    Bytes(Vec<u8>),
    /// The inner packet from its IP header on, in an ICMP error or a tunnel.
    Packet {
        inner: Box<Packet>,
        /// How many bytes after the inner IP header are kept.
        transport_bytes: Option<usize>,
    },
}

/// A change of the encoded bytes. Stored, so that packets derived from a damaged one are damaged in
/// the same way.
#[derive(Clone)]
pub struct Edit(pub Arc<Change>);

type Change = dyn Fn(&mut Vec<u8>) + Send + Sync;

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Edit")
    }
}
