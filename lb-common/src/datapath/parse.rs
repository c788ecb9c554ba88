//! Where the headers are. Nothing is judged here but shape.

use super::select::Dialled;
use super::{Packet, tcp};
use crate::family::{Family, V4, V6};
use crate::header::{
    Ethernet, Extension, Ipv4, Ipv6, NetworkHeader, QINQ, Sctp, Tcp, Udp, VLAN, VlanTag, protocol,
};
use crate::layout::Reason;

/// Extension headers an IPv6 packet of ours may carry: hop-by-hop, destination options, routing
/// and again destination options.
const MAX_EXTENSIONS: usize = 4;

/// The network header's place and kind.
pub struct Frame {
    pub ether_type: u16,
    pub network: usize,
}

/// Where the transport header is.
#[derive(Clone, Copy)]
pub struct Place {
    pub network: usize,
    pub transport: usize,
    pub protocol: u8,
}

/// The ends of a packet, as it stands on the wire.
#[derive(Clone, Copy)]
pub struct Segment<F: Family> {
    pub place: Place,
    pub source: F::Address,
    pub destination: F::Address,
    pub source_port: u16,
    pub destination_port: u16,
    /// TCP's flags, or those that say the same of an SCTP packet; 0 for datagrams.
    pub tcp_flags: u8,
}

impl Place {
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        self.protocol == protocol::TCP
    }

    #[inline(always)]
    pub fn is_sctp(&self) -> bool {
        self.protocol == protocol::SCTP
    }

    /// Whether the protocol knows no connections.
    #[inline(always)]
    pub fn is_datagram(&self) -> bool {
        self.protocol == protocol::UDP
    }
}

impl<F: Family> Segment<F> {
    /// The connection that a client's packet is of.
    #[inline(always)]
    pub fn dialled(&self) -> Dialled<F>
    where
        F: Network,
    {
        Dialled {
            client: self.source,
            client_port: self.source_port,
            address: self.destination,
            port: self.destination_port,
            protocol: self.place.protocol,
        }
    }
}

/// Looks past the Ethernet header and up to two VLAN tags.
#[inline(always)]
pub fn frame<P: Packet>(packet: &P) -> Option<Frame> {
    let ethernet: &Ethernet = packet.header(0)?;
    let mut ether_type = u16::from_be_bytes(ethernet.ether_type);
    let mut network = size_of::<Ethernet>();
    for _ in 0..2 {
        if ether_type != VLAN && ether_type != QINQ {
            break;
        }
        let tag: &VlanTag = packet.header(network)?;
        ether_type = u16::from_be_bytes(tag.ether_type);
        network += size_of::<VlanTag>();
    }
    Some(Frame { ether_type, network: packet.blur(network) })
}

/// A family's way to find the transport header.
pub trait Network: Family {
    /// The protocol of errors.
    const ICMP: u8;

    /// Whether an ICMP packet of this type quotes another packet that something is wrong with.
    fn is_error(kind: u8) -> bool;

    fn transport<P: Packet>(packet: &P, network: usize) -> Result<Place, Reason>;
}

impl Network for V4 {
    const ICMP: u8 = protocol::ICMP;

    /// Unreachable, source quench, time exceeded, parameter problem.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 4 | 11 | 12)
    }

    #[inline(always)]
    fn transport<P: Packet>(packet: &P, network: usize) -> Result<Place, Reason> {
        let header: &Ipv4 = packet.header(network).ok_or(Reason::Malformed)?;
        let length = usize::from(header.version_and_length & 0x0f) * 4;
        if header.version_and_length >> 4 != 4 || length < size_of::<Ipv4>() {
            return Err(Reason::Malformed);
        }
        // More fragments follow, or this one is not the first.
        if u16::from_be_bytes(header.flags_and_offset) & 0x3fff != 0 {
            return Err(Reason::Fragment);
        }
        Ok(Place { network, transport: network + length, protocol: header.protocol })
    }
}

impl Network for V6 {
    const ICMP: u8 = protocol::ICMPV6;

    /// Unreachable, packet too big, time exceeded, parameter problem.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }

    #[inline(always)]
    fn transport<P: Packet>(packet: &P, network: usize) -> Result<Place, Reason> {
        let header: &Ipv6 = packet.header(network).ok_or(Reason::Malformed)?;
        if header.version_and_class[0] >> 4 != 6 {
            return Err(Reason::Malformed);
        }
        let mut protocol = header.next_header;
        let mut transport = network + size_of::<Ipv6>();
        for _ in 0..MAX_EXTENSIONS {
            match protocol {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                    let extension: &Extension =
                        packet.header(transport).ok_or(Reason::Malformed)?;
                    protocol = extension.next_header;
                    transport += (usize::from(extension.length) + 1) * 8;
                }
                protocol::FRAGMENT => return Err(Reason::Fragment),
                _ => break,
            }
        }
        // At most four headers of 2 KiB.
        Ok(Place { network, transport: packet.blur(transport), protocol })
    }
}

/// Finds and reads the ends of the packet. ICMP has none: `UnknownQuote` is what it comes to if no
/// stage makes more of it.
#[inline(always)]
pub fn packet<F: Network, P: Packet>(packet: &P, network: usize) -> Result<Segment<F>, Reason> {
    F::transport(packet, network).and_then(|place| segment(packet, place))
}

/// Reads the ends of the packet.
#[inline(always)]
pub fn segment<F: Network, P: Packet>(packet: &P, place: Place) -> Result<Segment<F>, Reason> {
    let network: &F::Header = packet.header(place.network).ok_or(Reason::Malformed)?;
    let (source, destination) = (network.source(), network.destination());
    let (ports, tcp_flags) = match place.protocol {
        protocol::TCP => {
            let tcp: &Tcp = packet.header(place.transport).ok_or(Reason::Malformed)?;
            (&tcp.ports, tcp.flags)
        }
        protocol::UDP => {
            let udp: &Udp = packet.header(place.transport).ok_or(Reason::Malformed)?;
            (&udp.ports, 0)
        }
        protocol::SCTP => {
            let sctp: &Sctp = packet.header(place.transport).ok_or(Reason::Malformed)?;
            (&sctp.ports, tcp::flags_of_chunk(sctp.chunk))
        }
        protocol if protocol == F::ICMP => return Err(Reason::UnknownQuote),
        _ => return Err(Reason::UnknownProtocol),
    };
    Ok(Segment {
        place,
        source,
        destination,
        source_port: u16::from_be_bytes(ports.source),
        destination_port: u16::from_be_bytes(ports.destination),
        tcp_flags,
    })
}
