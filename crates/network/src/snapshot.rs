//! The devices, addresses, default routes and neighbours of this machine, and how notifications
//! change them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub type MacAddress = [u8; 6];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By interface index, as all maps here.
    pub links: BTreeMap<u32, Link>,
    /// In the kernel's order of preference.
    pub addresses: BTreeMap<u32, Vec<InterfaceAddress>>,
    pub default_routes: Vec<DefaultRoute>,
    /// Whether a route (or a rule) decides by more than the destination: it selects by client, or
    /// has several next hops. Stays true until all routes and rules are read again.
    pub selective_routes: bool,
    pub selective_rules: bool,
    /// Reachable neighbours. They are kept because a notification matters only if it changes a
    /// known one.
    neighbours: BTreeMap<(u32, IpAddr), MacAddress>,
    /// The devices that XDP can redirect packets to.
    pub redirect: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub kind: LinkKind,
    /// Administratively up.
    pub up: bool,
    /// Operationally up.
    pub running: bool,
    pub loopback: bool,
    pub framing: LinkFraming,
    pub mtu: u32,
    pub mac: MacAddress,
    /// The device below, or a veth's peer, if it exists and is in this network namespace.
    pub lower: Option<u32>,
    /// The lower device or peer is in another network namespace.
    pub lower_elsewhere: bool,
    /// The device that this one is a port or member of.
    pub master: Option<u32>,
}

/// The first header of a device's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkFraming {
    #[default]
    Ethernet,
    /// The network header: IP-in-IP tunnels, wireguard, tun, PPP.
    Raw,
    /// A header that the data plane does not parse, such as InfiniBand's.
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// Others: hardware, overlays, ...
    #[default]
    Other,
    /// veth or netkit.
    Veth,
    /// The host's end of a virtual machine's interface.
    Tap,
    /// A device above another one, which sees its packets first: macvlan, ipvlan.
    Child,
    /// No packets arrive: dummy, ifb.
    Dummy,
    Bond {
        mode: BondMode,
        /// Ports are selected by VLAN tag and source address.
        by_vlan: bool,
    },
    Bridge,
    OpenVSwitch,
    Team,
    Vlan,
    Vrf,
}

/// `Documentation/networking/bonding.rst`; the numbers are the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondMode {
    #[default]
    BalanceRoundRobin = 0,
    ActiveBackup = 1,
    BalanceXor = 2,
    Broadcast = 3,
    Ieee8023ad = 4,
    BalanceTransmit = 5,
    BalanceAdaptive = 6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub ip: IpAddr,
    pub scope: AddressScope,
    /// The address is of a subnet, so other hosts are on the link.
    pub subnet: bool,
    /// Length of the subnet's prefix.
    pub prefix: u8,
    /// IPv4: not the first of its subnet. IPv6: a temporary address (RFC 8981).
    pub secondary: bool,
    /// Not to be used for new connections.
    pub deprecated: bool,
    /// Tentative, or a duplicate of another host's address.
    pub unusable: bool,
}

impl InterfaceAddress {
    /// An address as most interfaces have it.
    pub fn of_subnet(ip: IpAddr, prefix: u8) -> Self {
        Self {
            ip,
            scope: AddressScope::Global,
            subnet: true,
            prefix,
            secondary: false,
            deprecated: false,
            unusable: false,
        }
    }
}

/// Scope of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressScope {
    Global,
    Link,
    Host,
}

/// A default route of the main table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefaultRoute {
    pub v6: bool,
    /// The lowest is preferred.
    pub metric: u32,
    /// Several for a multipath route.
    pub devices: Vec<u32>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
}

/// A relevant change that the kernel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkChange {
    Link(Link),
    LinkGone(u32),
    Address {
        device: u32,
        address: InterfaceAddress,
    },
    AddressGone {
        device: u32,
        ip: IpAddr,
    },
    /// A default route was added, changed or removed. They must be read again: notifications of
    /// multipath routes are incomplete.
    DefaultRoutes,
    /// Another change of routing.
    Routing,
    /// A route, or a rule, that decides by more than the destination.
    SelectiveRoute,
    SelectiveRule,
    /// A neighbour is reachable at this link-layer address.
    Neighbour {
        device: u32,
        ip: IpAddr,
        mac: MacAddress,
    },
    NeighbourGone {
        device: u32,
        ip: IpAddr,
    },
    /// Whether XDP can redirect packets to the device.
    Redirect {
        device: u32,
        redirect: bool,
    },
}

/// The effect of notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeEffect {
    /// Resolved next hops may be outdated.
    pub next_hops: bool,
    /// Links, addresses or default routes have changed.
    pub facts: bool,
    /// Default routes may have changed, and must be read again.
    pub default_routes: bool,
}

impl ChangeEffect {
    pub fn and(self, other: Self) -> Self {
        Self {
            next_hops: self.next_hops || other.next_hops,
            facts: self.facts || other.facts,
            default_routes: self.default_routes || other.default_routes,
        }
    }
}

impl LinkKind {
    /// Whether the device has ports. Their packets, addresses and routes are those of the device.
    pub fn has_ports(&self) -> bool {
        matches!(self, Self::Bond { .. } | Self::Bridge | Self::OpenVSwitch | Self::Team)
    }
}

impl InterfaceAddress {
    /// Whether the address shows that its device is a link to other hosts.
    pub(crate) fn is_of_network(&self) -> bool {
        self.scope == AddressScope::Global && self.subnet
    }
}

impl Snapshot {
    pub(crate) fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// Whether next hops depend on the destination only.
    pub fn shares_hops(&self) -> bool {
        !self.selective_routes && !self.selective_rules
    }

    pub fn addresses_of(&self, device: u32) -> &[InterfaceAddress] {
        self.addresses.get(&device).map_or(&[], Vec::as_slice)
    }

    /// Applies a notification. If it changes nothing, it has no effect.
    pub fn apply(&mut self, notice: NetworkChange) -> ChangeEffect {
        match notice {
            NetworkChange::Link(link) => self.put_link(link),
            NetworkChange::LinkGone(index) => self.remove_link(index),
            NetworkChange::Address { device, address } => self.put_address(device, address),
            NetworkChange::AddressGone { device, ip } => {
                let addresses = self.addresses.entry(device).or_default();
                let before = addresses.len();
                addresses.retain(|address| address.ip != ip);
                let changed = addresses.len() < before;
                if addresses.is_empty() {
                    self.addresses.remove(&device);
                }
                ChangeEffect { next_hops: changed, facts: changed, ..ChangeEffect::default() }
            }
            NetworkChange::DefaultRoutes => {
                ChangeEffect { next_hops: true, default_routes: true, ..ChangeEffect::default() }
            }
            NetworkChange::Routing => ChangeEffect { next_hops: true, ..ChangeEffect::default() },
            NetworkChange::SelectiveRoute => {
                self.selective_routes = true;
                ChangeEffect { next_hops: true, ..ChangeEffect::default() }
            }
            NetworkChange::SelectiveRule => {
                self.selective_rules = true;
                ChangeEffect { next_hops: true, ..ChangeEffect::default() }
            }
            NetworkChange::Neighbour { device, ip, mac } => {
                // A new neighbour is not yet the next hop of any flow.
                let before = self.neighbours.insert((device, ip), mac);
                let next_hops = before.is_some_and(|before| before != mac);
                ChangeEffect { next_hops, ..ChangeEffect::default() }
            }
            NetworkChange::NeighbourGone { device, ip } => {
                let next_hops = self.neighbours.remove(&(device, ip)).is_some();
                ChangeEffect { next_hops, ..ChangeEffect::default() }
            }
            // This changes how packets are sent, not where to: next hops stay valid.
            NetworkChange::Redirect { device, redirect: true } => {
                ChangeEffect { facts: self.redirect.insert(device), ..ChangeEffect::default() }
            }
            NetworkChange::Redirect { device, redirect: false } => {
                ChangeEffect { facts: self.redirect.remove(&device), ..ChangeEffect::default() }
            }
        }
    }

    fn put_link(&mut self, link: Link) -> ChangeEffect {
        let index = link.index;
        let state = (link.up, link.running);
        match self.links.insert(index, link) {
            // No flow uses a new device yet.
            None => ChangeEffect { facts: true, ..ChangeEffect::default() },
            Some(before) if before == self.links[&index] => ChangeEffect::default(),
            Some(before) => ChangeEffect {
                next_hops: true,
                facts: true,
                // The kernel removes IPv4 routes with the device without a notification.
                default_routes: (before.up, before.running) != state && self.has_default(index),
            },
        }
    }

    fn remove_link(&mut self, index: u32) -> ChangeEffect {
        if self.links.remove(&index).is_none() {
            return ChangeEffect::default();
        }
        self.addresses.remove(&index);
        self.redirect.remove(&index);
        self.neighbours.retain(|&(device, _), _| device != index);
        ChangeEffect { next_hops: true, facts: true, default_routes: self.has_default(index) }
    }

    fn put_address(&mut self, device: u32, address: InterfaceAddress) -> ChangeEffect {
        let addresses = self.addresses.entry(device).or_default();
        match addresses.iter_mut().find(|known| known.ip == address.ip) {
            Some(known) if *known == address => return ChangeEffect::default(),
            Some(known) => *known = address,
            None => addresses.push(address),
        }
        ChangeEffect { next_hops: true, facts: true, ..ChangeEffect::default() }
    }

    fn has_default(&self, device: u32) -> bool {
        self.default_routes.iter().any(|route| route.devices.contains(&device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: ChangeEffect =
        ChangeEffect { next_hops: false, facts: false, default_routes: false };
    const NEXT_HOPS: ChangeEffect = ChangeEffect { next_hops: true, ..QUIET };
    const FACTS: ChangeEffect = ChangeEffect { facts: true, ..QUIET };
    const BOTH: ChangeEffect = ChangeEffect { next_hops: true, facts: true, ..QUIET };

    fn eth0() -> Link {
        Link { index: 2, name: "eth0".into(), up: true, running: true, ..Link::default() }
    }

    fn neighbour(mac: u8) -> NetworkChange {
        NetworkChange::Neighbour { device: 2, ip: "192.0.2.2".parse().unwrap(), mac: [mac; 6] }
    }

    fn address(ip: &str) -> InterfaceAddress {
        InterfaceAddress::of_subnet(ip.parse().unwrap(), 24)
    }

    fn at_eth0(address: InterfaceAddress) -> NetworkChange {
        NetworkChange::Address { device: 2, address }
    }

    #[test]
    fn only_changes_of_a_link_that_we_hold_count() {
        let mut snapshot = Snapshot::default();
        assert_eq!(snapshot.apply(NetworkChange::Link(eth0())), FACTS, "appears");
        assert_eq!(snapshot.apply(NetworkChange::Link(eth0())), QUIET, "says nothing new");
        type Change = fn(&mut Link);
        let changed: [(&str, Change); 6] = [
            ("down", |link| link.up = false),
            ("carrier lost", |link| link.running = false),
            ("other MTU", |link| link.mtu = 9000),
            ("other MAC", |link| link.mac = [7; 6]),
            ("renamed", |link| link.name = "wan".into()),
            ("enslaved", |link| link.master = Some(5)),
        ];
        for (name, change) in changed {
            let mut link = snapshot.links[&2].clone();
            change(&mut link);
            assert_eq!(snapshot.apply(NetworkChange::Link(link)), BOTH, "{name}");
        }
        assert_eq!(snapshot.apply(NetworkChange::LinkGone(2)), BOTH, "gone");
        assert_eq!(snapshot.apply(NetworkChange::LinkGone(2)), QUIET, "gone twice");
    }

    #[test]
    fn a_device_takes_its_default_routes_addresses_and_neighbours_along() {
        let route = DefaultRoute { v6: false, metric: 0, devices: vec![2], source: None };
        let mut snapshot = Snapshot { default_routes: vec![route], ..Snapshot::default() };
        snapshot.apply(NetworkChange::Link(eth0()));
        snapshot.apply(at_eth0(address("192.0.2.1")));
        snapshot.apply(neighbour(1));
        let down = NetworkChange::Link(Link { up: false, running: false, ..eth0() });
        let with_routes = ChangeEffect { default_routes: true, ..BOTH };
        assert_eq!(snapshot.apply(down), with_routes, "the kernel does not tell that they went");
        assert_eq!(snapshot.apply(NetworkChange::LinkGone(2)), with_routes);
        assert!(snapshot.addresses.is_empty() && snapshot.neighbours.is_empty());
    }

    #[test]
    fn a_neighbour_counts_when_it_moves_or_goes() {
        let mut snapshot = Snapshot::default();
        let gone = NetworkChange::NeighbourGone { device: 2, ip: "192.0.2.2".parse().unwrap() };
        for (name, notice, effect) in [
            ("appears", neighbour(1), QUIET),
            ("reachable, stale, reachable", neighbour(1), QUIET),
            ("another MAC", neighbour(2), NEXT_HOPS),
            ("gone", gone.clone(), NEXT_HOPS),
            ("fails once more", gone, QUIET),
            ("back", neighbour(2), QUIET),
        ] {
            assert_eq!(snapshot.apply(notice), effect, "{name}");
        }
    }

    #[test]
    fn an_address_counts_when_it_comes_changes_or_goes() {
        let mut snapshot = Snapshot::default();
        let old = InterfaceAddress { deprecated: true, ..address("2001:db8::1") };
        let gone = NetworkChange::AddressGone { device: 2, ip: old.ip };
        for (name, notice, effect) in [
            ("comes", at_eth0(address("2001:db8::1")), BOTH),
            ("lives longer", at_eth0(address("2001:db8::1")), QUIET),
            ("deprecated", at_eth0(old), BOTH),
            ("gone", gone.clone(), BOTH),
            ("gone twice", gone, QUIET),
        ] {
            assert_eq!(snapshot.apply(notice), effect, "{name}");
        }
        assert!(snapshot.addresses.is_empty());
    }

    #[test]
    fn routes_and_rules_always_count() {
        let mut snapshot = Snapshot::default();
        assert_eq!(snapshot.apply(NetworkChange::Routing), NEXT_HOPS);
        let effect = ChangeEffect { default_routes: true, ..NEXT_HOPS };
        assert_eq!(snapshot.apply(NetworkChange::DefaultRoutes), effect);
    }

    #[test]
    fn clients_share_next_hops_until_a_route_or_rule_selects_by_client() {
        for notice in [NetworkChange::SelectiveRoute, NetworkChange::SelectiveRule] {
            let mut snapshot = Snapshot::default();
            snapshot.apply(NetworkChange::Routing);
            assert!(snapshot.shares_hops());
            assert_eq!(snapshot.apply(notice), NEXT_HOPS);
            assert!(!snapshot.shares_hops());
            snapshot.apply(NetworkChange::Routing);
            assert!(!snapshot.shares_hops(), "it may still be there");
        }
    }
}
