//! The transport header, its checksum over the addresses, and the payload.

use etherparse::{Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, TcpHeader, UdpHeader};

use super::FITS;
use crate::packets::address::PacketAddresses;
use crate::packets::description::{Body, Datagram, Transport};

impl Datagram {
    /// From the transport header to the end.
    pub fn encode_transport(&self) -> Vec<u8> {
        let body = self.body.encode();
        match &self.transport {
            Transport::Tcp(tcp) => encode_tcp(self.addresses(), tcp.clone(), &body),
            &Transport::Udp { source, destination, checksum } => {
                let header =
                    UdpHeader::without_ipv4_checksum(source, destination, body.len()).expect(FITS);
                encode_udp(self.addresses(), header, checksum, &body)
            }
            &Transport::Icmp { kind, code, rest } => {
                encode_icmp(self.addresses(), kind, code, rest, &body)
            }
            &Transport::Sctp { source, destination, tag, chunk } => {
                encode_sctp(source, destination, tag, chunk, &body)
            }
            Transport::Other(_) => body,
        }
    }
}

impl Body {
    fn encode(&self) -> Vec<u8> {
        match self {
            Body::Bytes(bytes) => bytes.clone(),
            Body::Packet { inner, transport_bytes } => {
                let bytes = inner.ip_bytes();
                let kept =
                    transport_bytes.map_or(bytes.len(), |more| inner.ip().header_length() + more);
                bytes[..kept.min(bytes.len())].to_vec()
            }
        }
    }
}

fn encode_tcp(addresses: PacketAddresses, mut header: TcpHeader, body: &[u8]) -> Vec<u8> {
    header.checksum = match addresses {
        PacketAddresses::V4(from, to) => header.calc_checksum_ipv4_raw(from, to, body).expect(FITS),
        PacketAddresses::V6(from, to) => header.calc_checksum_ipv6_raw(from, to, body).expect(FITS),
    };
    [header.to_bytes().as_slice(), body].concat()
}

fn encode_udp(
    addresses: PacketAddresses,
    mut header: UdpHeader,
    checksum: bool,
    body: &[u8],
) -> Vec<u8> {
    header.checksum = match addresses {
        _ if !checksum => 0,
        PacketAddresses::V4(from, to) => header.calc_checksum_ipv4_raw(from, to, body).expect(FITS),
        PacketAddresses::V6(from, to) => header.calc_checksum_ipv6_raw(from, to, body).expect(FITS),
    };
    [header.to_bytes().as_slice(), body].concat()
}

/// All types by their numbers: a test may send what `etherparse` has no name for.
fn encode_icmp(
    addresses: PacketAddresses,
    type_u8: u8,
    code_u8: u8,
    bytes5to8: [u8; 4],
    body: &[u8],
) -> Vec<u8> {
    let header = match addresses {
        PacketAddresses::V4(..) => {
            Icmpv4Header::with_checksum(Icmpv4Type::Unknown { type_u8, code_u8, bytes5to8 }, body)
                .to_bytes()
                .to_vec()
        }
        PacketAddresses::V6(from, to) => {
            let kind = Icmpv6Type::Unknown { type_u8, code_u8, bytes5to8 };
            Icmpv6Header::with_checksum(kind, from, to, body).expect(FITS).to_bytes().to_vec()
        }
    };
    [&header, body].concat()
}

fn encode_sctp(source: u16, destination: u16, tag: u32, chunk: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    if !payload.is_empty() {
        // DATA, first and last part of a message: type, flags, length, sequence number, stream,
        // number in it, protocol.
        let length = u16::try_from(16 + payload.len()).expect(FITS).to_be_bytes();
        bytes.extend([0, 3, length[0], length[1], 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    } else if matches!(chunk, 1 | 2) {
        // INIT and its acknowledgement: type, flags, length, initiate tag (the packet's own, so that all
        // packets of a conversation have one), receiver window, streams out and in, first sequence
        // number.
        bytes.extend([chunk, 0, 0, 20]);
        bytes.extend(tag.to_be_bytes());
        bytes.extend([0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1]);
    } else {
        // Others by their header alone.
        bytes.extend([chunk, 0, 0, 4]);
    }
    // RFC 9260, appendix A: the one checksum of these protocols that is stored little-endian.
    let checksum = crc32c::crc32c(&bytes).to_le_bytes();
    bytes[8..12].copy_from_slice(&checksum);
    bytes
}
