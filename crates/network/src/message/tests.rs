//! Messages as the kernel writes them, with what could be mistaken.

use nix::libc;
use proptest::prelude::*;

use super::*;
use crate::netlink::encode_attribute;

fn body(header: &[u8], attributes: &[Vec<u8>]) -> Vec<u8> {
    [header, &attributes.concat()].concat()
}

/// `struct ifinfomsg` of a device with index 7 that is up and running.
fn link_header(family: libc::c_int) -> Vec<u8> {
    let mut header = vec![family as u8, 0];
    header.extend(libc::ARPHRD_ETHER.to_ne_bytes());
    header.extend(7u32.to_ne_bytes());
    header.extend(((libc::IFF_UP | libc::IFF_RUNNING) as u32).to_ne_bytes());
    header.extend([0; 4]);
    header
}

fn bond(mode: u8, policy: u8) -> Vec<u8> {
    let data = [
        encode_attribute(IFLA_BOND_MODE, &[mode]),
        encode_attribute(IFLA_BOND_XMIT_HASH_POLICY, &[policy]),
    ];
    // The kernel marks nested ones, or not.
    let data = encode_attribute(libc::IFLA_INFO_DATA | libc::NLA_F_NESTED as u16, &data.concat());
    encode_attribute(
        libc::IFLA_LINKINFO,
        &[encode_attribute(libc::IFLA_INFO_KIND, b"bond\0"), data].concat(),
    )
}

fn route(family: libc::c_int, destination: u8, table: u8, flags: u32) -> Vec<u8> {
    let mut header = vec![family as u8, destination, 0, 0, table, 0, 0, libc::RTN_UNICAST];
    header.extend(flags.to_ne_bytes());
    header
}

fn neighbour(family: libc::c_int, state: u16, flags: u8) -> Vec<u8> {
    let mut header = vec![family as u8, 0, 0, 0];
    header.extend(7u32.to_ne_bytes());
    header.extend(state.to_ne_bytes());
    header.extend([flags, 0]);
    let attributes = [
        encode_attribute(libc::NDA_DST, &[192, 0, 2, 2]),
        encode_attribute(libc::NDA_LLADDR, &[2; 6]),
    ];
    body(&header, &attributes)
}

#[test]
fn a_link_is_read_whatever_else_is_in_its_message() {
    let attributes = [
        encode_attribute(libc::IFLA_IFNAME, b"eth0\0"),
        encode_attribute(0x3fff, b"of a kernel to come"),
        encode_attribute(libc::IFLA_MTU, &1500u32.to_ne_bytes()),
        encode_attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7]),
        encode_attribute(libc::IFLA_LINK, &3u32.to_ne_bytes()),
        encode_attribute(libc::IFLA_MASTER, &5u32.to_ne_bytes()),
        bond(1, 0),
    ];
    let body = body(&link_header(libc::AF_UNSPEC), &attributes);
    let expected = Link {
        index: 7,
        name: "eth0".into(),
        kind: LinkKind::Bond { mode: BondMode::ActiveBackup, by_vlan: false },
        up: true,
        running: true,
        loopback: false,
        framing: LinkFraming::Ethernet,
        mtu: 1500,
        mac: [2, 0, 0, 0, 0, 7],
        lower: Some(3),
        lower_elsewhere: false,
        master: Some(5),
    };
    assert_eq!(parse_change(libc::RTM_NEWLINK, &body), Some(NetworkChange::Link(expected)));
    assert_eq!(parse_change(libc::RTM_DELLINK, &body), Some(NetworkChange::LinkGone(7)));
}

#[test]
fn a_device_that_leaves_a_bridge_is_not_gone() {
    let body =
        body(&link_header(libc::AF_BRIDGE), &[encode_attribute(libc::IFLA_IFNAME, b"eth0\0")]);
    assert_eq!(parse_change(libc::RTM_DELLINK, &body), None);
}

#[test]
fn a_lower_device_elsewhere_is_none_of_ours() {
    let attributes = [
        encode_attribute(libc::IFLA_LINK_NETNSID, &0u32.to_ne_bytes()),
        encode_attribute(libc::IFLA_LINK, &3u32.to_ne_bytes()),
    ];
    let link = link(&body(&link_header(libc::AF_UNSPEC), &attributes)).unwrap();
    assert_eq!((link.lower, link.lower_elsewhere), (None, true));
}

#[test]
fn a_veth_whose_peer_is_removed_has_no_lower_device() {
    let attributes = [encode_attribute(libc::IFLA_LINK, &0u32.to_ne_bytes())];
    let link = link(&body(&link_header(libc::AF_UNSPEC), &attributes)).unwrap();
    assert_eq!((link.lower, link.lower_elsewhere), (None, false));
}

#[test]
fn devices_are_distinguished_by_kind_and_framing() {
    use LinkFraming::{Ethernet, Raw, Unknown};
    for (hardware, kind, expected) in [
        (libc::ARPHRD_ETHER, "", (LinkKind::Other, Ethernet)),
        (libc::ARPHRD_ETHER, "veth", (LinkKind::Veth, Ethernet)),
        (libc::ARPHRD_ETHER, "netkit", (LinkKind::Veth, Ethernet)),
        (libc::ARPHRD_ETHER, "vxlan", (LinkKind::Other, Ethernet)),
        (libc::ARPHRD_ETHER, "tun", (LinkKind::Tap, Ethernet)),
        (libc::ARPHRD_NONE, "tun", (LinkKind::Other, Raw)),
        (libc::ARPHRD_NONE, "wireguard", (LinkKind::Other, Raw)),
        (libc::ARPHRD_TUNNEL, "ipip", (LinkKind::Other, Raw)),
        (libc::ARPHRD_PPP, "ppp", (LinkKind::Other, Raw)),
        (libc::ARPHRD_ETHER, "macvlan", (LinkKind::Child, Ethernet)),
        (libc::ARPHRD_ETHER, "dummy", (LinkKind::Dummy, Ethernet)),
        (libc::ARPHRD_INFINIBAND, "ipoib", (LinkKind::Other, Unknown)),
    ] {
        let mut header = link_header(libc::AF_UNSPEC);
        header[2..4].copy_from_slice(&hardware.to_ne_bytes());
        let name = [kind.as_bytes(), b"\0"].concat();
        let info =
            encode_attribute(libc::IFLA_LINKINFO, &encode_attribute(libc::IFLA_INFO_KIND, &name));
        let link = link(&body(&header, &[info])).unwrap();
        assert_eq!((link.kind, link.framing), expected, "{kind} {hardware}");
    }
}

#[test]
fn bonds_have_modes_and_one_not_known_is_trusted_least() {
    for (mode, policy, expected, by_vlan) in [
        (0, 0, BondMode::BalanceRoundRobin, false),
        (2, 5, BondMode::BalanceXor, true),
        (4, 1, BondMode::Ieee8023ad, false),
        (6, 0, BondMode::BalanceAdaptive, false),
        (99, 0, BondMode::Broadcast, false),
    ] {
        let body = body(&link_header(libc::AF_UNSPEC), &[bond(mode, policy)]);
        assert_eq!(link(&body).unwrap().kind, LinkKind::Bond { mode: expected, by_vlan }, "{mode}");
    }
}

#[test]
fn addresses_have_their_uses() {
    let message = |flags: u32, scope: u8| {
        let header = [libc::AF_INET6 as u8, 64, 0x80, scope, 7, 0, 0, 0];
        let ip = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let attributes = [
            encode_attribute(libc::IFA_ADDRESS, &ip),
            encode_attribute(libc::IFA_FLAGS, &flags.to_ne_bytes()),
        ];
        parse_address(&body(&header, &attributes)).unwrap()
    };
    let (device, plain) = message(libc::IFA_F_PERMANENT, libc::RT_SCOPE_UNIVERSE);
    assert_eq!((device, plain.ip), (7, "2001:db8::1".parse().unwrap()));
    assert!(plain.subnet && !plain.secondary && !plain.deprecated && !plain.unusable);
    assert_eq!(message(0, libc::RT_SCOPE_LINK).1.scope, AddressScope::Link);
    assert_eq!(message(0, libc::RT_SCOPE_HOST).1.scope, AddressScope::Host);
    assert!(message(libc::IFA_F_DEPRECATED, 0).1.deprecated);
    assert!(message(libc::IFA_F_SECONDARY, 0).1.secondary);
    assert!(message(libc::IFA_F_TENTATIVE, 0).1.unusable);
    assert!(!message(libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC, 0).1.unusable);
    assert!(message(libc::IFA_F_DADFAILED, 0).1.unusable);
}

#[test]
fn of_a_link_to_a_peer_our_own_address_counts() {
    let header = [libc::AF_INET as u8, 32, 0, 0, 7, 0, 0, 0];
    let attributes = [
        encode_attribute(libc::IFA_ADDRESS, &[192, 0, 2, 2]),
        encode_attribute(libc::IFA_LOCAL, &[192, 0, 2, 1]),
    ];
    let (_, address) = parse_address(&body(&header, &attributes)).unwrap();
    assert_eq!((address.ip, address.subnet), (IpAddr::from([192, 0, 2, 1]), false));
}

#[test]
fn default_routes_of_the_main_table_are_distinguished_from_others() {
    let (v4, v6, main) = (libc::AF_INET, libc::AF_INET6, libc::RT_TABLE_MAIN);
    let other = encode_attribute(libc::RTA_TABLE, &100u32.to_ne_bytes());
    for (name, body, expected) in [
        ("default", route(v4, 0, main, 0), Some(NetworkChange::DefaultRoutes)),
        ("default of IPv6", route(v6, 0, main, 0), Some(NetworkChange::DefaultRoutes)),
        ("a network's", route(v4, 24, main, 0), Some(NetworkChange::Routing)),
        ("of another table", route(v4, 0, 100, 0), Some(NetworkChange::Routing)),
        (
            "of another table, whatever the header says",
            body(&route(v4, 0, main, 0), &[other]),
            Some(NetworkChange::Routing),
        ),
        ("the kernel's own note", route(v6, 128, main, libc::RTM_F_CLONED), None),
    ] {
        assert_eq!(parse_change(libc::RTM_NEWROUTE, &body), expected, "{name}");
        assert_eq!(parse_change(libc::RTM_DELROUTE, &body), expected, "{name}");
    }
}

#[test]
fn a_default_route_is_read_with_all_its_devices() {
    let hop = |device: u32| {
        let mut hop = 16u16.to_ne_bytes().to_vec();
        hop.extend([0, 0]);
        hop.extend(device.to_ne_bytes());
        hop.extend(encode_attribute(libc::RTA_GATEWAY, &[192, 0, 2, 254]));
        hop
    };
    let attributes = [
        encode_attribute(libc::RTA_PRIORITY, &100u32.to_ne_bytes()),
        encode_attribute(libc::RTA_PREFSRC, &[192, 0, 2, 1]),
        encode_attribute(libc::RTA_MULTIPATH, &[hop(2), hop(3)].concat()),
    ];
    let header = route(libc::AF_INET, 0, libc::RT_TABLE_MAIN, 0);
    let expected = DefaultRoute {
        v6: false,
        metric: 100,
        devices: vec![2, 3],
        source: Some([192, 0, 2, 1].into()),
    };
    assert_eq!(parse_default_route(&body(&header, &attributes)), Some(expected));

    let single = encode_attribute(libc::RTA_OIF, &2u32.to_ne_bytes());
    assert_eq!(parse_default_route(&body(&header, &[single])).unwrap().devices, [2]);
    let mut unreachable = header.clone();
    unreachable[7] = libc::RTN_UNREACHABLE;
    assert_eq!(parse_default_route(&unreachable), None);
}

#[test]
fn a_neighbour_is_one_while_it_can_be_sent_to() {
    let ip = IpAddr::from([192, 0, 2, 2]);
    let here = Some(NetworkChange::Neighbour { device: 7, ip, mac: [2; 6] });
    let gone = Some(NetworkChange::NeighbourGone { device: 7, ip });
    for (state, expected) in [
        (libc::NUD_REACHABLE, &here),
        (libc::NUD_STALE, &here),
        (libc::NUD_DELAY, &here),
        (libc::NUD_PROBE, &here),
        (libc::NUD_PERMANENT, &here),
        (libc::NUD_NOARP, &here),
        (libc::NUD_INCOMPLETE, &gone),
        (libc::NUD_FAILED, &gone),
        (libc::NUD_NONE, &gone),
    ] {
        let body = neighbour(libc::AF_INET, state, 0);
        assert_eq!(parse_change(libc::RTM_NEWNEIGH, &body), *expected, "{state:#x}");
        assert_eq!(parse_change(libc::RTM_DELNEIGH, &body), gone, "{state:#x}");
    }
    let bridged = neighbour(libc::AF_BRIDGE, libc::NUD_PERMANENT, 0);
    assert_eq!(parse_change(libc::RTM_NEWNEIGH, &bridged), None);
    let proxied = neighbour(libc::AF_INET, libc::NUD_PERMANENT, libc::NTF_PROXY);
    assert_eq!(parse_change(libc::RTM_NEWNEIGH, &proxied), None);
}

proptest! {
    #[test]
    fn no_message_is_too_odd(kind in 16u16..120, body in prop::collection::vec(any::<u8>(), 0..96)) {
        let _ = parse_change(kind, &body);
        let _ = parse_default_route(&body);
    }

    /// What is cut off is not read as something else.
    #[test]
    fn a_truncated_message_yields_less_or_nothing(length in 0usize..128) {
        let whole = body(&link_header(libc::AF_UNSPEC), &[encode_attribute(libc::IFLA_IFNAME, b"eth0\0")]);
        let part = &whole[..length.min(whole.len())];
        if let Some(link) = link(part) {
            prop_assert!(part.len() >= LINK_HEADER);
            prop_assert!(link.name.is_empty() || part.len() >= LINK_HEADER + 9);
        }
    }
}

#[test]
fn routes_that_decide_by_more_than_the_destination_are_distinguished() {
    let plain = || route(libc::AF_INET6, 64, libc::RT_TABLE_MAIN, 0);
    let with = |at: usize, value: u8| {
        let mut header = plain();
        header[at] = value;
        header
    };
    let hops = encode_attribute(libc::RTA_MULTIPATH, &[0; 16]);
    let gateway = encode_attribute(libc::RTA_GATEWAY, &[0xfe; 16]);
    for (name, body, expected) in [
        ("of one next hop", body(&plain(), &[gateway]), NetworkChange::Routing),
        ("multipath", body(&plain(), &[hops]), NetworkChange::SelectiveRoute),
        (
            "of a group",
            body(&plain(), &[encode_attribute(RTA_NH_ID, &[7; 4])]),
            NetworkChange::SelectiveRoute,
        ),
        ("for a source", with(2, 64), NetworkChange::SelectiveRoute),
        ("for a traffic class", with(3, 8), NetworkChange::SelectiveRoute),
    ] {
        assert_eq!(parse_change(libc::RTM_NEWROUTE, &body), Some(expected), "{name}");
        assert_eq!(
            parse_change(libc::RTM_DELROUTE, &body),
            Some(NetworkChange::Routing),
            "{name}, removed"
        );
    }
    assert!(is_selective_route(&[]) && is_selective_route(&plain()[..11]), "cut off");
}

#[test]
fn rules_that_decide_by_more_than_the_destination_are_distinguished() {
    let table = || encode_attribute(15, &254u32.to_ne_bytes());
    let priority = || encode_attribute(6, &32766u32.to_ne_bytes());
    let suppress = || encode_attribute(14, &[0xff; 4]);
    let rule = |source: u8, class: u8, more: &[Vec<u8>]| {
        let header = [libc::AF_INET as u8, 0, source, class, 254, 0, 0, 1, 0, 0, 0, 0];
        body(&header, &[&[table(), priority(), suppress()], more].concat())
    };
    for (name, body, expected) in [
        ("all to a table", rule(0, 0, &[]), NetworkChange::Routing),
        ("of who has added it", rule(0, 0, &[encode_attribute(21, &[2])]), NetworkChange::Routing),
        (
            "to a destination",
            rule(0, 0, &[encode_attribute(1, &[10, 0, 0, 0])]),
            NetworkChange::Routing,
        ),
        (
            "from a source",
            rule(32, 0, &[encode_attribute(2, &[10; 4])]),
            NetworkChange::SelectiveRule,
        ),
        ("of a class", rule(0, 8, &[]), NetworkChange::SelectiveRule),
        (
            "of an interface",
            rule(0, 0, &[encode_attribute(3, b"eth0\0")]),
            NetworkChange::SelectiveRule,
        ),
        ("with a mark", rule(0, 0, &[encode_attribute(10, &[1; 4])]), NetworkChange::SelectiveRule),
        ("of a VRF", rule(0, 0, &[encode_attribute(19, &[1])]), NetworkChange::SelectiveRule),
        (
            "of a kernel to come",
            rule(0, 0, &[encode_attribute(99, &[])]),
            NetworkChange::SelectiveRule,
        ),
    ] {
        assert_eq!(parse_change(libc::RTM_NEWRULE, &body), Some(expected), "{name}");
        assert_eq!(
            parse_change(libc::RTM_DELRULE, &body),
            Some(NetworkChange::Routing),
            "{name}, removed"
        );
    }
    assert!(is_selective_rule(&[]), "cut off");
}
