//! Parses messages of rtnetlink. Pure.
//!
//! Only the attributes that are needed are parsed: kernels add new ones, and an unknown or
//! unexpected attribute must not make the parser skip its message.
//!
//! Tests: `tests.rs`.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::libc;

use super::snapshot::{
    AddressScope, BondMode, DefaultRoute, InterfaceAddress, Link, LinkFraming, LinkKind,
    NetworkChange,
};
use crate::netlink::{align_netlink, read_attributes, read_text, read_u16_at, read_u32_at};

const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

/// Attributes in a bond's `IFLA_INFO_DATA`.
const IFLA_BOND_MODE: u16 = 1;
const IFLA_BOND_XMIT_HASH_POLICY: u16 = 14;
const BOND_XMIT_POLICY_VLAN_SRCMAC: u8 = 5;

/// Sizes of `struct ifinfomsg`, `ifaddrmsg`, `rtmsg` and `ndmsg`; attributes follow.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;
/// The identifier of a next hop, or of a group of them.
const RTA_NH_ID: u16 = 30;

/// `linux/fib_rules.h`: the attributes of rules that decide by the destination: FRA_DST, FRA_PRIORITY,
/// FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_PAD and FRA_PROTOCOL, which names the program that has
/// added the rule.
const DESTINATION_ATTRIBUTES: [u16; 6] = [1, 6, 14, 15, 18, 21];

/// `struct rtnexthop`
const NEXT_HOP_HEADER: usize = 8;

/// Parses a message; `None` if it is irrelevant. `body` begins after the netlink header.
pub(crate) fn parse_change(kind: u16, body: &[u8]) -> Option<NetworkChange> {
    match kind {
        libc::RTM_NEWLINK => link(body).map(NetworkChange::Link),
        libc::RTM_DELLINK => link(body).map(|link| NetworkChange::LinkGone(link.index)),
        libc::RTM_NEWADDR => {
            parse_address(body).map(|(device, address)| NetworkChange::Address { device, address })
        }
        libc::RTM_DELADDR => parse_address(body)
            .map(|(device, InterfaceAddress { ip, .. })| NetworkChange::AddressGone { device, ip }),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => parse_route(kind, body),
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => parse_neighbour(kind, body),
        libc::RTM_NEWRULE if is_selective_rule(body) => Some(NetworkChange::SelectiveRule),
        libc::RTM_NEWRULE
        | libc::RTM_DELRULE
        | libc::RTM_NEWNETCONF
        | libc::RTM_DELNETCONF
        | RTM_NEWNEXTHOP
        | RTM_DELNEXTHOP => Some(NetworkChange::Routing),
        _ => None,
    }
}

fn link(body: &[u8]) -> Option<Link> {
    // A bridge reports its ports by messages of its own family, where "deleted" means that the
    // device has left the bridge.
    if *body.first()? != libc::AF_UNSPEC as u8 {
        return None;
    }
    let hardware = read_u16_at(body, 2)?;
    let flags = read_u32_at(body, 8)?;
    let has = |flag: libc::c_int| flags & flag as u32 != 0;
    let mut link = Link {
        index: read_u32_at(body, 4)?,
        up: has(libc::IFF_UP),
        running: has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        framing: framing(hardware),
        ..Link::default()
    };
    for (kind, value) in read_attributes(body.get(LINK_HEADER..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = read_text(value),
            libc::IFLA_MTU => link.mtu = read_u32_at(value, 0)?,
            libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            // 0: a veth whose peer is removed.
            libc::IFLA_LINK => link.lower = read_u32_at(value, 0).filter(|&lower| lower != 0),
            libc::IFLA_LINK_NETNSID => link.lower_elsewhere = true,
            libc::IFLA_MASTER => link.master = read_u32_at(value, 0),
            libc::IFLA_LINKINFO => link.kind = link_kind(value, link.framing),
            _ => {}
        }
    }
    if link.lower_elsewhere {
        link.lower = None;
    }
    Some(link)
}

fn framing(hardware: u16) -> LinkFraming {
    match hardware {
        libc::ARPHRD_ETHER => LinkFraming::Ethernet,
        libc::ARPHRD_NONE
        | libc::ARPHRD_TUNNEL
        | libc::ARPHRD_TUNNEL6
        | libc::ARPHRD_SIT
        | libc::ARPHRD_IPGRE
        | ARPHRD_IP6GRE
        | libc::ARPHRD_PPP
        | ARPHRD_RAWIP => LinkFraming::Raw,
        _ => LinkFraming::Unknown,
    }
}

fn link_kind(info: &[u8], framing: LinkFraming) -> LinkKind {
    let find =
        |wanted| read_attributes(info).find(|&(kind, _)| kind == wanted).map(|(_, value)| value);
    let kind = find(libc::IFLA_INFO_KIND).map(read_text).unwrap_or_default();
    match kind.as_str() {
        "bond" => {
            let data = find(libc::IFLA_INFO_DATA).unwrap_or_default();
            let byte = |wanted| {
                let mut attributes = read_attributes(data);
                attributes
                    .find_map(|(kind, value)| (kind == wanted).then(|| value.first())?.copied())
            };
            let by_vlan = byte(IFLA_BOND_XMIT_HASH_POLICY) == Some(BOND_XMIT_POLICY_VLAN_SRCMAC);
            LinkKind::Bond { mode: parse_bond_mode(byte(IFLA_BOND_MODE)), by_vlan }
        }
        "bridge" => LinkKind::Bridge,
        "dummy" | "ifb" => LinkKind::Dummy,
        "ipvlan" | "ipvtap" | "macvlan" | "macvtap" => LinkKind::Child,
        "openvswitch" => LinkKind::OpenVSwitch,
        "team" => LinkKind::Team,
        // The kernel has one kind for tap and tun.
        "tun" if framing == LinkFraming::Ethernet => LinkKind::Tap,
        "netkit" | "veth" => LinkKind::Veth,
        "vlan" => LinkKind::Vlan,
        "vrf" => LinkKind::Vrf,
        _ => LinkKind::Other,
    }
}

fn parse_bond_mode(number: Option<u8>) -> BondMode {
    match number {
        Some(0) => BondMode::BalanceRoundRobin,
        Some(1) => BondMode::ActiveBackup,
        Some(2) => BondMode::BalanceXor,
        Some(4) => BondMode::Ieee8023ad,
        Some(5) => BondMode::BalanceTransmit,
        Some(6) => BondMode::BalanceAdaptive,
        // For unknown modes, assume the mode that supports least.
        _ => BondMode::Broadcast,
    }
}

/// Of `struct ifaddrmsg` and attributes: the interface's index, and the address.
pub fn parse_address(body: &[u8]) -> Option<(u32, InterfaceAddress)> {
    let scope = match *body.get(3)? {
        libc::RT_SCOPE_UNIVERSE | libc::RT_SCOPE_SITE => AddressScope::Global,
        libc::RT_SCOPE_LINK => AddressScope::Link,
        _ => AddressScope::Host,
    };
    let device = read_u32_at(body, 4)?;
    let mut flags = u32::from(*body.get(2)?);
    let (mut ip, mut local) = (None, None);
    for (kind, value) in read_attributes(body.get(ADDRESS_HEADER..)?) {
        match kind {
            libc::IFA_ADDRESS => ip = read_ip(value),
            // On point-to-point devices the other address is the peer's.
            libc::IFA_LOCAL => local = read_ip(value),
            libc::IFA_FLAGS => flags = read_u32_at(value, 0)?,
            _ => {}
        }
    }
    let has = |flag| flags & flag != 0;
    let address = InterfaceAddress {
        ip: local.or(ip)?,
        scope,
        subnet: usize::from(*body.get(1)?) < address_bits(*body.first()?),
        prefix: *body.get(1)?,
        secondary: has(libc::IFA_F_SECONDARY),
        deprecated: has(libc::IFA_F_DEPRECATED),
        // Optimistic addresses are used while they are tentative.
        unusable: has(libc::IFA_F_DADFAILED)
            || has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC),
    };
    Some((device, address))
}

fn address_bits(family: u8) -> usize {
    if i32::from(family) == libc::AF_INET6 { 128 } else { 32 }
}

fn parse_route(kind: u16, body: &[u8]) -> Option<NetworkChange> {
    // Cached routes to single destinations.
    if read_u32_at(body, 8)? & libc::RTM_F_CLONED != 0 {
        return None;
    }
    let is_default = route_table(body)? == u32::from(libc::RT_TABLE_MAIN) && *body.get(1)? == 0;
    Some(if is_default {
        NetworkChange::DefaultRoutes
    } else if kind == libc::RTM_NEWROUTE && is_selective_route(body) {
        NetworkChange::SelectiveRoute
    } else {
        NetworkChange::Routing
    })
}

/// Whether a route decides by more than the destination: by the source or the traffic class, or it may
/// have several next hops. `body`: `struct rtmsg` and attributes.
pub(crate) fn is_selective_route(body: &[u8]) -> bool {
    let (Some(&[_, _, source_length, class]), Some(rest)) =
        (body.first_chunk(), body.get(ROUTE_HEADER..))
    else {
        return true;
    };
    source_length != 0
        || class != 0
        || read_attributes(rest).any(|(kind, _)| matches!(kind, libc::RTA_MULTIPATH | RTA_NH_ID))
}

/// Whether a rule may decide by more than the destination. `body`: `struct fib_rule_hdr`, as long as
/// `struct rtmsg`, and attributes.
pub(crate) fn is_selective_rule(body: &[u8]) -> bool {
    let (Some(&[_, _, source_length, class, _, _, _, _]), Some(rest)) =
        (body.first_chunk(), body.get(ROUTE_HEADER..))
    else {
        return true;
    };
    source_length != 0
        || class != 0
        || read_attributes(rest).any(|(kind, _)| !DESTINATION_ATTRIBUTES.contains(&kind))
}

/// Parses a route of a dump; `None` unless it is a default route of the main table.
pub(crate) fn parse_default_route(body: &[u8]) -> Option<DefaultRoute> {
    let v6 = match i32::from(*body.first()?) {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return None,
    };
    let (destination_length, kind) = (*body.get(1)?, *body.get(7)?);
    if destination_length != 0
        || kind != libc::RTN_UNICAST
        || route_table(body)? != u32::from(libc::RT_TABLE_MAIN)
    {
        return None;
    }
    let mut route = DefaultRoute { v6, metric: 0, devices: Vec::new(), source: None };
    for (kind, value) in read_attributes(body.get(ROUTE_HEADER..)?) {
        match kind {
            libc::RTA_OIF => route.devices.extend(read_u32_at(value, 0)),
            libc::RTA_MULTIPATH => route.devices.extend(next_hop_devices(value)),
            libc::RTA_PRIORITY => route.metric = read_u32_at(value, 0)?,
            libc::RTA_PREFSRC => route.source = read_ip(value),
            _ => {}
        }
    }
    // IPv6 has an unreachable default route through `lo`.
    (!route.devices.is_empty()).then_some(route)
}

fn route_table(body: &[u8]) -> Option<u32> {
    let mut attributes = read_attributes(body.get(ROUTE_HEADER..)?);
    let table = attributes.find(|&(kind, _)| kind == libc::RTA_TABLE);
    table.and_then(|(_, value)| read_u32_at(value, 0)).or(Some(u32::from(*body.get(4)?)))
}

fn next_hop_devices(mut hops: &[u8]) -> Vec<u32> {
    let mut devices = Vec::new();
    while let (Some(length), Some(device)) = (read_u16_at(hops, 0), read_u32_at(hops, 4)) {
        devices.push(device);
        let next = align_netlink(usize::from(length).max(NEXT_HOP_HEADER));
        hops = hops.get(next..).unwrap_or_default();
    }
    devices
}

fn parse_neighbour(kind: u16, body: &[u8]) -> Option<NetworkChange> {
    let (family, flags) = (i32::from(*body.first()?), *body.get(10)?);
    // The same messages report bridges' forwarding tables, and proxied addresses.
    if !matches!(family, libc::AF_INET | libc::AF_INET6) || flags & libc::NTF_PROXY != 0 {
        return None;
    }
    let device = read_u32_at(body, 4)?;
    let state = read_u16_at(body, 8)?;
    let (mut ip, mut mac) = (None, None);
    for (kind, value) in read_attributes(body.get(NEIGHBOUR_HEADER..)?) {
        match kind {
            libc::NDA_DST => ip = read_ip(value),
            libc::NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    // Multicast groups have entries, too; their link-layer address is derived.
    let ip = ip.filter(|ip| !ip.is_multicast())?;
    let unknown = libc::NUD_NONE | libc::NUD_INCOMPLETE | libc::NUD_FAILED;
    if kind == libc::RTM_DELNEIGH || state == libc::NUD_NONE || state & unknown != 0 {
        return Some(NetworkChange::NeighbourGone { device, ip });
    }
    // Devices without link-layer headers have no address here.
    Some(NetworkChange::Neighbour { device, ip, mac: mac.unwrap_or_default() })
}

fn read_ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).map(|octets| Ipv4Addr::from(octets).into());
    let v6 = || <[u8; 16]>::try_from(value).map(|octets| Ipv6Addr::from(octets).into());
    v4().or_else(|_| v6()).ok()
}
