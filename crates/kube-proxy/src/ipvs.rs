//! Virtual servers of IPVS: lists them, decides which ones kube-proxy made, and removes those.
//!
//! <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/ip_vs.h>

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::io;
use std::net::{IpAddr, SocketAddr};

use lb_network::netlink::{
    GENERIC_HEADER_OCTETS, Netlink, encode_attribute, find_generic_family, read_attributes,
    read_u16_at,
};
use nix::ifaddrs::getifaddrs;
use nix::libc::{AF_INET, AF_INET6, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP};
use nix::sys::socket::SockProtocol;

/// The interface to which kube-proxy adds the addresses of Services in IPVS mode.
pub const DEVICE: &str = "kube-ipvs0";

const FAMILY: &str = "IPVS";
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;

const SERVICE: u16 = 1;
/// Attributes of a virtual server.
const ADDRESS_FAMILY: u16 = 1;
const PROTOCOL: u16 = 2;
const ADDRESS: u16 = 3;
const PORT: u16 = 4;

/// The default range of NodePorts in a cluster.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// A virtual server with an address. Those with a firewall mark are left out: kube-proxy does not use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VirtualServer {
    protocol: u16,
    address: SocketAddr,
}

impl Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol: &dyn Display = match self.protocol {
            6 => &"TCP",
            17 => &"UDP",
            132 => &"SCTP",
            _ => &self.protocol,
        };
        write!(f, "{protocol} {}", self.address)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtualServers {
    pub kube_proxys: Vec<VirtualServer>,
    pub others: Vec<VirtualServer>,
}

impl VirtualServers {
    /// Finds the virtual servers of this machine; none without IPVS.
    pub fn find() -> io::Result<Self> {
        let mut netlink = Netlink::open(SockProtocol::NetlinkGeneric)?;
        let Some(family) = find_generic_family(&mut netlink, FAMILY)? else {
            return Ok(Self::default());
        };
        let mut all = Vec::new();
        netlink.ask(family, NLM_F_DUMP, &[GET_SERVICE, 1, 0, 0], |body| {
            all.extend(read_server(body));
        })?;
        let addresses = KubeProxyAddresses::read()?;
        let (kube_proxys, others) = all.into_iter().partition(|server| addresses.explain(server));
        Ok(Self { kube_proxys, others })
    }

    /// Removes those of kube-proxy.
    pub fn remove(&self) -> io::Result<()> {
        let mut netlink = Netlink::open(SockProtocol::NetlinkGeneric)?;
        let Some(family) = find_generic_family(&mut netlink, FAMILY)? else { return Ok(()) };
        self.kube_proxys
            .iter()
            .try_for_each(|server| netlink.ask(family, NLM_F_ACK, &removal(server), |_| {}))
    }
}

/// By which kube-proxy's virtual servers are recognised.
#[derive(Debug, Default)]
struct KubeProxyAddresses {
    /// Of Services: those of [`DEVICE`].
    services: BTreeSet<IpAddr>,
    /// Addresses of the node: those of all other interfaces.
    node: BTreeSet<IpAddr>,
}

impl KubeProxyAddresses {
    fn read() -> io::Result<Self> {
        let mut addresses = Self::default();
        for interface in getifaddrs()? {
            let Some(address) = interface.address else { continue };
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
            let is_of_services = interface.interface_name == DEVICE;
            let of = if is_of_services { &mut addresses.services } else { &mut addresses.node };
            of.extend(v4.or(v6));
        }
        Ok(addresses)
    }

    /// Whether kube-proxy makes a virtual server like this: for an address of a Service, or for a NodePort.
    /// A virtual server on another port of the node may be a user's.
    fn explain(&self, server: &VirtualServer) -> bool {
        let (ip, port) = (server.address.ip(), server.address.port());
        self.services.contains(&ip)
            || !self.services.is_empty() && self.node.contains(&ip) && NODE_PORTS.contains(&port)
    }
}

fn read_server(body: &[u8]) -> Option<VirtualServer> {
    let find =
        |bytes, wanted| read_attributes(bytes).find(|(kind, _)| *kind == wanted).map(|of| of.1);
    let all = find(body.get(GENERIC_HEADER_OCTETS..)?, SERVICE)?;
    let address = find(all, ADDRESS)?;
    let ip: IpAddr = match i32::from(read_u16_at(find(all, ADDRESS_FAMILY)?, 0)?) {
        AF_INET => (*address.first_chunk::<4>()?).into(),
        AF_INET6 => (*address.first_chunk::<16>()?).into(),
        _ => return None,
    };
    let port = u16::from_be_bytes(*find(all, PORT)?.first_chunk()?);
    let protocol = read_u16_at(find(all, PROTOCOL)?, 0)?;
    Some(VirtualServer { protocol, address: (ip, port).into() })
}

fn removal(server: &VirtualServer) -> Vec<u8> {
    // `union nf_inet_addr`: the octets of an IPv4 address come first.
    let mut address = [0; 16];
    let family = match server.address.ip() {
        IpAddr::V4(ip) => {
            address[..4].copy_from_slice(&ip.octets());
            AF_INET
        }
        IpAddr::V6(ip) => {
            address = ip.octets();
            AF_INET6
        }
    };
    let all = [
        encode_attribute(ADDRESS_FAMILY, &(family as u16).to_ne_bytes()),
        encode_attribute(PROTOCOL, &server.protocol.to_ne_bytes()),
        encode_attribute(ADDRESS, &address),
        encode_attribute(PORT, &server.address.port().to_be_bytes()),
    ];
    let nested = encode_attribute(SERVICE | NLA_F_NESTED as u16, &all.concat());
    [&[DELETE_SERVICE, 1, 0, 0], &nested[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(protocol: u16, address: &str) -> VirtualServer {
        VirtualServer { protocol, address: address.parse().unwrap() }
    }

    #[test]
    fn a_virtual_server_is_read_as_it_is_written() {
        for (expected, shown) in [
            (server(6, "10.96.0.10:80"), "TCP 10.96.0.10:80"),
            (server(17, "[fd01::10]:53"), "UDP [fd01::10]:53"),
        ] {
            let body = removal(&expected);
            let found = read_server(&body).unwrap();
            assert_eq!((found.to_string().as_str(), &found), (shown, &expected));
            for length in 0..body.len() {
                assert_eq!(read_server(&body[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn virtual_servers_of_services_and_node_ports_are_kube_proxys() {
        let set = |addresses: &[&str]| addresses.iter().map(|a| a.parse().unwrap()).collect();
        let addresses = KubeProxyAddresses {
            services: set(&["10.96.0.10", "fd01::10"]),
            node: set(&["192.0.2.1"]),
        };
        for (address, expected) in [
            ("10.96.0.10:80", true),
            ("[fd01::10]:53", true),
            ("192.0.2.1:30080", true),
            ("192.0.2.1:8080", false),
            ("198.51.100.1:30080", false),
        ] {
            assert_eq!(addresses.explain(&server(6, address)), expected, "{address}");
        }
        let without_device = KubeProxyAddresses { services: set(&[]), node: set(&["192.0.2.1"]) };
        assert!(!without_device.explain(&server(6, "192.0.2.1:30080")));
    }
}
