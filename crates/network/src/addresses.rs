//! The node's addresses: all of them, those on which NodePorts are open, and the source address of
//! connections that leave through a device. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::layout;

use super::attachments::Attachments;
use super::selection::{LOOPBACK, NodePortAddresses};
use super::snapshot::{
    AddressScope, InterfaceAddress, Link, LinkFraming, LinkKind, MacAddress, Snapshot,
};

/// An egress device, as the data plane needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// The source addresses for packets that leave here.
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
    pub mtu: u32,
    pub mac: MacAddress,
    /// Other link-layer addresses whose frames arrive here and are for this machine: those of
    /// interfaces above this one.
    pub macs_above: BTreeSet<MacAddress>,
    /// XDP can redirect packets of other devices to it.
    pub redirect: bool,
    /// XDP can transmit its packets back.
    pub transmit: bool,
}

/// The entry of the map `DEVICES`.
impl From<&Device> for layout::Device {
    fn from(device: &Device) -> Self {
        let Device { name: _, v4, v6, mtu, mac, macs_above: _, redirect, transmit } = device;
        let flag = |on: &bool, flag| if *on { flag } else { 0 };
        Self {
            address4: v4.map(Into::into).unwrap_or_default(),
            address6: v6.map(Into::into).unwrap_or_default(),
            mtu: *mtu,
            link_address: *mac,
            flags: flag(redirect, Self::REDIRECT) | flag(transmit, Self::TRANSMIT),
            reserved: 0,
        }
    }
}

/// All devices except loopback, by index.
pub fn list_devices(snapshot: &Snapshot) -> BTreeMap<u32, Device> {
    let [node4, node6] = [false, true].map(|v6| node_address(snapshot, v6));
    let links = snapshot.links.values().filter(|link| !link.loopback);
    links
        .map(|link| {
            let source = |v6, otherwise: Option<IpAddr>| {
                own_address(snapshot, link.index, v6)
                    .or_else(|| preferred_source(snapshot, link.index, v6))
                    .or(otherwise)
            };
            let device = Device {
                name: link.name.clone(),
                v4: source(false, node4).and_then(as_v4),
                v6: source(true, node6).and_then(as_v6),
                mtu: link.mtu,
                mac: link.mac,
                macs_above: macs_above(snapshot, link),
                redirect: link.framing == LinkFraming::Ethernet
                    && snapshot.redirect.contains(&link.index),
                // For veths the requirement is the same as for redirects: the peer must poll.
                transmit: link.kind != LinkKind::Veth || snapshot.redirect.contains(&link.index),
            };
            (link.index, device)
        })
        .collect()
}

/// The link-layer addresses of the VLANs, macvlans, bridges and bonds above a device, except its
/// own. Those in other network namespaces are other machines.
fn macs_above(snapshot: &Snapshot, link: &Link) -> BTreeSet<MacAddress> {
    let mut found = BTreeSet::from([link.index]);
    let mut above = vec![link];
    while let Some(below) = above.pop() {
        let is_above = |upper: &&Link| match upper.kind {
            LinkKind::Vlan | LinkKind::Child => upper.lower == Some(below.index),
            _ => upper.kind.has_ports() && below.master == Some(upper.index),
        };
        for upper in snapshot.links.values().filter(is_above) {
            // A snapshot of changing devices might contain a cycle.
            if found.insert(upper.index) {
                above.push(upper);
            }
        }
    }
    let macs = found.iter().filter_map(|index| Some(snapshot.links.get(index)?.mac));
    macs.filter(|mac| *mac != link.mac && *mac != MacAddress::default()).collect()
}

/// Interfaces on which other programs keep addresses of Services: kube-proxy in mode ipvs, and kube-router. They are
/// often left behind, and are no sign of a server on this node.
const SERVICE_ADDRESS_LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// Every address at which something outside can reach this node itself.
pub fn list_own_addresses(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let is_own = |index: &u32| {
        let link = snapshot.links.get(index);
        !link.is_some_and(|link| SERVICE_ADDRESS_LINKS.contains(&link.name.as_str()))
    };
    let all = snapshot.addresses.iter().filter(|(index, _)| is_own(index));
    let own = all.flat_map(|(_, addresses)| addresses);
    let own = own.filter(|address| accepts_connections(address)).map(|address| address.ip);
    own.filter(|ip| !ip.is_loopback()).collect()
}

/// The addresses with NodePorts; never link-local ones. The loopback addresses among them are for processes of the node.
pub fn list_node_addresses(
    snapshot: &Snapshot,
    attachments: &Attachments,
    selected: &[NodePortAddresses],
) -> BTreeSet<IpAddr> {
    let all =
        || snapshot.addresses.values().flatten().filter(|address| accepts_connections(address));
    let mut addresses = BTreeSet::new();
    for selector in selected {
        match selector {
            NodePortAddresses::Exactly(ip) => drop(addresses.insert(*ip)),
            NodePortAddresses::Localhost => addresses.extend(LOOPBACK),
            NodePortAddresses::All => {
                addresses.extend(all().map(|address| address.ip).chain(LOOPBACK));
            }
            NodePortAddresses::Within(range) => {
                // 0.0.0.0/0 means addresses that others can reach, too.
                let is_loopback = range.addr().is_loopback();
                addresses.extend(LOOPBACK.iter().filter(|ip| is_loopback && range.contains(*ip)));
                addresses.extend(all().map(|address| address.ip).filter(|ip| range.contains(ip)));
            }
            NodePortAddresses::Primary => {
                addresses.extend([false, true].iter().filter_map(|&v6| {
                    node_address(snapshot, v6)
                        .or_else(|| external_address(snapshot, attachments, v6))
                }));
            }
        }
    }
    if selected.is_empty() {
        let own =
            attachments.facing_clients().flat_map(|device| snapshot.addresses_of(device.index));
        addresses
            .extend(own.filter(|address| accepts_connections(address)).map(|address| address.ip));
    }
    let is_served = |ip: &IpAddr| !ip.is_loopback() || LOOPBACK.contains(ip);
    addresses.retain(|ip| is_served(ip) && !ip.is_unspecified() && !ip.is_multicast());
    addresses
}

/// Whether clients can connect to it as an address of this node.
fn accepts_connections(address: &InterfaceAddress) -> bool {
    let link_local = matches!(address.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    address.scope == AddressScope::Global && !address.unusable && !link_local
}

/// The node's primary address of a family: that of the device with the default route, else one of
/// the node alone, else that of the first device with an address.
fn node_address(snapshot: &Snapshot, v6: bool) -> Option<IpAddr> {
    let mut routes: Vec<_> =
        snapshot.default_routes.iter().filter(|route| route.v6 == v6).collect();
    routes.sort();
    let devices = || routes.iter().flat_map(|route| route.devices.iter().copied());
    devices()
        .find_map(|device| own_address(snapshot, device, v6))
        .or_else(|| devices().find_map(|device| preferred_source(snapshot, device, v6)))
        .or_else(|| {
            let mut loopbacks = snapshot.links.values().filter(|link| link.loopback);
            loopbacks.find_map(|link| own_address(snapshot, link.index, v6))
        })
        .or_else(|| snapshot.links.keys().find_map(|&device| own_address(snapshot, device, v6)))
}

fn external_address(snapshot: &Snapshot, attachments: &Attachments, v6: bool) -> Option<IpAddr> {
    attachments.external().find_map(|device| own_address(snapshot, device.index, v6))
}

/// The source address of new connections through a device.
fn own_address(snapshot: &Snapshot, device: u32, v6: bool) -> Option<IpAddr> {
    choose_preferred_address(snapshot.addresses_of(device), v6)
}

/// The address of a family for new connections, among those of a device: neither temporary nor deprecated, if there
/// is another.
pub fn choose_preferred_address<'a>(
    addresses: impl IntoIterator<Item = &'a InterfaceAddress>,
    v6: bool,
) -> Option<IpAddr> {
    let fits = |address: &&InterfaceAddress| {
        address.ip.is_ipv6() == v6
            && accepts_connections(address)
            && !address.deprecated
            && !address.ip.is_loopback()
    };
    let candidates = addresses.into_iter().filter(fits);
    // `min_by_key` returns the first of several equal ones.
    candidates.min_by_key(|address| rank(address)).map(|address| address.ip)
}

/// The lowest rank is preferred. The kernel keeps IPv4 addresses in the user's order. The order of
/// IPv6 addresses depends on when they were added, so it must not decide.
fn rank(address: &InterfaceAddress) -> (bool, bool, Option<Ipv6Addr>) {
    match address.ip {
        IpAddr::V4(_) => (address.secondary, false, None),
        // More hosts can reply to a global address than to a local one.
        IpAddr::V6(v6) => (address.secondary, v6.is_unique_local(), Some(v6)),
    }
}

/// The source address that a default route through this device sets.
fn preferred_source(snapshot: &Snapshot, device: u32, v6: bool) -> Option<IpAddr> {
    let routes = snapshot.default_routes.iter();
    routes
        .filter(|route| route.v6 == v6 && route.devices.contains(&device))
        .min()
        .and_then(|route| route.source)
}

fn as_v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

fn as_v6(ip: IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DefaultRoute, DeviceSettings, plan_attachments};

    /// Devices as `NAME: ADDRESS[ FLAG ...], ...`, one a line, with indexes from 1; `default
    /// NAME [METRIC] [SOURCE]` are default routes of both families, or the source's.
    fn network(text: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (index, line) in (1..).zip(text.lines()) {
            let Some((name, addresses)) = line.split_once(':') else {
                let words: Vec<&str> = line.split_whitespace().collect();
                let device = snapshot.link_named(words[1]).unwrap().index;
                let source: Option<IpAddr> = words.get(3).map(|word| word.parse().unwrap());
                for v6 in [false, true] {
                    if source.is_none_or(|source| source.is_ipv6() == v6) {
                        snapshot.default_routes.push(DefaultRoute {
                            v6,
                            metric: words.get(2).map_or(0, |word| word.parse().unwrap()),
                            devices: vec![device],
                            source,
                        });
                    }
                }
                continue;
            };
            let link = Link {
                index,
                name: name.to_owned(),
                loopback: name == "lo",
                mtu: 1500,
                mac: [2, 0, 0, 0, 0, index as u8],
                ..Link::default()
            };
            snapshot.links.insert(index, link);
            let addresses = addresses.split(", ").filter(|text| !text.trim().is_empty());
            snapshot.addresses.insert(index, addresses.map(address).collect());
        }
        snapshot
    }

    fn address(text: &str) -> InterfaceAddress {
        let mut words = text.split_whitespace();
        let mut address = InterfaceAddress::of_subnet(words.next().unwrap().parse().unwrap(), 24);
        for word in words {
            match word {
                "link" => address.scope = AddressScope::Link,
                "host" => address.scope = AddressScope::Host,
                "secondary" => address.secondary = true,
                "deprecated" => address.deprecated = true,
                "tentative" => address.unusable = true,
                other => panic!("{other}"),
            }
        }
        address
    }

    const NODE: &str = "lo: 127.0.0.1 host, ::1 host\n\
         eth0: 192.0.2.1, 192.0.2.9 secondary, 2001:db8::1, fe80::1 link\n\
         eth1: 10.0.0.1, fd00::1 deprecated, fd00::2\n\
         veth1: fe80::2 link\n\
         default eth0";

    #[test]
    fn node_ports_are_open_on_the_configured_addresses() {
        let unusual = "lo: 127.0.0.1 host, 203.0.113.1\n\
             eth0: 192.0.2.1, 2001:db8::7 tentative, 2001:db8::8 deprecated, fe80::1\n\
             default eth0";
        for (name, text, selected, expected) in [
            ("the external device's own", NODE, "", "192.0.2.1 192.0.2.9 2001:db8::1"),
            ("a range", NODE, "10.0.0.0/8", "10.0.0.1"),
            (
                "ranges of all",
                NODE,
                "0.0.0.0/0 ::/0",
                "10.0.0.1 192.0.2.1 192.0.2.9 2001:db8::1 fd00::1 fd00::2",
            ),
            ("a range of none", NODE, "198.51.100.0/24", ""),
            (
                "never loopback of all",
                "lo: 127.0.0.1 host\neth0: 192.0.2.1",
                "0.0.0.0/0",
                "192.0.2.1",
            ),
            ("localhost", NODE, "localhost", "127.0.0.1 ::1"),
            ("localhost of a family", NODE, "127.0.0.0/8", "127.0.0.1"),
            ("localhost of the other one", NODE, "::1 10.0.0.0/8", "10.0.0.1 ::1"),
            (
                "all",
                NODE,
                "all",
                "10.0.0.1 127.0.0.1 192.0.2.1 192.0.2.9 ::1 2001:db8::1 fd00::1 fd00::2",
            ),
            ("never of a link only", NODE, "fe80::/10", ""),
            ("primary", NODE, "primary", "192.0.2.1 2001:db8::1"),
            (
                "primary and more",
                NODE,
                "primary fd00::/64",
                "192.0.2.1 2001:db8::1 fd00::1 fd00::2",
            ),
            ("an address no device has", NODE, "198.51.100.7", "198.51.100.7"),
            ("tentative, and deprecated", unusual, "", "192.0.2.1 2001:db8::8"),
            ("of lo, if it means something elsewhere", unusual, "203.0.113.0/24", "203.0.113.1"),
        ] {
            let snapshot = network(text);
            let settings = DeviceSettings {
                external: vec!["eth0".parse().unwrap()],
                ..DeviceSettings::default()
            };
            let attachments = plan_attachments(&snapshot, &settings, &BTreeSet::new());
            let selected: Vec<_> =
                selected.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let addresses = list_node_addresses(&snapshot, &attachments, &selected);
            let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            assert_eq!(addresses.join(" "), expected, "{name}");
        }
    }

    #[test]
    fn own_addresses_are_those_of_all_devices_that_others_can_reach() {
        let own = list_own_addresses(&network(
            "eth0: 192.0.2.1, 169.254.0.1 link, 2001:db8::3 tentative, 2001:db8::1, fe80::1\n\
             lo: 127.0.0.1 host, 127.0.0.2, 10.255.0.1, ::1 host\n\
             nodelocaldns: 10.96.0.10\n\
             kube-ipvs0: 10.96.0.11\n\
             veth1: 10.244.0.1",
        ));
        let own: Vec<String> = own.iter().map(IpAddr::to_string).collect();
        assert_eq!(own, ["10.96.0.10", "10.244.0.1", "10.255.0.1", "192.0.2.1", "2001:db8::1"]);
    }

    #[test]
    fn what_leaves_by_a_device_has_the_right_source() {
        for (name, text, device, v4, v6) in [
            ("its own", NODE, "eth0", "192.0.2.1", "2001:db8::1"),
            ("each its own", NODE, "eth1", "10.0.0.1", "fd00::2"),
            ("one without has the node's", NODE, "veth1", "192.0.2.1", "2001:db8::1"),
            (
                "not the secondary, deprecated, tentative or local one",
                "eth0: 192.0.2.9 secondary, 169.254.0.1 link, 192.0.2.1, 2001:db8::3 tentative, \
                 2001:db8::9 secondary, fd00::1, 2001:db8::2 deprecated, 2001:db8::1",
                "eth0",
                "192.0.2.1",
                "2001:db8::1",
            ),
            ("the order is the user's", "eth0: 10.0.0.9, 10.0.0.1", "eth0", "10.0.0.9", "-"),
            (
                "unnumbered: what the route prefers",
                "lo: 127.0.0.1 host, 203.0.113.9\neth0: fe80::1 link\ndefault eth0 0 203.0.113.1",
                "eth0",
                "203.0.113.1",
                "-",
            ),
            (
                "unnumbered: the node's for itself",
                "lo: 127.0.0.1 host, 203.0.113.9, 2001:db8::9\neth0: fe80::1 link\ndefault eth0",
                "eth0",
                "203.0.113.9",
                "2001:db8::9",
            ),
            (
                "of two uplinks the preferred one's",
                "eth0: 192.0.2.1\neth1: 198.51.100.1\nveth1:\ndefault eth0 200\ndefault eth1 100",
                "veth1",
                "198.51.100.1",
                "-",
            ),
            ("none", "eth0:", "eth0", "-", "-"),
        ] {
            let snapshot = network(text);
            let index = snapshot.link_named(device).unwrap().index;
            let device = &list_devices(&snapshot)[&index];
            let show = |ip: Option<IpAddr>| ip.map_or("-".to_owned(), |ip| ip.to_string());
            assert_eq!(show(device.v4.map(IpAddr::V4)), v4, "{name}");
            assert_eq!(show(device.v6.map(IpAddr::V6)), v6, "{name}");
        }
    }

    #[test]
    fn ipv6_sources_do_not_depend_on_the_order_of_arrival() {
        let one = list_devices(&network("eth0: 2001:db8::1, 2001:db8::2"));
        let other = list_devices(&network("eth0: 2001:db8::2, 2001:db8::1"));
        assert_eq!(one, other);
    }

    #[test]
    fn frames_to_what_is_above_a_device_are_for_this_machine() {
        let mut snapshot = network("eth0:\neth1:\nbond0:\nvlan:\nvrrp:\nipvlan:\nveth0:\nbr0:\n");
        let [eth0, eth1, bond0, vlan, vrrp, ipvlan, veth0, br0] = [1, 2, 3, 4, 5, 6, 7, 8];
        let links = &mut snapshot.links;
        let mut change = |index, kind, lower, master| {
            let link: &mut Link = links.get_mut(&index).unwrap();
            (link.kind, link.lower, link.master) = (kind, lower, master);
        };
        change(eth0, LinkKind::Other, None, Some(bond0));
        change(eth1, LinkKind::Other, None, Some(bond0));
        change(bond0, LinkKind::Bond { mode: Default::default(), by_vlan: false }, None, Some(br0));
        change(vlan, LinkKind::Vlan, Some(bond0), None);
        change(vrrp, LinkKind::Child, Some(vlan), None);
        change(ipvlan, LinkKind::Child, Some(bond0), None);
        // The peer of a veth is another machine's or a pod's.
        change(veth0, LinkKind::Veth, Some(eth0), None);
        change(br0, LinkKind::Bridge, None, None);
        // A cycle, and an address that two devices share.
        snapshot.links.get_mut(&br0).unwrap().master = Some(br0);
        snapshot.links.get_mut(&ipvlan).unwrap().mac = snapshot.links[&bond0].mac;
        let devices = list_devices(&snapshot);
        let above = |index| -> Vec<u32> {
            devices[&index].macs_above.iter().map(|mac| u32::from(mac[5])).collect()
        };
        assert_eq!(above(eth0), [bond0, vlan, vrrp, br0]);
        assert_eq!(above(eth1), above(eth0));
        assert_eq!(above(bond0), [vlan, vrrp, br0]);
        assert_eq!(above(vlan), [vrrp]);
        assert_eq!(above(vrrp), [0; 0]);
    }

    #[test]
    fn devices_know_their_mtu_and_mac_and_lo_is_none() {
        let devices = list_devices(&network(NODE));
        assert_eq!(devices.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        let eth0 = &devices[&2];
        assert_eq!((&*eth0.name, eth0.mtu, eth0.mac), ("eth0", 1500, [2, 0, 0, 0, 0, 2]));
    }
}
