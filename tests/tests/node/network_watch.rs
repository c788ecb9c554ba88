//! The events of the module `network` about changes of a machine's interfaces, addresses and routes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lb_network::{Device, DeviceSettings, NetworkEvent, NetworkWatch, NodePortAddresses};
use tests::worlds::topology::{Host, SOON, Topology};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

/// A node connected to a router that has no routes to it.
struct Wire {
    node: Host,
    topology: Topology,
}

impl Wire {
    fn new() -> Result<Self> {
        let topology = Topology::new("network")?;
        let node = topology.host("node")?;
        let router = topology.host("router")?;
        topology.link(
            node.port("ext0").addresses(&["192.0.2.1/24", "2001:db8::1/64"]).mtu(1400),
            router.port("eth0").addresses(&["192.0.2.2/24", "2001:db8::2/64"]),
        )?;
        Ok(Self { node, topology })
    }

    /// Runs `body` in the node's network namespace, with a watch of its network.
    fn follow(
        &self,
        settings: DeviceSettings,
        body: impl AsyncFnOnce(NetworkWatch) -> Result<()> + Send,
    ) -> Result<()> {
        self.node.enter(|| {
            // Single-threaded: the thread stays in the namespace, and reads nothing while a test
            // blocks it.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { body(NetworkWatch::open(settings).await?).await })
        })
    }

    fn ip(&self, commands: &[&str]) -> Result<()> {
        commands.iter().try_for_each(|command| self.node.ip(command).map(drop))
    }

    /// Runs a command of `ip`; the watch can read events meanwhile.
    async fn ip_beside(&self, command: String) -> Result<()> {
        let node = self.node.clone();
        tokio::task::spawn_blocking(move || node.ip(&command)).await?.map(drop)
    }
}

fn serving(external: &str, workload: &str) -> DeviceSettings {
    let selectors =
        |text: &str| text.split_whitespace().map(|word| word.parse().expect("a device")).collect();
    DeviceSettings {
        external: selectors(external),
        workload: selectors(workload),
        ..DeviceSettings::default()
    }
}

/// Waits for an event that `wanted` accepts, and returns what it made of the event.
async fn expect<T>(
    events: &mut UnboundedReceiver<NetworkEvent>,
    what: &str,
    wanted: impl Fn(NetworkEvent) -> Option<T>,
) -> Result<T> {
    let found = timeout(SOON, async {
        loop {
            let event = events.recv().await.context("the network watch ended")?;
            if let Some(found) = wanted(event) {
                return Ok(found);
            }
        }
    });
    found.await.unwrap_or_else(|_| bail!("timeout while waiting until {what}"))
}

async fn expect_epoch(events: &mut UnboundedReceiver<NetworkEvent>, what: &str) -> Result<()> {
    expect(events, what, |event| matches!(event, NetworkEvent::Epoch).then_some(())).await
}

async fn expect_addresses(
    events: &mut UnboundedReceiver<NetworkEvent>,
    wanted: &str,
) -> Result<()> {
    let wanted = addresses(wanted);
    let is_it = |event| matches!(event, NetworkEvent::NodeAddresses(found) if found == wanted);
    let what = format!("NodePorts are open on {wanted:?}");
    expect(events, &what, |event| is_it(event).then_some(())).await
}

fn addresses(text: &str) -> BTreeSet<IpAddr> {
    text.split_whitespace().map(|word| word.parse().expect("an address")).collect()
}

#[test]
fn devices_are_read_with_their_addresses_mtu_and_mac() -> Result<()> {
    let wire = Wire::new()?;
    wire.node.ip("link set ext0 address 02:00:00:00:00:07")?;
    wire.follow(serving("ext0", ""), async |network| {
        assert_eq!(*network.node_addresses(), addresses("192.0.2.1 2001:db8::1"));
        let devices: Vec<_> = network.devices().values().collect();
        let [device] = devices[..] else { bail!("{devices:?}") };
        assert_eq!((&*device.name, device.mtu, device.mac), ("ext0", 1400, [2, 0, 0, 0, 0, 7]));
        assert_eq!(device.v4, Some([192, 0, 2, 1].into()));
        assert_eq!(device.v6, Some("2001:db8::1".parse()?));
        Ok(())
    })
}

#[test]
fn node_addresses_follow_added_and_removed_addresses() -> Result<()> {
    let wire = Wire::new()?;
    let node_ports = vec!["198.51.100.0/24".parse::<NodePortAddresses>().unwrap()];
    wire.follow(serving("ext0", ""), async |network| {
        let mut events = network.follow();
        wire.ip(&["address add 192.0.2.9/24 dev ext0"])?;
        expect_addresses(&mut events, "192.0.2.1 192.0.2.9 2001:db8::1").await?;
        wire.ip(&["address add 2001:db8::9/64 dev ext0 nodad"])?;
        expect_addresses(&mut events, "192.0.2.1 192.0.2.9 2001:db8::1 2001:db8::9").await?;
        wire.ip(&["address del 192.0.2.1/24 dev ext0", "address flush dev ext0 scope global"])?;
        expect_addresses(&mut events, "").await
    })?;
    wire.follow(DeviceSettings { node_ports, ..serving("ext0", "") }, async |network| {
        assert_eq!(*network.node_addresses(), addresses(""));
        let mut events = network.follow();
        wire.ip(&["address add 198.51.100.1/32 dev lo"])?;
        expect_addresses(&mut events, "198.51.100.1").await
    })
}

#[test]
fn the_source_address_of_a_device_follows_its_addresses() -> Result<()> {
    let wire = Wire::new()?;
    wire.follow(serving("ext0", ""), async |network| {
        let index = *network.devices().keys().next().context("no device")?;
        let mut events = network.follow();
        let v6 = "2001:db8::8".parse()?;
        wire.ip(&[
            "address change 2001:db8::1/64 dev ext0 preferred_lft 0",
            "address add 2001:db8::8/64 dev ext0 nodad",
            "address del 192.0.2.1/24 dev ext0",
            "address add 192.0.2.8/24 dev ext0",
        ])?;
        expect(&mut events, "ext0 has other addresses", |event| {
            let NetworkEvent::Devices(mut devices) = event else { return None };
            let device = devices.remove(&index)??;
            (device.v4 == Some([192, 0, 2, 8].into()) && device.v6 == Some(v6)).then_some(())
        })
        .await
    })
}

#[test]
fn whether_a_device_accepts_xdp_redirects_follows_its_driver() -> Result<()> {
    let wire = Wire::new()?;
    let make = "link add pod1 type veth peer name far1";
    wire.ip(&[make, "link set pod1 up", "link set far1 up"])?;
    wire.follow(serving("ext0", ""), async |network| {
        let named = |(index, device): (&u32, &Device)| (device.name == "pod1").then_some(*index);
        let index = network.devices().iter().find_map(named).context("no pod1")?;
        assert!(!network.devices()[&index].redirect);
        let mut events = network.follow();
        // A veth accepts redirected XDP frames if GRO is on at its peer.
        for (setting, expected) in [("on", true), ("off", false)] {
            wire.node.run(["ethtool", "-K", "far1", "gro", setting])?;
            expect(&mut events, &format!("pod1 accepts redirected frames: {expected}"), |event| {
                let NetworkEvent::Devices(mut devices) = event else { return None };
                (devices.remove(&index)??.redirect == expected).then_some(())
            })
            .await?;
        }
        Ok(())
    })
}

#[test]
fn devices_are_attachments_from_addition_until_removal() -> Result<()> {
    let wire = Wire::new()?;
    wire.follow(serving("ext0", "pod*"), async |network| {
        let mut events = network.follow();
        let served = |event| {
            let NetworkEvent::Attachments(attachments) = event else { return None };
            Some(attachments.served.into_keys().map(|device| device.name).collect::<Vec<_>>())
        };
        wire.ip(&["link add pod1 type veth peer name far1"])?;
        expect(&mut events, "pod1 is among the attachments", |event| {
            served(event).filter(|names| names.contains(&"pod1".to_owned()))
        })
        .await?;
        wire.ip(&["link del pod1"])?;
        expect(&mut events, "pod1 is no longer among the attachments", |event| {
            served(event).filter(|names| names == &["ext0"])
        })
        .await?;
        wire.ip(&["link set ext0 down", "link set ext0 name ext7"])?;
        expect(&mut events, "ext0 is missing", |event| {
            let NetworkEvent::Attachments(attachments) = event else { return None };
            (attachments.served.is_empty() && attachments.missing.contains("ext0")).then_some(())
        })
        .await
    })
}

#[test]
fn auto_selects_the_devices_of_the_default_route() -> Result<()> {
    let wire = Wire::new()?;
    wire.follow(serving("auto", ""), async |network| {
        assert_eq!(network.attachments().external().count(), 0);
        let facing: Vec<_> = network.attachments().facing_clients().collect();
        assert!(matches!(facing[..], [device] if device.name == "ext0"), "{facing:?}");
        Ok(())
    })?;

    wire.ip(&["route add default via 192.0.2.2"])?;
    wire.follow(serving("auto", ""), async |network| {
        let external = |event| {
            let NetworkEvent::Attachments(attachments) = event else { return None };
            Some(attachments.external().map(|device| device.name.clone()).collect::<Vec<_>>())
        };
        let before: Vec<_> = network.attachments().external().map(|d| d.name.clone()).collect();
        assert_eq!(before, ["ext0"]);
        let mut events = network.follow();
        wire.ip(&[
            "link add ext1 type veth peer name far1",
            "link set ext1 up",
            "link set far1 up",
            "address add 198.51.100.1/24 dev ext1",
            // A multipath route.
            "route replace default nexthop via 198.51.100.2 dev ext1 nexthop via 192.0.2.2",
        ])?;
        expect(&mut events, "ext1 is external, too", |event| {
            external(event).filter(|names| names == &["ext0", "ext1"])
        })
        .await
        .map(drop)
    })
}

#[test]
fn the_epoch_changes_after_every_relevant_change() -> Result<()> {
    let wire = Wire::new()?;
    wire.ip(&["link add mark0 type veth peer name mark1"])?;
    wire.follow(serving("ext0", ""), async |network| {
        let mut events = network.follow();
        for (mtu, command) in (1000..).step_by(2).zip([
            "route add 203.0.113.0/24 via 192.0.2.2",
            "route change 203.0.113.0/24 via 192.0.2.3",
            "route del 203.0.113.0/24",
            "route add 2001:db8:1::/48 via 2001:db8::2",
            "route del 2001:db8:1::/48 via 2001:db8::2",
            "route add 203.0.113.0/24 via 192.0.2.2 table 100",
            "rule add from 192.0.2.7 table 100",
            "nexthop add id 7 via 192.0.2.2 dev ext0",
            "neighbour change 192.0.2.7 lladdr 02:00:00:00:00:02 dev ext0",
            "neighbour del 192.0.2.7 dev ext0",
            "neighbour change 2001:db8::7 lladdr 02:00:00:00:00:02 dev ext0",
            "neighbour change 2001:db8::7 nud failed dev ext0",
            "address add 192.0.2.9/24 dev ext0",
            "address del 192.0.2.9/24 dev ext0",
            "link set ext0 mtu 1300",
            "link set ext0 address 02:00:00:00:00:08",
            "link set ext0 down",
            "link set ext0 up",
        ]) {
            if let Some(rest) = command.strip_prefix("neighbour change ") {
                let ip = rest.split(' ').next().unwrap_or_default();
                wire.ip(&[&format!("neighbour replace {ip} lladdr 02:00:00:00:00:01 dev ext0")])?;
            }
            settle(&wire, &mut events, mtu).await?;
            wire.ip(&[command])?;
            let_it_be_reported().await;
            let epochs = settle(&wire, &mut events, mtu + 1).await?;
            assert!(epochs > 0, "the epoch does not change after: ip {command}");
        }
        Ok(())
    })
}

#[test]
fn next_hops_are_shared_until_a_rule_or_route_decides_by_more_than_the_destination() -> Result<()> {
    for command in [
        "rule add from 192.0.2.7 table 100",
        "route add 203.0.113.0/24 nexthop via 192.0.2.2 nexthop via 192.0.2.3",
        "route add 2001:db8:1::/48 nexthop via 2001:db8::2 nexthop via 2001:db8::3",
        "route add default nexthop via 192.0.2.2 nexthop via 192.0.2.3",
    ] {
        let wire = Wire::new()?;
        wire.follow(serving("ext0", ""), async |network| {
            assert!(network.shares_hops(), "before: ip {command}");
            let mut events = network.follow();
            wire.ip(&[command])?;
            let is_it = |event| (event == NetworkEvent::SharedHops(false)).then_some(());
            expect(&mut events, command, is_it).await
        })?;
        // Also for an agent that starts now.
        wire.follow(serving("ext0", ""), async |network| {
            assert!(!network.shares_hops(), "after: ip {command}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Waits longer than a burst is held back, so that later events are not merged with earlier ones.
/// Many short waits, because the watch runs on the same thread.
async fn let_it_be_reported() {
    for _ in 0..30 {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the events of all earlier changes: changes an unrelated interface, and waits for that
/// event. Returns how often the epoch changed before it.
async fn settle(
    wire: &Wire,
    events: &mut UnboundedReceiver<NetworkEvent>,
    mtu: u32,
) -> Result<usize> {
    wire.ip(&[&format!("link set mark0 mtu {mtu}")])?;
    let mut epochs = 0;
    let is_mark = |event: &NetworkEvent| {
        let NetworkEvent::Devices(devices) = event else { return false };
        devices.values().flatten().any(|device| device.name == "mark0" && device.mtu == mtu)
    };
    let notified = timeout(SOON, async {
        loop {
            let event = events.recv().await.context("the network watch ended")?;
            if is_mark(&event) {
                return Ok::<_, anyhow::Error>(());
            }
            epochs += usize::from(event == NetworkEvent::Epoch);
        }
    });
    notified.await.context("no event for mark0")??;
    // The change of mark0 changes the epoch, too.
    expect_epoch(events, "the epoch changes after mark0").await?;
    Ok(epochs)
}

#[test]
fn a_neighbour_that_only_ages_does_not_change_the_epoch() -> Result<()> {
    let wire = Wire::new()?;
    wire.ip(&["link add mark0 type veth peer name mark1"])?;
    // However long it takes until its next state: nobody answers probes, and it must not count as failed.
    wire.node.sysctl(&["net.ipv4.neigh.ext0.ucast_solicit=1000"])?;
    wire.follow(serving("ext0", ""), async |network| {
        let mut events = network.follow();
        let neighbour = "neighbour replace 192.0.2.7 lladdr 02:00:00:00:00:01 dev ext0";
        wire.ip(&[neighbour])?;
        settle(&wire, &mut events, 1000).await?;
        // Longer than a burst is held back.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            for state in ["stale", "reachable", "delay", "probe", "permanent"] {
                wire.ip_beside(format!("{neighbour} nud {state}")).await?;
            }
        }
        assert_eq!(settle(&wire, &mut events, 1001).await?, 0);
        Ok(())
    })
}

#[test]
fn a_burst_changes_the_epoch_only_a_few_times() -> Result<()> {
    let wire = Wire::new()?;
    wire.ip(&["link add mark0 type veth peer name mark1"])?;
    let batch: String = (0..3000)
        .map(|number| format!("route add 10.0.{}.{}/32 dev ext0\n", number / 256, number % 256))
        .collect();
    let file = wire.topology.directory().join("routes");
    fs::write(&file, batch)?;
    wire.follow(serving("ext0", ""), async |network| {
        let mut events = network.follow();
        settle(&wire, &mut events, 1000).await?;
        let start = Instant::now();
        wire.ip_beside(format!("-batch {}", file.display())).await?;
        let epochs = settle(&wire, &mut events, 1001).await?;
        // Epochs are at least 100 ms apart. The last one belongs to mark0.
        let most = start.elapsed().as_millis() / 100 + 1;
        assert!((epochs as u128) < most + 1, "{epochs} in {:?}", start.elapsed());
        Ok(())
    })
}

#[test]
fn lost_netlink_messages_cause_a_complete_read() -> Result<()> {
    let wire = Wire::new()?;
    // More than the netlink socket's buffer holds: nothing is read while this blocks the only
    // thread.
    let mut batch = String::new();
    for number in 0..30_000 {
        let (high, low) = (number / 256, number % 256);
        writeln!(batch, "route add 10.{}.{high}.{low}/32 dev ext0", number % 7)?;
    }
    batch.push_str("address add 192.0.2.9/24 dev ext0\n");
    let file = wire.topology.directory().join("routes");
    fs::write(&file, batch)?;
    wire.follow(serving("ext0", ""), async |network| {
        let mut events = network.follow();
        let batch = format!("-batch {}", file.display());
        wire.node.ip(&batch)?;
        // The notification of the new address was lost.
        expect_addresses(&mut events, "192.0.2.1 192.0.2.9 2001:db8::1").await?;
        expect_epoch(&mut events, "the epoch changes, because anything may have changed").await
    })
}
