//! Transfers of 20 MB each way, compared byte by byte: with jumbo frames, which XDP sees as several
//! buffers, and with segmentation and checksum offload.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::LazyLock;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::manifests::{here, manifests, there};
use tests::programs::agent::Agent;
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::Host;

/// Pseudo-random, without a period.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    next.take(20_000_000 / 8).flatten().collect()
});

struct Case {
    network: OneNode,
    /// A client that offloads segmentation and checksums, like a VM or pod on the same machine.
    near: Host,
    agent: Agent,
}

impl Case {
    fn new(device: &str, xdp_mode: &str) -> Result<Self> {
        let network = OneNode::warm(2)?;
        if device != DEVICE {
            let node = &network.node;
            node.bridge(device)?;
            node.ip(&format!("address flush dev {DEVICE}"))?;
            node.ip(&format!("link set {DEVICE} master {device}"))?;
            node.address(device, "192.0.2.1/24")?;
            node.address(device, "2001:db8::1/64")?;
            // With GRO the port merges packets, and the bridge receives the merged ones.
            node.run(["ethtool", "-K", DEVICE, "gro", "on"])?;
        }
        let other = network.other_node()?;
        let near = network.topology.host("near")?;
        network.topology.link(
            near.port("eth0").address("198.51.100.2/24").address("2001:db8:51::2/64"),
            network.node.port("ext1").address("198.51.100.1/24").address("2001:db8:51::1/64"),
        )?;
        near.default_route("198.51.100.1")?;
        near.default_route("2001:db8:51::1")?;
        // Without GRO at its peer, a veth does not accept redirected XDP frames.
        other.run(["ethtool", "-K", "eth0", "gro", "on"])?;
        for (host, devices) in [
            (&network.client, &["eth0"][..]),
            (&network.node, &["ext0", "in0", "pod-0"]),
            (&network.pods[0].host, &["eth0"]),
            (&other, &["eth0"]),
        ] {
            for device in devices {
                host.ip(&format!("link set {device} mtu 9000"))?;
            }
        }
        let pod = &network.pods[0].host;
        for (host, end) in [
            (pod, "10.244.1.10:9000"),
            (pod, "[fd00:10:244:1::10]:9000"),
            (&other, "10.0.0.2:9000"),
            (&other, "[fd00:a::2]:9000"),
        ] {
            mirror(host, end)?;
        }
        let file =
            network.write_manifests(&manifests(&[here(), there()].map(|s| s.tcp(80, 9000))))?;
        let more = ["--device", "ext1", "--device", "in0", "--workload-device", "pod-*"];
        let more = [&more[..], &["--xdp-mode", xdp_mode]].concat();
        let agent = Agent::start(&network.node, &network.pin_path(), &file, device, &more)?;
        Ok(Self { network, near, agent })
    }

    /// With backends on this node and on another one.
    fn exchange(&self, client: &Host) -> Result<()> {
        for frontend in FRONTENDS {
            let exchanged = exchange(client, frontend);
            exchanged.with_context(|| {
                let counters = self.agent.get(&["counters"]).unwrap_or_default();
                format!("{}, {frontend}\n{counters}", client.name())
            })?;
        }
        Ok(())
    }
}

const FRONTENDS: [&str; 4] =
    ["10.96.0.10:80", "[fd00:10:96::a]:80", "10.96.0.11:80", "[fd00:10:96::b]:80"];

/// Echoes the bytes of each connection, until the process ends.
fn mirror(host: &Host, listen: &str) -> Result<()> {
    let listener = host.enter(|| Ok(TcpListener::bind(listen)?))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                // The client may have closed the connection.
                let _ = std::io::copy(&mut &stream, &mut &stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    Ok(())
}

/// Sends `CONTENT` and compares what comes back.
fn exchange(client: &Host, to: &str) -> Result<()> {
    let stream = client.tcp_connect(to)?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<()> {
            (&stream).write_all(&CONTENT)?;
            Ok(stream.shutdown(Shutdown::Write)?)
        });
        let mut received = Vec::with_capacity(CONTENT.len());
        let read = (&stream).read_to_end(&mut received);
        let length = received.len();
        read.with_context(|| format!("after {length} bytes"))?;
        ensure!(received == *CONTENT, "the {length} bytes that came back differ");
        sending.join().expect("the sender panicked")
    })
}

/// The mean length of the frames that a client has received.
fn frame_length(client: &Host) -> Result<u64> {
    let shown = client.ip("-statistics -json link show dev eth0")?;
    let shown: Value = serde_json::from_str(&shown)?;
    let received = &shown[0]["stats64"]["rx"];
    let number = |name: &str| received[name].as_u64().with_context(|| received.to_string());
    Ok(number("bytes")? / number("packets")?.max(1))
}

#[test]
fn jumbo_frames_pass_xdp() -> Result<()> {
    let case = Case::new(DEVICE, "native")?;
    case.exchange(&case.network.client)?;
    let length = frame_length(&case.network.client)?;
    ensure!(length > 1500, "no jumbo frames: {length} bytes on average");
    Ok(())
}

/// XDP cannot see that a packet has a partial checksum (CHECKSUM_PARTIAL).
#[test]
fn packets_to_be_segmented_later_are_left_to_tc() -> Result<()> {
    let case = Case::new(DEVICE, "auto")?;
    for client in [&case.near, &case.network.pods[1].host] {
        case.exchange(client)?;
        let length = frame_length(client)?;
        ensure!(length > 1500, "no large packets: {length} bytes on average");
    }
    Ok(())
}

/// Between veths, partial checksums are neither completed nor checked. If the device cannot
/// complete them, the kernel does so from the value in the field, and the receiver checks them.
#[test]
fn partial_checksums_are_correct_once_completed() -> Result<()> {
    let case = Case::new(DEVICE, "auto")?;
    for device in ["ext1", "in0", "pod-0", "pod-1"] {
        case.network.node.run(["ethtool", "-K", device, "tx", "off"])?;
    }
    for client in [&case.near, &case.network.pods[1].host] {
        case.exchange(client)?;
    }
    Ok(())
}

/// XDP cannot see that a merged packet consists of many, each of which fits the MTU.
#[test]
fn packets_merged_by_a_bridge_port_are_left_to_tc() -> Result<()> {
    let case = Case::new("br0", "auto")?;
    case.exchange(&case.network.client)
}
