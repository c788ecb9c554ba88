//! Services on stacked interfaces: VLANs, VLANs in VLANs, bonds. A test is skipped, with a message,
//! if the kernel does not support its interfaces.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_common::header::Bfd;
use lb_common::layout::BfdSession;
use lb_kernel::{BfdSessions, Pins};
use tests::manifests::{here, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::{CLIENT, DEVICE, NODE, NODE6, OneNode};
use tests::worlds::topology::{Host, SOON, wait_until};

const URLS: [&str; 2] = ["http://203.0.113.10/", "http://[2001:db8:113::10]/"];

/// Whether the kernel supports interfaces of this kind. Prints a message if not.
fn has(network: &OneNode, kind: &str) -> bool {
    let made = network.client.ip(&format!("link add name probe {kind}"));
    let made = made.and_then(|_| network.client.ip("link delete probe"));
    if let Err(error) = &made {
        println!("skipped, no such devices: {error:#}");
    }
    made.is_ok()
}

/// Adds a VLAN interface. Tags are inserted into the frames, as on a real wire.
fn add_vlan(host: &Host, below: &str, device: &str, tag: &str) -> Result<()> {
    for offload in ["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"] {
        // Stacked interfaces may not have this offload.
        let _ = host.run(["ethtool", "-K", below, offload, "off"]);
    }
    host.ip(&format!("link add link {below} name {device} type vlan {tag}"))?;
    host.ip(&format!("link set {device} up")).map(drop)
}

/// Connects client and node by a second link, and bonds both links at both ends.
///
/// No switch is between the two: with one active port, both must choose the same one. Without a
/// primary port each keeps the port that it has used last, and which one that is depends on which
/// changes of the other end it has noticed while the ports were added.
fn add_bond(network: &OneNode, mode: &str) -> Result<()> {
    network.topology.link(network.client.port("eth1").wire(), network.node.port("ext1"))?;
    for (host, ports) in [(&network.client, ["eth0", "eth1"]), (&network.node, [DEVICE, "ext1"])] {
        let primary = match mode {
            "active-backup" => format!("primary {}", ports[0]),
            _ => String::new(),
        };
        host.ip(&format!("link add bond0 type bond miimon 50 mode {mode} {primary}"))?;
        for port in ports {
            host.ip(&format!("link set {port} down"))?;
            host.ip(&format!("link set {port} master bond0"))?;
        }
        host.ip("link set bond0 up")?;
    }
    Ok(())
}

/// Moves the addresses to the given interfaces.
fn move_addresses(network: &OneNode, client_device: &str, device: &str) -> Result<()> {
    let OneNode { client, node, .. } = network;
    for (host, from, to, addresses) in [
        (client, "eth0", client_device, ["192.0.2.2/24", "2001:db8::2/64"]),
        (node, DEVICE, device, ["192.0.2.1/24", "2001:db8::1/64"]),
    ] {
        host.ip(&format!("address flush dev {from}"))?;
        // IPv6 routes are not removed with their addresses.
        host.ip(&format!("-6 route flush dev {from}"))?;
        addresses.iter().try_for_each(|address| host.address(to, address))?;
    }
    client.default_route(NODE)?;
    client.default_route(NODE6)
}

/// The states of both bonds, if there are any.
fn states(network: &OneNode) -> String {
    let of = |host: &Host| host.run(["cat", "/proc/net/bonding/bond0"]).unwrap_or_default();
    format!("client: {}\nnode: {}", of(&network.client), of(&network.node))
}

fn agent(network: &OneNode, device: &str) -> Result<Agent> {
    let file = network.write_manifests(&manifests(&[here().tcp(80, 8080)]))?;
    Agent::start(&network.node, &network.pin_path(), &file, device, &[])
}

/// Checks which interfaces have XDP, and that the Service responds.
fn check(network: &OneNode, device: &str, xdp: &[&str]) -> Result<Agent> {
    let agent = agent(network, device)?;
    let log = agent.log();
    for below in [DEVICE, "ext1", "bond0", device] {
        let attached = format!("attached to interface device={below} ");
        let mut lines = log.lines();
        let has_xdp = lines.any(|line| line.contains(&attached) && line.contains("native XDP"));
        assert_eq!(has_xdp, xdp.contains(&below), "{below}: {log}");
    }
    for url in URLS {
        let answer = network.curl(url);
        let state = || states(network) + &agent.get(&["counters"]).unwrap_or_default();
        assert_eq!(answer.with_context(state)?, "pod-0\n", "{url}");
    }
    Ok(agent)
}

/// Checks that the kernel answers packets of a session on the interface, while no agent runs. XDP sees
/// them on the interface below.
fn check_bfd(network: &OneNode, device: &str) -> Result<()> {
    let up = |my: u8, your: u8| Bfd {
        version_and_diagnostic: 0x20,
        state_and_flags: 0xc0,
        multiplier: 3,
        length: 24,
        fields: [[my; 4], [your; 4], [0, 1, 0, 0], [0, 1, 0, 0], [0; 4]],
    };
    let (own, peer) = (up(7, 8), up(8, 7));
    let index = network.node.interface_index(device)?;
    network.node.enter(|| {
        let [peer_address, local] = [CLIENT, NODE].map(|text| text.parse::<IpAddr>());
        let session = BfdSession {
            deadline: 0,
            peer: peer_address?.into(),
            local: local?.into(),
            expected: peer,
            answer: own,
            device: index,
            source_port: 50_001,
            destination_port: Bfd::ONE_HOP,
            min_hop_limit: 255,
            reserved: [0; 7],
        };
        BfdSessions::open(&Pins::open(&network.pin_path())?)?.set(
            u32::from_be_bytes(own.fields[0]),
            &session,
            SOON,
        )
    })?;
    network.client.enter(|| {
        let socket = UdpSocket::bind((CLIENT, Bfd::ONE_HOP))?;
        socket.set_ttl(255)?;
        // A packet may be lost while a neighbour is resolved: it is sent again.
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut answer = [0; 64];
        let mut received = None;
        wait_until("the kernel answers", SOON, || {
            let sent = socket.send_to(&peer.words().concat(), (NODE, Bfd::ONE_HOP));
            received = sent.and_then(|_| socket.recv_from(&mut answer)).ok();
            received.is_some()
        })?;
        let (length, from) = received.context("no answer")?;
        ensure!(from.port() == 50_001 && answer[..length] == own.words().concat(), "from {from}");
        Ok(())
    })
}

#[test]
fn a_service_works_in_a_vlan_and_in_a_stacked_vlan() -> Result<()> {
    let network = OneNode::warm(1)?;
    if !has(&network, "link eth0 type vlan id 9") {
        return Ok(());
    }
    for (host, device) in [(&network.client, "eth0"), (&network.node, DEVICE)] {
        add_vlan(host, device, &format!("{device}.7"), "id 7")?;
        add_vlan(host, device, &format!("{device}.s"), "protocol 802.1ad id 8")?;
        add_vlan(host, &format!("{device}.s"), &format!("{device}.s.9"), "id 9")?;
    }
    move_addresses(&network, "eth0.7", "ext0.7")?;
    let _ = check(&network, "ext0.7", &[DEVICE])?.terminate()?;
    check_bfd(&network, "ext0.7")?;
    for (host, device) in [(&network.client, "eth0.7"), (&network.node, "ext0.7")] {
        host.ip(&format!("link delete {device}"))?;
    }
    move_addresses(&network, "eth0.s.9", "ext0.s.9")?;
    check(&network, "ext0.s.9", &[DEVICE]).map(drop)
}

#[test]
fn a_service_works_through_either_port_of_a_bond() -> Result<()> {
    let network = OneNode::warm(1)?;
    if !has(&network, "type bond") {
        return Ok(());
    }
    add_bond(&network, "active-backup")?;
    move_addresses(&network, "bond0", "bond0")?;
    let agent = check(&network, "bond0", &["bond0"])?;
    for (down, up) in [(DEVICE, "ext1"), ("ext1", DEVICE)] {
        network.node.ip(&format!("link set {up} up"))?;
        network.node.ip(&format!("link set {down} down"))?;
        wait_until(&format!("{up} is used"), SOON, || {
            URLS.iter().all(|url| network.curl(url).is_ok_and(|answer| answer == "pod-0\n"))
        })
        .with_context(|| states(&network))?;
    }
    agent.kill();
    check_bfd(&network, "bond0")
}

#[test]
fn a_service_works_in_a_vlan_on_a_bond() -> Result<()> {
    let network = OneNode::warm(1)?;
    if !has(&network, "type bond") || !has(&network, "link eth0 type vlan id 9") {
        return Ok(());
    }
    // In this mode the bonding driver does not support XDP, so its ports get the programs.
    add_bond(&network, "broadcast")?;
    for host in [&network.client, &network.node] {
        add_vlan(host, "bond0", "bond0.7", "id 7")?;
    }
    move_addresses(&network, "bond0.7", "bond0.7")?;
    check(&network, "bond0.7", &[DEVICE, "ext1"])?.kill();
    check_bfd(&network, "bond0.7")
}
