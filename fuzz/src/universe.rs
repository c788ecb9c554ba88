//! A small set of addresses and ports, so that random choices refer to each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::header::protocol::{SCTP, TCP, UDP};

/// The device that all packets arrive on, and its link-layer address.
pub const DEVICE: u32 = 1;
pub const LINK_ADDRESS: [u8; 6] = [2, 0, 0, 0, 1, 1];

/// The link-layer address of an interface above it, to which packets are addressed.
pub const LINK_ADDRESS_ABOVE: [u8; 6] = [2, 0, 0, 0, 0, 0x0d];

pub const PROTOCOLS: [u8; 3] = [TCP, UDP, SCTP];
pub const PORTS: [u16; 3] = [80, 53, 3868];
pub const NODE_PORTS: [u16; 2] = [30080, 30053];
pub const CLIENT_PORTS: [u16; 4] = [40000, 40001, 40002, 2000];
pub const BACKEND_PORTS: [u16; 2] = [8080, 80];
/// Backends of each family and protocol.
pub const BACKENDS: usize = 6;

/// An address: 10.network.host in IPv4, fd00:0:0:network::host in IPv6.
fn address(v6: bool, network: u16, host: u16) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, network, 0, 0, 0, host).into()
    } else {
        let [high, low] = network.to_be_bytes();
        Ipv4Addr::new(10, high, low, host as u8).into()
    }
}

/// Addresses of external clients. One of them is a pod's.
pub fn client_address(v6: bool, number: usize) -> IpAddr {
    match number % 4 {
        3 => backend_address(v6, 0),
        number => address(v6, 7, 1 + number as u16),
    }
}

/// Addresses of Services.
pub fn service_address(v6: bool, number: usize) -> IpAddr {
    address(v6, 96, 10 + (number % 3) as u16)
}

/// Addresses of this node, where NodePorts may be open.
pub fn node_address(v6: bool, number: usize) -> IpAddr {
    address(v6, 1, 1 + (number % 2) as u16)
}

/// Addresses of other nodes.
pub fn peer_address(v6: bool, number: usize) -> IpAddr {
    address(v6, 1, 101 + (number % 2) as u16)
}

pub fn backend_address(v6: bool, number: usize) -> IpAddr {
    address(v6, 244, 1 + (number % BACKENDS) as u16)
}

/// An address that belongs to no node, client, Service or backend.
pub fn foreign_address(v6: bool) -> IpAddr {
    address(v6, 99, 99)
}

/// The index of a backend. 0 is never used.
pub fn backend_index(v6: bool, protocol: usize, number: usize) -> u32 {
    (1 + (usize::from(v6) * PROTOCOLS.len() + protocol) * BACKENDS + number) as u32
}

/// Family, protocol and number of every backend.
pub fn backend_indexes() -> impl Iterator<Item = (bool, usize, usize)> {
    [false, true].into_iter().flat_map(|v6| {
        (0..PROTOCOLS.len()).flat_map(move |protocol| (0..BACKENDS).map(move |n| (v6, protocol, n)))
    })
}
