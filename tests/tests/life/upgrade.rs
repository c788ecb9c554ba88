//! Agents that take over from one another under load: how clients are affected, and which maps are
//! kept.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::layout::{Identity, SCHEMA, map};
use lb_kernel::Plain;
use tests::load::watcher::{RequestResult, Watcher};
use tests::manifests::{here, manifests};
use tests::maps::contents::Contents;
use tests::programs::agent::{Agent, AgentSource};
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{Echo, name_of_server};

const FRONTEND: &str = "203.0.113.10:90";

/// A node with an agent, connections that stay open, and a client that keeps opening new ones.
struct Case {
    network: OneNode,
    file: PathBuf,
    connections: Vec<(TcpStream, String)>,
    watcher: Watcher,
    _echoes: Vec<Echo>,
}

impl Case {
    fn new() -> Result<(Self, Agent)> {
        let network = OneNode::with_pods(2)?;
        let echo = |number: usize| {
            let listen = format!("10.244.1.{}:9000", 10 + number);
            network.pods[number].host.tcp_echo(&listen, &format!("pod-{number}"))
        };
        let echoes = (0..2).map(echo).collect::<Result<_>>()?;
        let web = here().tcp(90, 9000).here(&["10.244.1.11"]);
        let (agent, file) = network.agent_on(&manifests(&[web]))?;
        let connect = |_| {
            let connection = network.client.tcp_connect(FRONTEND)?;
            let server = name_of_server(&connection)?;
            Ok((connection, server))
        };
        let connections = (0..8).map(connect).collect::<Result<_>>()?;
        let watcher = Watcher::start(&network.client, FRONTEND)?;
        watcher.wait_for_more(5)?;
        Ok((Self { network, file, connections, watcher, _echoes: echoes }, agent))
    }

    fn start(&self, more: &[&str]) -> Result<Agent> {
        Agent::start(&self.network.node, &self.network.pin_path(), &self.file, DEVICE, more)
    }

    fn launch(&self) -> Result<Agent> {
        let source = AgentSource::Manifests(&self.file);
        Agent::launch(&self.network.node, &self.network.pin_path(), source, DEVICE, &[])
    }

    fn kept_connections_go_on(&self) -> Result<()> {
        for (connection, server) in &self.connections {
            assert_eq!(&name_of_server(connection)?, server);
        }
        Ok(())
    }

    /// Ends the clients. Every request on a new connection must have succeeded.
    fn without_interruption(self) -> Result<()> {
        self.watcher.wait_for_more(5)?;
        self.kept_connections_go_on()?;
        let seen = self.watcher.stop();
        assert_eq!(seen.others(&["pod-0", "pod-1"]), Vec::<&(RequestResult, usize)>::new());
        eprintln!("{} requests by new connections, none failed", seen.count());
        Ok(())
    }

    /// Ends the clients. A connection breaks if programs with new maps are attached during it, once
    /// for each direction. The client has one connection at a time, and later ones must not fail.
    fn only_connections_in_between_broke(self) -> Result<()> {
        self.watcher.wait_for_more(20)?;
        let seen = self.watcher.stop();
        let others = seen.others(&["pod-0", "pod-1"]);
        assert!(others.iter().all(|(outcome, _)| *outcome == RequestResult::Broken), "{seen}");
        assert!(others.iter().map(|(_, times)| times).sum::<usize>() <= 2, "{seen}");
        Ok(())
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.network.pin_path().join(name)
    }

    fn identity(&self) -> Result<Array<MapData, Plain<Identity>>> {
        let data = MapData::from_pin(self.pin(map::IDENTITY))?;
        Ok(Array::try_from(Map::Array(data))?)
    }
}

#[test]
fn successive_agents_lose_no_request() -> Result<()> {
    let (case, mut agent) = Case::new()?;
    for round in 0..4 {
        assert!(agent.terminate()?.success());
        if round % 2 == 1 {
            case.network.forget_programs()?;
        }
        case.watcher.wait_for_more(5)?;
        agent = case.start(&[])?;
        case.watcher.wait_for_more(5)?;
        case.kept_connections_go_on()?;
    }
    case.without_interruption()
}

/// Like an update of a DaemonSet with `maxSurge`.
#[test]
fn a_new_agent_waits_for_the_old_one_and_then_takes_over() -> Result<()> {
    let (case, mut agent) = Case::new()?;
    for _ in 0..3 {
        let mut successor = case.launch()?;
        successor.wait_for_output("waiting for it to exit")?;
        let log = successor.log();
        assert!(log.contains("another agent is running") && log.contains("pid="), "{log}");
        case.watcher.wait_for_more(20)?;
        assert!(
            !successor.log().contains("ready service_ports="),
            "ready, but it has not taken over"
        );
        assert!(agent.terminate()?.success());
        successor.wait_for_output("ready service_ports=")?;
        case.kept_connections_go_on()?;
        agent = successor;
    }
    case.without_interruption()
}

#[test]
fn a_waiting_agent_can_be_stopped_without_affecting_the_first() -> Result<()> {
    let (case, _agent) = Case::new()?;
    let mut successor = case.launch()?;
    successor.wait_for_output("waiting for it to exit")?;
    assert!(successor.terminate()?.success());
    case.without_interruption()
}

/// As after an upgrade to a version with additional maps, or a downgrade from one.
#[test]
fn missing_maps_are_created_and_others_are_kept() -> Result<()> {
    let (case, agent) = Case::new()?;
    let before = Contents::of(&case.network.pin_path())?;
    agent.terminate()?;
    let names = [map::FRAGMENTS4, map::DEVICES, map::MEMBERS, map::AFFINITIES6, map::SERVICE_NAMES];
    for name in names {
        fs::remove_file(case.pin(name))?;
    }
    MapData::from_pin(case.pin(map::REASONS))?.pin(case.pin("FUTURE"))?;

    let agent = case.start(&[])?;
    let log = agent.log();
    assert!(log.contains("AFFINITIES6, DEVICES, FRAGMENTS4, MEMBERS, SERVICE_NAMES"), "{log}");
    assert!(
        log.contains("removed unknown map map=FUTURE") && !case.pin("FUTURE").exists(),
        "{log}"
    );
    assert!(case.pin(map::DEVICES).exists());
    assert!(!case.pin("set-aside").exists(), "maps that were set aside are not removed");
    assert_eq!(Contents::of(&case.network.pin_path())?, before);
    case.without_interruption()
}

#[test]
fn maps_of_another_size_are_recreated_and_others_are_kept() -> Result<()> {
    let (case, agent) = Case::new()?;
    agent.terminate()?;
    let agent = case.start(&["--max-flows", "8192"])?;
    let log = agent.log();
    let recreated = "CROWDED4, CROWDED6, CROWDED_LATELY4, CROWDED_LATELY6, FLOWS4, FLOWS6, \
                     REPLIES4, REPLIES6";
    assert!(log.contains(recreated), "{log}");
    assert!(log.contains("lost=\"connections through Services\""), "{log}");
    assert!(log.contains("adopting"), "{log}");
    case.only_connections_in_between_broke()
}

#[test]
fn maps_of_a_newer_version_are_replaced_while_services_are_served() -> Result<()> {
    let (case, agent) = Case::new()?;
    agent.terminate()?;
    let mut pinned = case.identity()?;
    let Plain(identity) = pinned.get(&0, 0)?;
    pinned.set(0, Plain(Identity { schema: SCHEMA + 1, ..identity }), 0)?;

    // An agent of the older version that crashes before it attaches does not interrupt forwarding.
    let dying = case.network.agent_that_waits()?;
    let log = dying.log();
    assert!(log.contains("maps of a newer version") && log.contains("connections"), "{log}");
    dying.kill();
    case.watcher.wait_for_more(20)?;
    case.kept_connections_go_on()?;

    let _agent = case.start(&[])?;
    assert_eq!(case.identity()?.get(&0, 0).context("no identity")?.0.schema, SCHEMA);
    assert!(!case.pin("set-aside").exists());
    case.only_connections_in_between_broke()
}
