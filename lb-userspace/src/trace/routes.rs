//! Where this machine's packets leave, asked of the kernel by rtnetlink as its helper for programs
//! would look it up: by the device that the packet came in by, for its source and destination.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result};
use lb_common::host::Exit;
use nix::libc::{
    AF_INET, AF_INET6, EINVAL, EXDEV, IFLA_MTU, NDA_DST, NDA_LLADDR, NLM_F_ACK, NUD_DELAY,
    NUD_NOARP, NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE, NUD_STALE, RTA_DST, RTA_GATEWAY, RTA_IIF,
    RTA_METRICS, RTA_OIF, RTA_SRC, RTM_GETLINK, RTM_GETNEIGH, RTM_GETROUTE, RTN_UNICAST,
};
use nix::sys::socket::SockProtocol;

use crate::netlink::{Netlink, attribute, attributes, u32_at};

/// The next hop of another family: `struct rtvia`, of which the address is behind the family.
const RTA_VIA: u16 = 18;
/// Of `RTA_METRICS`.
const RTAX_MTU: u16 = 2;
/// `struct rtmsg`, `ndmsg`, `ifinfomsg`: attributes begin behind them.
const ROUTE_HEADER: usize = 12;
const ROUTE_KIND: usize = 7;
const NEIGHBOUR_HEADER: usize = 12;
const NEIGHBOUR_STATE: usize = 8;
const LINK_HEADER: usize = 16;

/// Who knows where packets leave.
pub trait Routes {
    /// For a packet that came in by a device.
    fn exit(&self, device: u32, to: IpAddr, from: IpAddr) -> Option<Exit>;
}

/// This machine's own, in the network namespace that this runs in.
pub struct KernelRoutes(RefCell<Netlink>);

/// A route that was found.
struct Found {
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
        self.0.borrow_mut().ask(kind, NLM_F_ACK, body, |answer| {
            found = found.take().or_else(|| read(answer));
        })?;
        Ok(found)
    }

    /// First as a packet that is passing through. The kernel refuses what can't come in by the
    /// device, as one from an address of its own; programs may ask that: then as one that leaves.
    fn route(&self, device: u32, to: IpAddr, from: IpAddr) -> Option<Found> {
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
        body.extend(attribute(NDA_DST, &octets(address)));
        // There may be none.
        self.ask(RTM_GETNEIGH, &body, neighbour).ok()?
    }

    fn mtu(&self, device: u32) -> Option<u32> {
        let mut body = vec![0; LINK_HEADER];
        body[4..8].copy_from_slice(&device.to_ne_bytes());
        self.ask(RTM_GETLINK, &body, |body| {
            let value = find(body.get(LINK_HEADER..)?, IFLA_MTU)?;
            u32_at(value, 0)
        })
        .ok()?
    }
}

impl Routes for KernelRoutes {
    fn exit(&self, device: u32, to: IpAddr, from: IpAddr) -> Option<Exit> {
        let Found { device, next_hop, mtu } = self.route(device, to, from)?;
        let mtu = mtu.or_else(|| self.mtu(device))?;
        Some(Exit { device, neighbour: self.neighbour(device, next_hop), mtu })
    }
}

fn route_request(to: IpAddr, from: Option<IpAddr>, device: Option<u32>) -> Vec<u8> {
    let bits = |address: IpAddr| 8 * octets(address).len() as u8;
    let mut body = vec![family(to), bits(to), from.map_or(0, bits)];
    body.resize(ROUTE_HEADER, 0);
    body.extend(attribute(RTA_DST, &octets(to)));
    if let Some(from) = from {
        body.extend(attribute(RTA_SRC, &octets(from)));
    }
    if let Some(device) = device {
        body.extend(attribute(RTA_IIF, &device.to_ne_bytes()));
    }
    body
}

/// Only what is forwarded: not what is for this machine itself, nor what is refused.
fn route(body: &[u8], to: IpAddr) -> Option<Found> {
    if *body.get(ROUTE_KIND)? != RTN_UNICAST {
        return None;
    }
    let attributes = body.get(ROUTE_HEADER..)?;
    let gateway = find(attributes, RTA_GATEWAY).and_then(address);
    let other = || find(attributes, RTA_VIA).and_then(|via| address(via.get(2..)?));
    let metrics = find(attributes, RTA_METRICS);
    Some(Found {
        device: u32_at(find(attributes, RTA_OIF)?, 0)?,
        next_hop: gateway.or_else(other).unwrap_or(to),
        mtu: metrics.and_then(|metrics| u32_at(find(metrics, RTAX_MTU)?, 0)),
    })
}

/// The link-layer address of one that can be sent to.
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
    attributes(bytes).find(|&(kind, _)| kind == wanted).map(|(_, value)| value)
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
