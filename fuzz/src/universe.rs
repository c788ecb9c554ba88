//! The few addresses and ports that there are, so that chance meets what it has made.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::header::protocol::{SCTP, TCP, UDP};

pub const PROTOCOLS: [u8; 3] = [TCP, UDP, SCTP];
pub const PORTS: [u16; 3] = [80, 53, 3868];
pub const NODE_PORTS: [u16; 2] = [30080, 30053];
pub const CLIENT_PORTS: [u16; 4] = [40000, 40001, 40002, 2000];
pub const BACKEND_PORTS: [u16; 2] = [8080, 80];
/// Of each family and protocol.
pub const BACKENDS: usize = 6;

/// An address of a family: the network's number, then the host's.
fn address(v6: bool, network: u16, host: u16) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, network, 0, 0, 0, host).into()
    } else {
        let [high, low] = network.to_be_bytes();
        Ipv4Addr::new(10, high, low, host as u8).into()
    }
}

/// Clients outside; one of them is a pod's address.
pub fn client(v6: bool, number: usize) -> IpAddr {
    match number % 4 {
        3 => backend(v6, 0),
        number => address(v6, 7, 1 + number as u16),
    }
}

/// Addresses that Services have.
pub fn service(v6: bool, number: usize) -> IpAddr {
    address(v6, 96, 10 + (number % 3) as u16)
}

/// Addresses of the node, where NodePorts may be open.
pub fn node(v6: bool, number: usize) -> IpAddr {
    address(v6, 1, 1 + (number % 2) as u16)
}

/// Addresses of other nodes.
pub fn peer(v6: bool, number: usize) -> IpAddr {
    address(v6, 1, 101 + (number % 2) as u16)
}

pub fn backend(v6: bool, number: usize) -> IpAddr {
    address(v6, 244, 1 + (number % BACKENDS) as u16)
}

/// Of nobody.
pub fn stranger(v6: bool) -> IpAddr {
    address(v6, 99, 99)
}

/// The index of a backend's entry; 0 is never used.
pub fn backend_index(v6: bool, protocol: usize, number: usize) -> u32 {
    (1 + (usize::from(v6) * PROTOCOLS.len() + protocol) * BACKENDS + number) as u32
}

/// Every backend's number, by its entry's index.
pub fn backend_indexes() -> impl Iterator<Item = (bool, usize, usize)> {
    [false, true].into_iter().flat_map(|v6| {
        (0..PROTOCOLS.len()).flat_map(move |protocol| (0..BACKENDS).map(move |n| (v6, protocol, n)))
    })
}
