//! Announced addresses with real clients: the kernel answers while no agent runs.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caps::{CapSet, Capability, CapsHashSet};
use lb_common::datapath::{arp, ndp};
use lb_common::layout::NeighbourEvent;
use lb_kernel::{Announcements, DataPlane, Pins, Tables, existing_sizes};
use tests::manifests::{Service, manifests};
use tests::worlds::one_node::{DEVICE, NODE, NODE6, OneNode};
use tests::worlds::topology::{Host, SOON, wait_until};

/// On the link of client and node.
const ADDRESSES: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
const LONG: Duration = Duration::from_secs(600);

/// A node whose agent was killed, with a LoadBalancer Service of each family.
struct Case {
    network: OneNode,
    device: u32,
    mac: [u8; 6],
}

impl Case {
    fn new(more: &[&str]) -> Result<Self> {
        let network = OneNode::warm(1)?;
        let service = |name: &str, number: u8, address: &str, pod: &str| {
            let cluster_ip = if address.contains(':') {
                format!("fd00:10:96::{number}")
            } else {
                format!("10.96.0.{number}")
            };
            Service::new(name, &[&cluster_ip]).load_balancer(&[address]).tcp(80, 8080).here(&[pod])
        };
        network.write_manifests(&manifests(&[
            service("web4", 10, ADDRESSES[0], "10.244.1.10"),
            service("web6", 11, ADDRESSES[1], "fd00:10:244:1::10"),
        ]))?;
        // It announces nothing by itself, whenever it is killed: it first waits for others.
        network.start_agent(&[more, &["--heartbeat-interval", "10000"]].concat())?.kill();
        let device = network.node.interface_index(DEVICE)?;
        let mac = mac_of(&network.node, DEVICE)?;
        Ok(Self { network, device, mac })
    }

    /// Runs a function as an agent would, in a thread of the node with exactly the capabilities
    /// that it has.
    fn as_agent<T: Send>(
        &self,
        function: impl FnOnce(&mut Announcements) -> Result<T> + Send,
    ) -> Result<T> {
        self.network.node.enter(|| {
            let kept = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_PERFMON];
            caps::set(None, CapSet::Effective, &CapsHashSet::from(kept))?;
            let pins = Pins::open(&self.network.pin_path())?;
            let sizes = existing_sizes(&pins).context("an agent has made the maps")?;
            let mut data_plane = DataPlane::load(&pins, sizes)?;
            function(&mut Announcements::open(&pins, &mut data_plane)?)
        })
    }

    fn announce(&self, address: &str, hold: Duration) -> Result<()> {
        let address = ip(address);
        self.as_agent(|it| it.announce(self.device, address, 1, hold))
    }

    /// What the kernel has counted.
    fn events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
        Tables::open(|name| self.network.pin_path().join(name))?.neighbour_events()
    }

    fn groups(&self) -> Result<String> {
        self.network.node.ip(&format!("maddress show dev {DEVICE}"))
    }
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address of the test")
}

fn mac_of(host: &Host, device: &str) -> Result<[u8; 6]> {
    let shown = host.interface(device)?;
    let text = shown["address"].as_str().context("an address")?;
    let octets: Vec<u8> =
        text.split(':').map(|part| u8::from_str_radix(part, 16)).collect::<Result<_, _>>()?;
    octets.try_into().ok().with_context(|| text.to_owned())
}

fn url(address: &str) -> String {
    if address.contains(':') {
        format!("http://[{address}]/")
    } else {
        format!("http://{address}/")
    }
}

/// The client's entry: its state and link-layer address.
fn neighbour(client: &Host, address: &str) -> Result<String> {
    client.ip(&format!("neighbour show to {address} dev eth0"))
}

fn forget(client: &Host, address: &str) -> Result<()> {
    client.ip(&format!("neighbour flush to {address} dev eth0")).map(drop)
}

/// Whether anything replies within a second. It also makes the client ask for the address.
fn replies(client: &Host, address: &str) -> Result<bool> {
    let mut ping = client.command("ping");
    Ok(ping.args(["-q", "-c1", "-W1", address]).output()?.status.success())
}

fn reaches(client: &Host, address: &str) -> bool {
    client.curl(&url(address)).is_ok_and(|page| page.trim() == "pod-0")
}

/// In XDP and tc, and in tc alone.
const MODES: [&[&str]; 2] = [&[], &["--xdp-mode", "off"]];

#[test]
fn the_kernel_answers_for_a_killed_agent_until_the_deadline() -> Result<()> {
    for mode in MODES {
        let case = Case::new(mode)?;
        let client = &case.network.client;
        for address in ADDRESSES {
            ensure!(!replies(client, address)?, "nobody answers for {address} yet");
            let state = neighbour(client, address)?;
            ensure!(!state.contains("lladdr"), "{mode:?}: {state}");
            case.announce(address, LONG)?;
            forget(client, address)?;
            ensure!(
                reaches(client, address),
                "{mode:?} {address}: {}",
                neighbour(client, address)?
            );
            let shown = neighbour(client, address)?;
            let [a, b, c, d, e, f] = case.mac;
            let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            ensure!(shown.contains(&mac), "{shown}");
            // The client checks its entry by a request to the node alone.
            client.ip(&format!("neighbour change {address} dev eth0 nud probe"))?;
            let checked = || neighbour(client, address).is_ok_and(|it| it.contains("REACHABLE"));
            wait_until("the client has checked its entry", SOON, checked)?;

            case.announce(address, Duration::ZERO)?;
            forget(client, address)?;
            ensure!(!replies(client, address)?, "the deadline has passed for {address}");
            let state = neighbour(client, address)?;
            ensure!(!state.contains("lladdr"), "{mode:?}: {state}");
        }
    }
    Ok(())
}

/// The client's kernel asks whether its new address is in use.
#[test]
fn a_client_cannot_take_an_announced_address() -> Result<()> {
    let case = Case::new(&[])?;
    let client = &case.network.client;
    let address = ADDRESSES[1];
    case.announce(address, LONG)?;
    client.sysctl(&["net.ipv6.conf.eth0.accept_dad=1", "net.ipv6.conf.eth0.dad_transmits=1"])?;
    client.ip(&format!("address add {address}/128 dev eth0"))?;
    let failed = || {
        client.ip("-6 address show dev eth0 dadfailed").is_ok_and(|shown| shown.contains(address))
    };
    wait_until("the client finds that the address is in use", SOON, failed)
}

#[test]
fn announcements_move_a_clients_entry_here() -> Result<()> {
    let case = Case::new(&[])?;
    let (client, own) = (&case.network.client, case.mac);
    client.sysctl(&["net.ipv4.neigh.eth0.locktime=0"])?;
    for address in ADDRESSES {
        case.announce(address, LONG)?;
        let elsewhere =
            format!("neighbour replace {address} dev eth0 lladdr 02:00:00:00:00:99 nud reachable");
        client.ip(&elsewhere)?;
        ensure!(!replies(client, address)?, "sent to another machine");
        client.ip(&elsewhere)?;
        case.as_agent(|it| match ip(address) {
            IpAddr::V4(v4) => {
                it.transmit(case.device, &arp::arp_announcement(own, v4.into(), true))?;
                it.transmit(case.device, &arp::arp_announcement(own, v4.into(), false))
            }
            IpAddr::V6(v6) => it.transmit(case.device, &ndp::ndp_announcement(own, v6.into())),
        })?;
        let moved = || neighbour(client, address).is_ok_and(|it| !it.contains("00:99"));
        wait_until("the entry has moved", SOON, moved)?;
        ensure!(reaches(client, address), "{}", neighbour(client, address)?);
    }
    Ok(())
}

/// The client's own addresses: its kernel answers probes, whether sent to all hosts or to it alone.
#[test]
fn machines_that_have_an_address_are_found() -> Result<()> {
    let case = Case::new(&[])?;
    let mac = mac_of(&case.network.client, "eth0")?;
    case.as_agent(|it| {
        // The agent may have begun to watch what it announces.
        let left = it.watched()?;
        let addresses = ["192.0.2.2", "2001:db8::2"].map(ip);
        for address in addresses {
            for to in [None, Some(mac)] {
                it.watch(case.device, address)?;
                ensure!(it.claim(case.device, address)?.is_none(), "not probed yet");
                match address {
                    IpAddr::V4(v4) => {
                        let to = to.unwrap_or(arp::BROADCAST);
                        it.transmit(case.device, &arp::arp_probe(case.mac, v4.into(), to))?;
                    }
                    IpAddr::V6(v6) => {
                        it.transmit(case.device, &ndp::ndp_probe(case.mac, v6.into(), to))?;
                    }
                }
                let seen = || it.claim(case.device, address).is_ok_and(|claim| claim.is_some());
                wait_until(&format!("the machine with {address} answers"), SOON, seen)?;
                let claim = it.claim(case.device, address)?.context("it was there")?;
                ensure!(claim.link_address == mac && claim.age < SOON, "{claim:?}");
            }
        }
        let mut watched = it.watched()?;
        watched.retain(|entry| !left.contains(entry));
        watched.sort_unstable();
        ensure!(watched == addresses.map(|address| (case.device, address)), "{watched:?}");
        it.stop_watching(case.device, ip("192.0.2.2"))?;
        ensure!(it.claim(case.device, ip("192.0.2.2"))?.is_none(), "no longer watched");
        let error = it.transmit(4_000_000, &arp::arp_announcement(case.mac, [0; 4].into(), true));
        let error = format!("{:#}", error.expect_err("there is no such interface"));
        ensure!(error.contains("interface 4000000"), "{error}");
        Ok(())
    })
}

#[test]
fn the_nodes_own_addresses_are_answered_by_its_stack() -> Result<()> {
    let case = Case::new(&[])?;
    let before = case.events()?;
    for address in [NODE, NODE6] {
        case.announce(address, LONG)?;
        forget(&case.network.client, address)?;
        case.network.client.run(["ping", "-c1", "-W5", address])?;
    }
    let events = case.events()?;
    ensure!(events == before, "{before:?} {events:?}");
    Ok(())
}

#[test]
fn groups_stay_joined_without_an_agent_and_are_left_at_the_end() -> Result<()> {
    const GROUP: &str = "33:33:ff:00:00:10";
    let case = Case::new(&[])?;
    let [address, with_the_same_group] = [ADDRESSES[1], "2001:db8:1::10"];
    ensure!(!case.groups()?.contains(GROUP), "{}", case.groups()?);
    case.announce(address, LONG)?;
    case.announce(with_the_same_group, LONG)?;
    case.announce(ADDRESSES[0], LONG)?;
    ensure!(case.groups()?.contains(GROUP), "{}", case.groups()?);
    // The next agent finds what the last one left.
    // It decides nothing before it has waited for others.
    case.network.start_agent(&["--heartbeat-interval", "10000"])?.kill();
    case.as_agent(|it| {
        let entries = it.entries()?;
        let addresses: Vec<String> = entries.iter().map(|it| it.address.to_string()).collect();
        ensure!(addresses == [ADDRESSES[0], address, with_the_same_group], "{entries:?}");
        ensure!(entries.iter().all(|it| it.epoch == 1 && it.remaining.is_some()), "{entries:?}");
        it.withdraw(case.device, ip(address))
    })?;
    ensure!(case.groups()?.contains(GROUP), "the other address needs it");
    case.as_agent(|it| it.withdraw(case.device, ip(with_the_same_group)))?;
    ensure!(!case.groups()?.contains(GROUP), "{}", case.groups()?);
    case.announce(address, LONG)?;
    case.network.cleanup()?;
    ensure!(!case.groups()?.contains(GROUP), "{}", case.groups()?);
    forget(&case.network.client, ADDRESSES[0])?;
    ensure!(!replies(&case.network.client, ADDRESSES[0])?, "removed");
    let state = neighbour(&case.network.client, ADDRESSES[0])?;
    ensure!(!state.contains("lladdr"), "{state}");
    Ok(())
}

/// A switch that forwards multicast frames only to ports that want them.
#[test]
fn switches_learn_the_groups_of_announced_addresses() -> Result<()> {
    let case = Case::new(&[])?;
    let node = &case.network.node;
    let switch = case.network.topology.host("switch")?;
    switch.ip("link add br0 type bridge mcast_snooping 1 mcast_querier 1 mcast_mld_version 2")?;
    switch.ip("link set br0 up")?;
    case.network.topology.link(node.port("ext1"), switch.port("one").bridge("br0"))?;
    let own = mac_of(node, "ext1")?;
    let device = node.interface_index("ext1")?;
    let known = || switch.run(["bridge", "mdb", "show", "dev", "br0"]);
    let has_address = || node.ip("-6 address show dev ext1 scope link -tentative");
    wait_until("a link-local address", SOON, || has_address().is_ok_and(|it| it.contains("fe80")))?;
    case.as_agent(|it| {
        for number in 0..100 {
            it.announce(device, ip(&format!("2001:db8::5:{number:04x}")), 1, LONG)?;
        }
        // The bridge waits before it looks at reports.
        let reported = || {
            it.report_groups(device, own).is_ok()
                && known().is_ok_and(|it| {
                    it.contains("ff02::1:ff05:0 ") && it.contains("ff02::1:ff05:63 ")
                })
        };
        wait_until("the switch knows all groups", SOON, reported)
    })
}
