//! Looks up routes by rtnetlink in the same way as the kernel's helper for programs: by ingress
//! device, source and destination.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result};
use lb_common::host::Exit;
use lb_network::netlink::{Netlink, encode_attribute, read_attributes, read_u32_at};
use nix::libc::{
    AF_INET, AF_INET6, EINVAL, EXDEV, IFLA_MTU, NDA_DST, NDA_LLADDR, NLM_F_ACK, NUD_DELAY,
    NUD_NOARP, NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE, NUD_STALE, RTA_DST, RTA_GATEWAY, RTA_IIF,
    RTA_METRICS, RTA_OIF, RTA_SRC, RTM_GETLINK, RTM_GETNEIGH, RTM_GETROUTE, RTN_UNICAST,
};
use nix::sys::socket::SockProtocol;

/// The next hop of another family: `struct rtvia`, the family followed by the address.
const RTA_VIA: u16 = 18;
/// Attributes in `RTA_METRICS`.
const RTAX_MTU: u16 = 2;
/// Sizes of `struct rtmsg`, `ndmsg` and `ifinfomsg`; attributes follow.
const ROUTE_HEADER: usize = 12;
const ROUTE_KIND: usize = 7;
const NEIGHBOUR_HEADER: usize = 12;
const NEIGHBOUR_STATE: usize = 8;
const LINK_HEADER: usize = 16;

/// Looks up routes.
pub trait Routes {
    /// The exit of a packet that arrived on a device.
    fn exit(&self, device: u32, to: IpAddr, from: IpAddr) -> Option<Exit>;
}

/// The routes of the current network namespace.
pub struct KernelRoutes(RefCell<Netlink>);

/// A route.
struct KernelRoute {
    device: u32,
    next_hop: IpAddr,
    mtu: Option<u32>,
}

impl KernelRoutes {
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open(SockProtocol::NetlinkRoute)
            .context("no netlink socket can be opened to ask for routes")?;
        Ok(Self(RefCell::new(netlink)))
    }

    fn ask<R>(
        &self,
        kind: u16,
        body: &[u8],
        mut read: impl FnMut(&[u8]) -> Option<R>,
    ) -> io::Result<Option<R>> {
        let mut found = None;
        self.0.borrow_mut().ask(kind, NLM_F_ACK, body, |response| {
            found = found.take().or_else(|| read(response));
        })?;
        Ok(found)
    }

    /// Looks up the route of a forwarded packet. The kernel refuses sources that can't arrive on
    /// the device, such as its own addresses, which programs may look up: then as for a local
    /// packet.
    fn route(&self, device: u32, to: IpAddr, from: IpAddr) -> Option<KernelRoute> {
        for (from, device) in [(Some(from), Some(device)), (Some(from), None), (None, None)] {
            match self.ask(RTM_GETROUTE, &route_request(to, from, device), |body| route(body, to)) {
                Ok(found) => return found,
                Err(error) if matches!(error.raw_os_error(), Some(EINVAL | EXDEV)) => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn neighbour(&self, device: u32, address: IpAddr) -> Option<[u8; 6]> {
        let mut body = vec![family(address), 0, 0, 0];
        body.extend(device.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(encode_attribute(NDA_DST, &octets(address)));
        // The neighbour may not exist.
        self.ask(RTM_GETNEIGH, &body, neighbour).ok()?
    }

    fn mtu(&self, device: u32) -> Option<u32> {
        let mut body = vec![0; LINK_HEADER];
        body[4..8].copy_from_slice(&device.to_ne_bytes());
        self.ask(RTM_GETLINK, &body, |body| {
            let value = find(body.get(LINK_HEADER..)?, IFLA_MTU)?;
            read_u32_at(value, 0)
        })
        .ok()?
    }
}

impl Routes for KernelRoutes {
    fn exit(&self, device: u32, to: IpAddr, from: IpAddr) -> Option<Exit> {
        let KernelRoute { device, next_hop, mtu } = self.route(device, to, from)?;
        let mtu = mtu.or_else(|| self.mtu(device))?;
        Some(Exit { device, neighbour: self.neighbour(device, next_hop), mtu })
    }
}

fn route_request(to: IpAddr, from: Option<IpAddr>, device: Option<u32>) -> Vec<u8> {
    let bits = |address: IpAddr| 8 * octets(address).len() as u8;
    let mut body = vec![family(to), bits(to), from.map_or(0, bits)];
    body.resize(ROUTE_HEADER, 0);
    body.extend(encode_attribute(RTA_DST, &octets(to)));
    if let Some(from) = from {
        body.extend(encode_attribute(RTA_SRC, &octets(from)));
    }
    if let Some(device) = device {
        body.extend(encode_attribute(RTA_IIF, &device.to_ne_bytes()));
    }
    body
}

/// Parses a route; `None` if it is local or rejects packets.
fn route(body: &[u8], to: IpAddr) -> Option<KernelRoute> {
    if *body.get(ROUTE_KIND)? != RTN_UNICAST {
        return None;
    }
    let attributes = body.get(ROUTE_HEADER..)?;
    let gateway = find(attributes, RTA_GATEWAY).and_then(address);
    let other = || find(attributes, RTA_VIA).and_then(|via| address(via.get(2..)?));
    let metrics = find(attributes, RTA_METRICS);
    Some(KernelRoute {
        device: read_u32_at(find(attributes, RTA_OIF)?, 0)?,
        next_hop: gateway.or_else(other).unwrap_or(to),
        mtu: metrics.and_then(|metrics| read_u32_at(find(metrics, RTAX_MTU)?, 0)),
    })
}

/// Parses the link-layer address of a reachable neighbour.
fn neighbour(body: &[u8]) -> Option<[u8; 6]> {
    const VALID: u16 =
        NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;
    let state = body.get(NEIGHBOUR_STATE..NEIGHBOUR_STATE + 2)?;
    if u16::from_ne_bytes(state.try_into().ok()?) & VALID == 0 {
        return None;
    }
    find(body.get(NEIGHBOUR_HEADER..)?, NDA_LLADDR)?.try_into().ok()
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    read_attributes(bytes).find(|&(kind, _)| kind == wanted).map(|(_, value)| value)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { AF_INET } else { AF_INET6 }) as u8
}
