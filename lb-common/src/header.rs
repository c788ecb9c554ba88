//! Views of a packet's headers: named octets, nothing decoded in advance.
//!
//! Every view consists of bytes, so it may be at any offset, and any bytes are valid.

mod network;

use crate::address::{Address4, Address6};
use crate::word::{load, store};

pub use network::NetworkHeader;

/// A type that any bytes can be viewed as.
///
/// # Safety
/// The type is `repr(C)`, has alignment 1 and no byte pattern is invalid for it.
pub unsafe trait Header: Sized {}

/// IP protocol numbers.
pub mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
}

/// EtherTypes of VLAN tags, in host order.
pub const VLAN: u16 = 0x8100;
pub const QINQ: u16 = 0x88a8;

#[repr(C)]
#[derive(Debug)]
pub struct Ethernet {
    pub destination: [u8; 6],
    pub source: [u8; 6],
    pub ether_type: [u8; 2],
}

#[repr(C)]
#[derive(Debug)]
pub struct VlanTag {
    pub control: [u8; 2],
    pub ether_type: [u8; 2],
}

#[repr(C)]
#[derive(Debug)]
pub struct Ipv4 {
    pub version_and_length: u8,
    pub traffic_class: u8,
    pub total_length: [u8; 2],
    pub identification: [u8; 2],
    pub flags_and_offset: [u8; 2],
    pub time_to_live: u8,
    pub protocol: u8,
    pub checksum: [u8; 2],
    pub source: [u8; 4],
    pub destination: [u8; 4],
}

#[repr(C)]
#[derive(Debug)]
pub struct Ipv6 {
    pub version_and_class: [u8; 4],
    pub payload_length: [u8; 2],
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [u8; 16],
    pub destination: [u8; 16],
}

/// The common start of IPv6's hop-by-hop, routing and destination options headers.
#[repr(C)]
#[derive(Debug)]
pub struct Extension {
    pub next_header: u8,
    /// In units of eight octets, without the first eight.
    pub length: u8,
}

/// The fragment header of IPv6. IPv4 has the same fields in its header.
#[repr(C)]
#[derive(Debug)]
pub struct FragmentHeader {
    pub next_header: u8,
    pub reserved: u8,
    /// The offset in units of eight octets (13 bits), two reserved bits, and whether more fragments
    /// follow.
    pub offset_and_more: [u8; 2],
    pub identification: [u8; 4],
}

#[repr(C)]
#[derive(Debug)]
pub struct TransportPorts {
    pub source: [u8; 2],
    pub destination: [u8; 2],
}

#[repr(C)]
#[derive(Debug)]
pub struct Tcp {
    pub ports: TransportPorts,
    pub sequence: [u8; 4],
    pub acknowledgement: [u8; 4],
    pub data_offset: u8,
    pub flags: u8,
    pub window: [u8; 2],
    pub checksum: [u8; 2],
    pub urgent: [u8; 2],
}

impl Tcp {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

/// The start of a TCP option; [`Self::END`] and [`Self::NOTHING`] have no length.
#[repr(C)]
#[derive(Debug)]
pub struct TcpOption {
    pub kind: u8,
    /// In octets, with kind and length.
    pub length: u8,
}

impl TcpOption {
    pub const END: u8 = 0;
    pub const NOTHING: u8 = 1;
    pub const SEGMENT_SIZE: u8 = 2;
}

/// The UDP port of Generic UDP Encapsulation.
pub const GUE: u16 = 6080;

/// Generic UDP Encapsulation, version 0, with eight octets of private data: the key of the sender's
/// cluster.
#[repr(C)]
#[derive(Debug)]
pub struct KeyedGue {
    /// Version, control flag, and the number of words after the flags.
    pub control: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    pub flags: [u8; 2],
    pub key: [u8; 8],
}

impl KeyedGue {
    /// Version 0, no control message, two words.
    pub const CONTROL: u8 = 2;
    /// Version 0, a control message, whose type takes the place of the protocol, two words.
    pub const MESSAGE: u8 = 0x20 | 2;
    pub const PROBE: u8 = 1;
    pub const PROBE_REPLY: u8 = 2;

    /// In the second octet of the flags, beside the number of a question
    /// (`datapath::stages::earlier`): the node that was asked returns the packet.
    pub const RETURNED: u8 = 0x80;
}

#[repr(C)]
#[derive(Debug)]
pub struct Udp {
    pub ports: TransportPorts,
    pub length: [u8; 2],
    pub checksum: [u8; 2],
}

/// A control packet of bidirectional forwarding detection without authentication (RFC 5880).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bfd {
    pub version_and_diagnostic: u8,
    pub state_and_flags: u8,
    pub multiplier: u8,
    pub length: u8,
    /// The sender's discriminator, the receiver's, and three intervals.
    pub fields: [[u8; 4]; 5],
}

impl Bfd {
    pub const POLL: u8 = 0x20;
    pub const FINAL: u8 = 0x10;
    /// The ports of sessions with peers on the link, and with peers behind routers.
    pub const ONE_HOP: u16 = 3784;
    pub const SEVERAL_HOPS: u16 = 4784;

    #[inline(always)]
    pub fn receiver(&self) -> u32 {
        u32::from_be_bytes(self.fields[1])
    }

    #[inline(always)]
    pub fn words(&self) -> [[u8; 4]; 6] {
        let first =
            [self.version_and_diagnostic, self.state_and_flags, self.multiplier, self.length];
        let [a, b, c, d, e] = self.fields;
        [first, a, b, c, d, e]
    }
}

/// The common header.
#[repr(C)]
#[derive(Debug)]
pub struct Sctp {
    pub ports: TransportPorts,
    pub verification_tag: [u8; 4],
    pub checksum: [u8; 4],
}

/// The start of a chunk. Every packet has one.
#[repr(C)]
#[derive(Debug)]
pub struct SctpChunk {
    pub kind: u8,
    pub flags: u8,
    pub length: [u8; 2],
}

/// Chunk types.
impl Sctp {
    pub const DATA: u8 = 0;
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// ARP for Ethernet and IPv4.
#[repr(C)]
#[derive(Debug)]
pub struct Arp {
    pub hardware: [u8; 2],
    pub protocol: [u8; 2],
    pub hardware_length: u8,
    pub protocol_length: u8,
    pub operation: [u8; 2],
    pub sender_hardware: [u8; 6],
    pub sender_protocol: [u8; 4],
    pub target_hardware: [u8; 6],
    pub target_protocol: [u8; 4],
}

impl Arp {
    #[inline(always)]
    pub fn sender(&self) -> Address4 {
        load(&self.sender_protocol)
    }

    #[inline(always)]
    pub fn target(&self) -> Address4 {
        load(&self.target_protocol)
    }

    #[inline(always)]
    pub fn set_sender(&mut self, address: Address4) {
        store(&mut self.sender_protocol, address);
    }

    #[inline(always)]
    pub fn set_target(&mut self, address: Address4) {
        store(&mut self.target_protocol, address);
    }
}

/// The hop limit of neighbour discovery: packets with another one have crossed a router.
pub const LINK_HOP_LIMIT: u8 = 255;

/// A neighbour solicitation or advertisement, without its options.
#[repr(C)]
#[derive(Debug)]
pub struct NeighbourMessage {
    pub kind: u8,
    pub code: u8,
    pub checksum: [u8; 2],
    /// Of an advertisement.
    pub flags: [u8; 4],
    pub target: [u8; 16],
}

impl NeighbourMessage {
    #[inline(always)]
    pub fn target(&self) -> Address6 {
        load(&self.target)
    }
}

/// The option of neighbour discovery with an Ethernet address, or the first eight octets of another.
#[repr(C)]
#[derive(Debug)]
pub struct LinkOption {
    pub kind: u8,
    /// In units of eight octets, with the type and this field.
    pub length: u8,
    pub address: [u8; 6],
}

/// The header of ICMP and ICMPv6 errors.
#[repr(C)]
#[derive(Debug)]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
    pub checksum: [u8; 2],
    pub rest: [u8; 4],
}

macro_rules! headers {
    ($($header:ty: $size:literal,)*) => {$(
        // SAFETY: `repr(C)` structs of `u8` and arrays of it: alignment 1, every pattern valid.
        unsafe impl Header for $header {}
        const _: () = assert!(size_of::<$header>() == $size && align_of::<$header>() == 1);
    )*};
}

headers! {
    Ethernet: 14,
    VlanTag: 4,
    Ipv4: 20,
    Ipv6: 40,
    Extension: 2,
    FragmentHeader: 8,
    TransportPorts: 4,
    Tcp: 20,
    TcpOption: 2,
    Udp: 8,
    KeyedGue: 12,
    Bfd: 24,
    Sctp: 12,
    SctpChunk: 4,
    Icmp: 8,
    Arp: 28,
    NeighbourMessage: 24,
    LinkOption: 8,
    [u8; 2]: 2,
    [u8; 4]: 4,
    [u8; 14]: 14,
}
