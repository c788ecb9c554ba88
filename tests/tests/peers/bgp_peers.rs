//! The kinds of BGP peers beside those of docs/bgp.md: unnumbered, behind another router, of the same AS, one that
//! connects by itself, and objects of MetalLB; and other daemons than FRR and BIRD, each on the link and behind a router.
//! docs/design/bgp.md says what each daemon shows.
//!
//! ```text
//! frr  ─── link-local addresses ─── u0 ┐
//!   └───── 192.0.2.0/24 ────────── ext0├── node
//! bird ─── 198.51.100.0/24 ─────── ext1┤
//!   └───── 10.8.0.0/24 ── others       │
//! others ─ 10.9.0.0/24 ─────────── ext2┤
//! stranger, with frr's addresses ── u1 ┘
//! ```

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lb_common::datapath::BfdTables;
use lb_inspect::trace::View;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::programs::bgp::{Speaker, is_answered, is_established};
use tests::programs::bgp_daemons::{Daemon, PASSWORD, Running};
use tests::programs::bird::{Bird, BirdBfdSession};
use tests::programs::frr::{BFD_PROFILES, Frr};
use tests::worlds::topology::{Host, SOON, Topology, wait_until};

const OBJECTS: &str = include_str!("../../manifests/bgp-peers.yaml");
/// zebra sends router advertisements because bgpd asks it to.
const BGPD: &str = include_str!("../../manifests/bgp-peers-bgpd.conf");
const BIRD: &str = include_str!("../../manifests/bgp-peers-bird.conf");
const BIRD_BEHIND: &str = include_str!("../../manifests/bgp-peers-bird-behind.conf");

const POD: [&str; 2] = ["10.244.1.10", "fd00:10:244:1::10"];
/// The node's address on the link to the other daemons, and the one behind a router from them.
const FOR_OTHERS: [&str; 2] = ["10.9.0.11", "198.51.100.11"];
const ADDRESSES: [&str; 2] = ["203.0.113.10", "2001:db8:f::10"];
/// Of a Service that is deleted while no agent runs.
const DELETED: [&str; 2] = ["203.0.113.11", "2001:db8:f::11"];
/// Of one that is created then.
const CREATED: [&str; 2] = ["203.0.113.12", "2001:db8:f::12"];
/// Link-layer addresses, from which link-local ones are made: the same on two links.
const ROUTER_MAC: &str = "02:00:00:00:01:01";
const NODE_MAC: &str = "02:00:00:00:01:02";

struct World {
    frr: Frr,
    bird: Bird,
    behind: Bird,
    others: Vec<Running>,
    stranger: Host,
    node: Host,
    pins: PathBuf,
    speaker: Speaker,
    agent: Option<Agent>,
    topology: Topology,
}

impl World {
    fn start() -> Result<Self> {
        let topology = Topology::new("bgp")?;
        let [frr, bird, node] = ["frr", "bird", "node"].map(|name| topology.router(name));
        let (frr, bird, node) = (frr?, bird?, node?);
        let [others, stranger] = ["others", "stranger"].map(|name| topology.host(name));
        let (others, stranger) = (others?, stranger?);
        for (router, port, at) in [(&stranger, "eth0", "u1"), (&frr, "rack", "u0")] {
            topology.link(router.port(port).mac(ROUTER_MAC), node.port(at).mac(NODE_MAC))?;
        }
        topology.link(
            frr.port("lan").addresses(&["192.0.2.1/24", "2001:db8:1::1/64"]),
            node.port("ext0").addresses(&["192.0.2.11/24", "2001:db8:1::11/64"]),
        )?;
        let of_bird = ["198.51.100.1/24", "2001:db8:2::1/64", "2001:db8:2::2/64"];
        let of_node = ["198.51.100.11/24", "2001:db8:2::11/64"];
        topology
            .link(bird.port("lan").addresses(&of_bird), node.port("ext1").addresses(&of_node))?;
        let prefix = |address: String| format!("{address}/24");
        let near = Daemon::ALL.map(|daemon| prefix(daemon.near()));
        let near = near.iter().map(String::as_str).chain(["2001:db8:3::1/64"]);
        topology.link(
            others.port("lan").addresses(&near.collect::<Vec<_>>()),
            node.port("ext2").addresses(&["10.9.0.11/24", "2001:db8:3::11/64"]),
        )?;
        let far = Daemon::ALL.map(|daemon| prefix(daemon.far()));
        let far = far.iter().map(String::as_str).chain(["10.8.0.9/24"]);
        topology.link(
            others.port("back").addresses(&far.collect::<Vec<_>>()),
            bird.port("back").address("10.8.0.254/24"),
        )?;
        others.route("198.51.100.0/24", "10.8.0.254")?;
        node.route("10.8.0.0/24", "198.51.100.1")?;
        frr.ip("address add 10.255.0.1/32 dev lo")?;
        node.route("10.255.0.1/32", "192.0.2.1")?;
        // A node that forwards ignores routers otherwise.
        node.sysctl(&["net.ipv6.conf.u0.accept_ra=2"])?;
        let directory = topology.directory();
        let running = Daemon::ALL.map(|it| it.start(&others, directory, FOR_OTHERS, 64_512));
        let pins = topology.warm_agent_pins();
        let mut world = Self {
            frr: Frr::start(&topology, &frr, &[("bfdd", BFD_PROFILES), ("bgpd", BGPD)])?,
            bird: Bird::start(&topology, &bird, BIRD)?,
            behind: Bird::start(&topology, &others, BIRD_BEHIND)?,
            others: running.into_iter().collect::<Result<_>>()?,
            stranger,
            speaker: Speaker::of(&node, pins.clone()),
            node,
            pins,
            agent: None,
            topology,
        };
        world.write(&[ADDRESSES, DELETED])?;
        world.launch()?;
        Ok(world)
    }

    /// Writes Services with these addresses.
    fn write(&self, addresses: &[[&str; 2]]) -> Result<()> {
        let service = |addresses: &[&str; 2]| {
            let number = addresses[0].rsplit('.').next().unwrap_or_default();
            let cluster = [format!("10.96.0.{number}"), format!("fd00:10:96::{number}")];
            let cluster = cluster.each_ref().map(String::as_str);
            let service = Service::new(&format!("web-{number}"), &cluster);
            service.load_balancer(addresses).tcp(80, 8080).here(&POD)
        };
        let services: Vec<Service> = addresses.iter().map(service).collect();
        let text = format!("{OBJECTS}---\n{}{}", others_as_peers(), manifests(&services));
        self.topology.replace_manifests(&text)
    }

    fn launch(&mut self) -> Result<()> {
        let state = self.topology.directory().join("state");
        let state = state.to_str().context("UTF-8")?;
        let more = ["ext1", "ext2", "u0", "u1"].map(|device| ["--device", device]);
        let more = [more.as_flattened(), &["--xdp-mode", "off", "--state-directory", state]];
        let manifests = self.topology.manifests();
        let agent = Agent::start(&self.node, &self.pins, &manifests, "ext0", &more.concat())?;
        self.agent = Some(agent);
        Ok(())
    }

    fn wait_for_sessions(&self) -> Result<()> {
        // Two with each of the others, and five of the routers.
        let number = 2 * self.others.len() + 5;
        let established = self.speaker.wait_for_peers("sessions", number, is_established);
        established.with_context(|| {
            let frr = self.frr.show("bgpd", "show bgp summary").unwrap_or_default();
            let others: Vec<String> = self.others.iter().map(Running::log).collect();
            let birds = [&self.bird, &self.behind];
            let birds = birds.map(|bird| bird.show("show protocols").unwrap_or_default());
            format!("{frr}{}{}", birds.concat(), others.join("\n"))
        })
    }

    fn wait_for_paths(&self) -> Result<()> {
        self.speaker.wait_for_paths("paths that are watched", 4, is_answered)
    }

    /// What changes when a router takes a path for broken: how often FRR did, and BIRD's sessions.
    fn faults(&self) -> Result<(Vec<String>, Vec<BirdBfdSession>)> {
        let counters = self.frr.json("bfdd", "show bfd peers counters json")?;
        let downs = counters.as_array().into_iter().flatten();
        let downs = downs.map(|peer| format!("{} {}", peer["peer"], peer["session-down"]));
        let sessions = [self.bird.bfd_sessions()?, self.behind.bfd_sessions()?];
        Ok((downs.collect(), sessions.into_iter().flatten().collect()))
    }

    /// The routes of each daemon that keeps those of a node that restarts.
    fn tables(&self) -> Result<Vec<(&'static str, String)>> {
        let mut tables = vec![
            ("internal", self.bird.show("show route protocol inside")?),
            ("passive", self.bird.show("show route protocol dials")?),
            ("behind", self.behind.show("show route")?),
            (
                "unnumbered",
                self.frr.show("bgpd", "show bgp ipv4 unicast")?
                    + &self.frr.show("bgpd", "show bgp ipv6 unicast")?,
            ),
        ];
        for daemon in self.others.iter().filter(|it| it.daemon.helps_restarts()) {
            tables.push((daemon.daemon.name(), daemon.routes()?));
        }
        Ok(tables)
    }

    /// Waits until all tables have these addresses, or none of them has one.
    fn wait_for_routes(&self, what: &str, addresses: [&str; 2], are_there: bool) -> Result<()> {
        let mut tables = Vec::new();
        let waited = wait_until(what, SOON, || {
            tables = self.tables().unwrap_or_default();
            let has = |address: &str| {
                tables.iter().all(|(_, table)| has_route(table, address) == are_there)
            };
            !tables.is_empty() && addresses.iter().all(|address| has(address))
        });
        waited.with_context(|| format!("{tables:#?}"))
    }
}

/// Whether a table names this address, and not only a longer one.
fn has_route(table: &str, address: &str) -> bool {
    table.match_indices(address).any(|(at, _)| {
        let next = table[at + address.len()..].chars().next();
        !next.is_some_and(|next| next.is_ascii_hexdigit())
    })
}

#[test]
fn peers_of_all_kinds_get_the_routes() -> Result<()> {
    let mut world = World::start()?;
    // The paths first: until the kernel answers on them, a busy machine can break them, and the sessions with them.
    world.wait_for_paths()?;
    world.wait_for_sessions()?;
    check_what_peers_got(&world)?;
    check_a_pause(&world)?;
    check_a_stranger(&world)?;
    check_a_restart(&mut world)
}

fn check_what_peers_got(world: &World) -> Result<()> {
    let far = world.speaker.show(&["bfd", "metallb-system/far", "-o", "wide"])?;
    ensure!(far.contains("(multihop)") && far.contains("1000ms"), "{far}");
    let bird = &world.bird;
    for (name, command) in [
        ("internal", "show route protocol inside all"),
        ("passive", "show route protocol dials all"),
    ] {
        let mut shown = String::new();
        wait_until(name, SOON, || {
            shown = bird.show(command).unwrap_or_default();
            ADDRESSES.iter().all(|address| shown.contains(address)) && shown.contains("(64512,77)")
        })
        .with_context(|| shown.clone())?;
        // LOCAL_PREF is for the same AS only.
        ensure!(shown.contains("local_pref: 150") == (name == "internal"), "{shown}");
    }
    for family in ["ipv4", "ipv6"] {
        let mut shown = String::new();
        wait_until(family, SOON, || {
            let command = format!("show bgp {family} unicast");
            shown = world.frr.show("bgpd", &command).unwrap_or_default();
            // Two routes from both sessions.
            shown.matches("64512 i").count() == 4
        })
        .with_context(|| shown.clone())?;
    }
    for daemon in &world.others {
        let mut shown = String::new();
        wait_until(&format!("{:?} has the routes", daemon.daemon), SOON, || {
            shown = daemon.routes().unwrap_or_default();
            ADDRESSES.iter().all(|address| shown.contains(address))
        })
        .with_context(|| format!("{shown}{}", daemon.log()))?;
    }
    let peers = world.speaker.peers()?;
    let authenticated = peers.iter().filter(|peer| peer["authenticated"] == true);
    for peer in authenticated.clone() {
        ensure!(peer["families"] == json!(["IPv4", "IPv6"]), "{peer}");
        ensure!(peer["gracefulRestart"] == true, "{peer}");
    }
    // Also two of BIRD.
    ensure!(authenticated.count() == 2 * world.others.len() + 2, "{peers:?}");
    Ok(())
}

/// An agent that stands still, for less than the hold time: no router takes a path for broken, also not that between
/// link-local addresses.
fn check_a_pause(world: &World) -> Result<()> {
    let faults = world.faults()?;
    ensure!(faults.0.iter().any(|it| it.contains("fe80:")), "{faults:?}");
    let agent = world.agent.as_ref().context("it runs")?;
    let pid = Pid::from_raw(agent.pid().try_into()?);
    kill(pid, Signal::SIGSTOP)?;
    // Three times the longest time without packets that breaks a path. With the 3 s between two KEEPALIVEs it leaves as much
    // of the hold time to a busy machine.
    sleep(Duration::from_secs(3));
    kill(pid, Signal::SIGCONT)?;
    let after = world.faults()?;
    ensure!(after == faults, "before: {faults:?}, afterwards: {after:?}\n{}", agent.log());
    world.wait_for_paths()
}

/// Another machine on another link sends exactly what the unnumbered router sends, with its addresses, to the same
/// address of the node.
fn check_a_stranger(world: &World) -> Result<()> {
    let shown = world.speaker.show(&["bfd", "-o", "json"])?;
    let paths: Vec<Value> = serde_json::from_str(&shown)?;
    let path = paths.iter().find(|path| path["name"] == "unnumbered").context(shown)?;
    let discriminator = path["localDiscriminator"].as_u64().context("a number")?;
    let session = View::open(&world.pins)?.bfd_session(discriminator.try_into()?);
    let session = session.context("it is in the kernel")?;
    let (peer, local) = (link_local(session.peer.ip())?, link_local(session.local.ip())?);
    let refused = || -> Result<u64> {
        let text = world.node.curl("http://127.0.0.1:10249/metrics")?;
        let count =
            text.lines().find_map(|line| line.strip_prefix("millrace_bfd_packets_refused_total "));
        count.and_then(|count| count.parse().ok()).with_context(|| text.clone())
    };
    let before = refused()?;
    let answer = world.stranger.enter(|| {
        let device = nix::net::if_::if_nametoindex("eth0")?;
        let bind = |port| UdpSocket::bind(SocketAddrV6::new(peer, port, 0, device));
        // Answers go to this port.
        let (sender, receiver) = (bind(49_152)?, bind(session.destination_port)?);
        setsockopt(&sender, sockopt::Ipv6Ttl, &255)?;
        receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
        let to = SocketAddrV6::new(local, session.destination_port, 0, device);
        for _ in 0..10 {
            sender.send_to(&session.expected.words().concat(), to)?;
            sleep(Duration::from_millis(20));
        }
        let mut octets = [0; 64];
        Ok(receiver.recv_from(&mut octets).ok())
    })?;
    // They have arrived at the node.
    wait_until("they are refused", SOON, || refused().is_ok_and(|count| count >= before + 10))?;
    ensure!(answer.is_none(), "the stranger got an answer: {answer:?}");
    world.wait_for_paths()
}

fn link_local(address: std::net::IpAddr) -> Result<Ipv6Addr> {
    match address {
        std::net::IpAddr::V6(address) => Ok(address),
        other => anyhow::bail!("{other} is not link-local"),
    }
}

/// An agent that is killed, and another one a few seconds later: the peers keep the routes (RFC 4724), and afterwards
/// have those that there are now.
fn check_a_restart(world: &mut World) -> Result<()> {
    world.wait_for_routes("routes", DELETED, true)?;
    let faults = world.faults()?;
    world.agent.take().context("it runs")?.kill();
    world.write(&[ADDRESSES, CREATED])?;
    let is_lost = |world: &World| -> Result<Option<String>> {
        let tables = world.tables()?;
        let lost =
            tables.iter().find(|(_, table)| !ADDRESSES.iter().all(|it| has_route(table, it)));
        Ok(lost.map(|(name, table)| format!("{name} has lost a route: {table}")))
    };
    let down = Instant::now();
    while down.elapsed() < Duration::from_secs(3) {
        let lost = is_lost(world)?;
        ensure!(lost.is_none(), "without an agent, {}", lost.unwrap_or_default());
    }
    world.launch()?;
    wait_until("the new routes", SOON, || {
        let lost = is_lost(world);
        assert!(matches!(lost, Ok(None)), "after the restart, {lost:?}");
        let tables = world.tables().unwrap_or_default();
        tables.iter().all(|(_, table)| CREATED.iter().all(|it| has_route(table, it)))
    })?;
    world.wait_for_sessions()?;
    world.wait_for_routes("stale routes are removed", DELETED, false)?;
    world.wait_for_routes("routes after the restart", ADDRESSES, true)?;
    world.wait_for_paths()?;
    let after = world.faults()?;
    ensure!(after == faults, "before: {faults:?}, afterwards: {after:?}");
    Ok(())
}

/// Both sessions with each of the other daemons, and the password.
fn others_as_peers() -> String {
    let peer = |daemon: Daemon, is_near: bool| {
        let (name, place) = (daemon.name(), if is_near { "near" } else { "far" });
        let mut spec = json!({
            "address": if is_near { daemon.near() } else { daemon.far() },
            "localASN": 64_512, "peerASN": daemon.autonomous_system(), "passwordKey": "all",
        });
        if is_near {
            spec["ttlSecurityHops"] = json!(1);
        } else {
            spec["ebgpMultiHop"] = json!(true);
        }
        if !is_near && daemon == Daemon::Openbgpd {
            // The others have either this or several hops.
            spec["ttlSecurityHops"] = json!(2);
        }
        json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer",
            "metadata": {"name": format!("{name}-{place}")}, "spec": spec,
        })
    };
    let password = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "millrace-bgp", "namespace": "kube-system"},
        "stringData": {"all": PASSWORD},
    });
    let peers = Daemon::ALL.map(|daemon| [peer(daemon, true), peer(daemon, false)]);
    let objects: Vec<Value> = peers.into_iter().flatten().chain([password]).collect();
    objects.iter().map(|object| format!("{object}\n---\n")).collect()
}
