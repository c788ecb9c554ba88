//! A table: devices as `ip -details link` might show them, what was asked for, what is served.

use super::*;
use crate::snapshot::{AddressScope, InterfaceAddress};
use crate::{DefaultRoute, DeviceSettings};

/// `INDEX: NAME[@LOWER] [master NAME] [KIND [MODE [by-vlan]]] [default] [subnet|address]`, one a line; the
/// peer of a veth without `@LOWER` is in another network namespace, that of a veth `@gone` was removed; `default`: has
/// the default route.
fn devices(text: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for line in text.lines() {
        let has = |word| line.split_whitespace().any(|other| other == word);
        let mut words = line.split_whitespace().filter(|word| !STATES.contains(word)).peekable();
        let index = words.next().unwrap().trim_end_matches(':').parse().unwrap();
        let name = words.next().unwrap();
        let (name, lower) = name.split_once('@').unwrap_or((name, ""));
        let named = |name: &str| snapshot.link_named(name).map(|link| link.index);
        let master = words.next_if_eq(&"master").and_then(|_| words.next());
        let kind = match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            ("bond", mode) => {
                let by_vlan = words.next() == Some("by-vlan");
                LinkKind::Bond { mode: bond_mode(mode), by_vlan }
            }
            ("bridge", _) => LinkKind::Bridge,
            ("openvswitch", _) => LinkKind::OpenVSwitch,
            ("team", _) => LinkKind::Team,
            ("vlan", _) => LinkKind::Vlan,
            ("vrf", _) => LinkKind::Vrf,
            ("veth", _) => LinkKind::Veth,
            ("tap", _) => LinkKind::Tap,
            ("macvlan", _) => LinkKind::Child,
            ("dummy", _) => LinkKind::Dummy,
            ("" | "wireguard" | "vxlan" | "ipoib", _) => LinkKind::Other,
            other => panic!("{other:?}"),
        };
        let framing = match name {
            _ if has("wireguard") => LinkFraming::Raw,
            _ if has("ipoib") => LinkFraming::Unknown,
            _ => LinkFraming::Ethernet,
        };
        let link = Link {
            index,
            name: name.to_owned(),
            lower_elsewhere: kind == LinkKind::Veth && lower.is_empty(),
            kind,
            up: !has("down"),
            loopback: name == "lo",
            framing,
            lower: named(lower),
            master: master.map(|master| named(master).expect("masters stand first")),
            ..Link::default()
        };
        snapshot.links.insert(index, link);
        if has("default") {
            let route = DefaultRoute { v6: false, metric: 0, devices: vec![index], source: None };
            snapshot.default_routes.push(route);
        }
        if has("subnet") || has("address") {
            let address = InterfaceAddress {
                ip: "192.0.2.1".parse().unwrap(),
                scope: AddressScope::Global,
                subnet: has("subnet"),
                prefix: 24,
                secondary: false,
                deprecated: false,
                unusable: false,
            };
            snapshot.addresses.insert(index, vec![address]);
        }
    }
    snapshot
}

const STATES: [&str; 4] = ["default", "subnet", "address", "down"];

fn bond_mode(text: &str) -> BondMode {
    match text {
        "balance-rr" => BondMode::BalanceRoundRobin,
        "active-backup" => BondMode::ActiveBackup,
        "balance-xor" => BondMode::BalanceXor,
        "broadcast" => BondMode::Broadcast,
        "802.3ad" => BondMode::Ieee8023ad,
        "balance-tlb" => BondMode::BalanceTransmit,
        "balance-alb" => BondMode::BalanceAdaptive,
        other => panic!("{other}"),
    }
}

fn selectors(text: &str) -> Vec<DeviceSelector> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// One line for each device: `NAME ROLE [raw] [out only] [xdp NAME,NAME]`, `NAME refused: WHY`,
/// `NAME missing`.
fn show(attachments: &Attachments) -> String {
    let mut lines = Vec::new();
    for (device, served) in &attachments.served {
        let role = match served.role {
            DeviceRole::External => "external",
            DeviceRole::Transit => "transit",
            DeviceRole::Workload => "workload",
        };
        let xdp: Vec<&str> = served.xdp.iter().map(|device| device.name.as_str()).collect();
        let xdp = if xdp.is_empty() { String::new() } else { format!(" xdp {}", xdp.join(",")) };
        let raw = if served.raw { " raw" } else { "" };
        let out_only = if served.ingress { "" } else { " out only" };
        lines.push(format!("{} {role}{raw}{out_only}{xdp}", device.name));
    }
    for (device, refusal) in &attachments.refused {
        let why = match refusal {
            AttachmentRefusal::Loopback => "loopback".to_owned(),
            AttachmentRefusal::UnknownFraming => "unknown framing".to_owned(),
            AttachmentRefusal::Port { of, kind } => format!("port of {kind} {of}"),
            AttachmentRefusal::Vrf => "VRF".to_owned(),
        };
        lines.push(format!("{} refused: {why}", device.name));
    }
    lines.extend(attachments.unfinished.iter().map(|device| format!("{} unfinished", device.name)));
    lines.extend(attachments.missing.iter().map(|name| format!("{name} missing")));
    lines.join("; ")
}

const PODS: &str = "1: lo\n2: eth0\n5: veth1 veth\n6: veth2 veth";
const BRIDGED_PODS: &str = "1: lo\n2: eth0\n4: cni0 bridge\n5: veth1 master cni0 veth";
const BRIDGED: &str = "3: br0 bridge\n4: eth0 master br0\n5: vnet0 master br0 veth";
const VLANS: &str = "2: eth0\n3: eth0.100@eth0 vlan\n4: inner@eth0.100 vlan\n5: eth0.200@eth0 vlan";

#[test]
fn programs_go_where_they_can_run() {
    for (name, text, external, workload, expected) in [
        ("a device", PODS, "eth0", "", "eth0 external xdp eth0"),
        ("by pattern", PODS, "e*", "", "eth0 external xdp eth0"),
        ("a name twice", PODS, "eth0 eth0 eth*", "", "eth0 external xdp eth0"),
        ("none of that name", PODS, "eth1", "", "eth1 missing"),
        ("none of that pattern", PODS, "wlan*", "", ""),
        ("pods", PODS, "eth0", "veth*", "eth0 external xdp eth0; veth1 workload; veth2 workload"),
        (
            "external wins",
            PODS,
            "veth1",
            "veth*",
            "veth1 external xdp veth1; veth2 workload; veth1 unfinished",
        ),
        ("lo by its name", PODS, "lo", "", "lo refused: loopback"),
        ("lo by a pattern", "1: lo\n2: eth0", "*", "", "eth0 external xdp eth0"),
        (
            "pods on a bridge",
            BRIDGED_PODS,
            "eth0",
            "veth*",
            "eth0 external xdp eth0; veth1 workload",
        ),
        ("a bridge", BRIDGED, "br0", "", "br0 external xdp br0"),
        ("a bridge's port", BRIDGED, "eth0", "", "eth0 refused: port of bridge br0"),
        (
            "a port of Open vSwitch",
            "3: ovs-system openvswitch\n4: eth0 master ovs-system",
            "eth0",
            "",
            "eth0 refused: port of Open vSwitch bridge ovs-system",
        ),
        (
            "a VLAN of a container's",
            "2: eth0 veth\n3: eth0.7@eth0 vlan",
            "eth0.7",
            "",
            "eth0.7 external xdp eth0; eth0 unfinished",
        ),
        ("a VLAN", VLANS, "eth0.100", "", "eth0.100 external xdp eth0"),
        ("QinQ", VLANS, "inner", "", "inner external xdp eth0"),
        (
            "two VLANs and what is below",
            VLANS,
            "eth0 eth0.?00",
            "",
            "eth0 external xdp eth0; eth0.100 external xdp eth0; eth0.200 external xdp eth0",
        ),
        (
            "a VLAN of another namespace's device",
            "3: eth0.100@gone vlan",
            "eth0.100",
            "",
            "eth0.100 external xdp eth0.100",
        ),
        (
            "a VLAN of a bond",
            "2: bond0 bond 802.3ad\n3: bond0.7@bond0 vlan\n4: eth0 master bond0",
            "bond0.7",
            "",
            "bond0.7 external xdp bond0",
        ),
        (
            "a VLAN of a bond without XDP",
            "2: bond0 bond balance-tlb\n3: bond0.7@bond0 vlan\n4: eth0 master bond0",
            "bond0.7",
            "",
            "bond0.7 external xdp eth0",
        ),
        (
            "a bond's port",
            "2: bond0 bond 802.3ad\n4: eth0 master bond0",
            "eth0",
            "",
            "eth0 refused: port of bond bond0",
        ),
        (
            "a team",
            "2: team0 team\n4: eth0 master team0\n5: eth1 master team0",
            "team0",
            "",
            "team0 external xdp eth0,eth1",
        ),
        (
            "a device in a VRF",
            "2: red vrf\n4: eth0 master red",
            "eth0",
            "",
            "eth0 external xdp eth0",
        ),
        ("a VRF", "2: red vrf\n4: eth0 master red", "red", "", "red refused: VRF"),
        ("a device without Ethernet", "2: wg0 wireguard", "wg0", "", "wg0 external raw"),
        ("InfiniBand", "2: ib0 ipoib", "ib0", "", "ib0 refused: unknown framing"),
        (
            "virtual machines on a bridge to a network",
            "3: br0 bridge\n4: eth0 master br0\n5: vnet0 master br0 tap",
            "br0",
            "vnet*",
            "br0 external xdp br0; vnet0 workload out only",
        ),
    ] {
        let settings = DeviceSettings {
            external: selectors(external),
            workload: selectors(workload),
            ..DeviceSettings::default()
        };
        let planned = plan_attachments(&devices(text), &settings, &BTreeSet::new());
        assert_eq!(show(&planned), expected, "{name}");
    }
}

#[test]
fn by_default_everything_is_served_that_packets_of_services_may_use() {
    for (name, text, expected) in [
        (
            "bridge and veths",
            "2: eth0 default subnet\n4: cni0 bridge subnet\n5: veth1 master cni0 veth",
            "eth0 external xdp eth0; veth1 workload",
        ),
        (
            "a pod's interface while it is removed",
            "2: eth0 default subnet\n4: cni0 bridge subnet\n5: veth1 master cni0 veth\n\
             6: veth2@gone master cni0 veth down",
            "eth0 external xdp eth0; veth1 workload",
        ),
        (
            "point-to-point veths",
            "2: eth0 default subnet\n5: veth1 veth\n6: veth2 veth address",
            "eth0 external xdp eth0; veth1 workload; veth2 workload",
        ),
        (
            "a node that is a container, with two networks",
            "2: eth0 veth default subnet\n3: eth1 veth subnet\n5: veth1 veth",
            "eth0 external xdp eth0; eth1 transit; veth1 workload; eth0 unfinished",
        ),
        (
            "a second card and overlays",
            "2: eth0 default subnet\n3: eth1 subnet\n4: flannel.1@eth0 vxlan address\n\
             5: wg0 wireguard address",
            "eth0 external xdp eth0; eth1 transit; flannel.1 transit; wg0 transit raw",
        ),
        (
            "VLANs above a device with XDP and one without",
            "2: eth0 default subnet\n3: eth1 subnet\n4: eth0.7@eth0 vlan\n5: eth1.7@eth1 vlan",
            "eth0 external xdp eth0; eth1 transit; eth0.7 transit xdp eth0; eth1.7 transit",
        ),
        (
            "virtual machines on the bridge of the uplink",
            "3: br0 bridge default subnet\n4: eth0 master br0\n5: vnet0 master br0 tap",
            "br0 external xdp br0; vnet0 workload out only",
        ),
        (
            "virtual machines on a second bridge to a network",
            "2: eth0 default subnet\n3: br1 bridge subnet\n4: eth1 master br1\n5: vnet0 master br1 tap",
            "eth0 external xdp eth0; br1 transit; vnet0 workload out only",
        ),
        (
            "what carries no packets of Services",
            "1: lo\n2: eth0 default subnet\n3: kube-ipvs0 dummy subnet\n4: red vrf\n5: ib0 ipoib subnet\n\
             6: eth1 down\n7: a@b veth\n8: b@a veth",
            "eth0 external xdp eth0",
        ),
        (
            "a bond and its ports",
            "2: bond0 bond 802.3ad default subnet\n3: eth0 master bond0\n4: eth1 master bond0",
            "bond0 external xdp bond0",
        ),
        (
            "another address of a device",
            "2: eth0 default subnet\n3: shim@eth0 macvlan subnet",
            "eth0 external xdp eth0; shim transit out only",
        ),
        ("no default route", "2: eth0 subnet\n5: veth1 veth", "eth0 transit; veth1 workload"),
    ] {
        let auto = vec![DeviceSelector::Auto];
        let settings =
            DeviceSettings { external: auto.clone(), workload: auto, ..DeviceSettings::default() };
        let planned = plan_attachments(&devices(text), &settings, &BTreeSet::new());
        assert_eq!(show(&planned), expected, "{name}");
    }
}

#[test]
fn a_named_device_narrows_the_selection() {
    let text = "2: eth0 default subnet\n3: eth1 subnet\n4: cni0 bridge subnet\n\
                5: cali1 veth\n6: veth1 master cni0 veth";
    for (external, workload, expected) in [
        ("eth1", "auto", "eth1 external xdp eth1; cali1 workload; veth1 workload"),
        ("auto", "cali*", "eth0 external xdp eth0; eth1 transit; cali1 workload"),
        ("auto", "none", "eth0 external xdp eth0; eth1 transit"),
        ("eth0", "none", "eth0 external xdp eth0"),
    ] {
        let settings = DeviceSettings {
            external: selectors(external),
            workload: selectors(workload),
            ..DeviceSettings::default()
        };
        let planned = plan_attachments(&devices(text), &settings, &BTreeSet::new());
        assert_eq!(show(&planned), expected, "--device {external} --workload-device {workload}");
    }
}

#[test]
fn xdp_goes_to_a_bond_where_its_mode_allows_else_to_its_ports() {
    for (mode, expected) in [
        ("balance-rr", "bond0"),
        ("active-backup", "bond0"),
        ("balance-xor", "bond0"),
        ("balance-xor by-vlan", "eth0,eth1"),
        ("broadcast", "eth0,eth1"),
        ("802.3ad", "bond0"),
        ("802.3ad by-vlan", "eth0,eth1"),
        ("balance-tlb", "eth0,eth1"),
        ("balance-alb", "eth0,eth1"),
    ] {
        let text =
            format!("2: bond0 bond {mode}\n3: eth0 master bond0\n4: eth1 master bond0\n5: eth2");
        let settings = DeviceSettings { external: selectors("bond0"), ..DeviceSettings::default() };
        let planned = plan_attachments(&devices(&text), &settings, &BTreeSet::new());
        assert_eq!(show(&planned), format!("bond0 external xdp {expected}"), "{mode}");
    }
}

#[test]
fn a_device_that_loses_its_default_route_stays_external() {
    let mut snapshot = devices("1: lo\n2: eth0\n3: eth1\n4: eth2");
    let settings = DeviceSettings { external: selectors("auto"), ..DeviceSettings::default() };
    let route = |v6, devices: &[u32]| DefaultRoute {
        v6,
        metric: 100,
        devices: devices.to_vec(),
        source: None,
    };
    let none = BTreeSet::new();
    let planned = plan_attachments(&snapshot, &settings, &none);
    assert_eq!(show(&planned), "eth0 transit; eth1 transit; eth2 transit");

    snapshot.default_routes = vec![route(false, &[2]), route(true, &[2, 4])];
    let planned = plan_attachments(&snapshot, &settings, &none);
    let expected = "eth0 external xdp eth0; eth1 transit; eth2 external xdp eth2";
    assert_eq!(show(&planned), expected);

    // Gone for the moment; another came.
    let before: BTreeSet<u32> = planned.external().map(|device| device.index).collect();
    snapshot.default_routes = vec![route(false, &[3])];
    snapshot.links.remove(&4);
    let planned = plan_attachments(&snapshot, &settings, &before);
    assert_eq!(show(&planned), "eth0 external xdp eth0; eth1 external xdp eth1");
}
