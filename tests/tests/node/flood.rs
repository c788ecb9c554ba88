//! A flood from addresses that never reply, through a flow table that is far too small for it:
//! established connections continue, and new connections still succeed. The flood consists of SYNs,
//! each followed by a segment without flags, and of datagrams, two from each client.
//!
//! `fuzz/tests/flood` simulates all kinds of floods, with ten million packets each.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::manifests::{here, manifests, there};
use tests::packets::{tcp, udp};
use tests::programs::agent::Agent;
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{Echo, RawSocket};

/// Entries of the flow table, for each address family.
const FLOWS: usize = 256;
/// Established connections to each frontend.
const CONNECTIONS: usize = 12;
/// At least, for each address family.
const SYNS: u64 = 20 * FLOWS as u64;

/// How long to wait for a reply: long enough for several retransmissions.
const PATIENCE: Duration = Duration::from_secs(20);

/// For each address family, one with a backend on this node and one with a backend on another.
const FRONTENDS: [&str; 4] =
    ["203.0.113.10:80", "203.0.113.11:80", "[2001:db8:113::10]:80", "[2001:db8:113::11]:80"];

/// UDP frontends with backends on this node.
const DATAGRAMS: [&str; 2] = ["203.0.113.10:53", "[2001:db8:113::10]:53"];

struct Case {
    network: OneNode,
    agent: Agent,
    _servers: Vec<Echo>,
}

impl Case {
    fn new() -> Result<Self> {
        let network = OneNode::with_pods(1)?;
        let other = network.other_node()?;
        // Replies to the spoofed addresses leave through the same interface.
        for via in ["192.0.2.2", "2001:db8::2"] {
            network.node.default_route(via)?;
        }
        let pod = &network.pods[0].host;
        let servers = [
            pod.tcp_echo("10.244.1.10:9000", "here"),
            pod.tcp_echo("[fd00:10:244:1::10]:9000", "here"),
            pod.udp_echo("10.244.1.10:9000", "here"),
            pod.udp_echo("[fd00:10:244:1::10]:9000", "here"),
            other.tcp_echo("10.0.0.2:9000", "there"),
            other.tcp_echo("[fd00:a::2]:9000", "there"),
        ];
        let servers = servers.into_iter().collect::<Result<_>>()?;
        let services = [here().tcp(80, 9000).udp(53, 9000), there().tcp(80, 9000)];
        let flows = FLOWS.to_string();
        let more = ["--device", "in0", "--max-flows", &flows];
        let agent = network.agent_with(&manifests(&services), &more)?;
        Ok(Self { network, agent, _servers: servers })
    }

    fn connect(&self, frontend: &str) -> Result<EchoConnection> {
        Ok(EchoConnection { stream: BufReader::new(self.network.client.tcp_connect(frontend)?) })
    }

    /// Opens a connection and uses it once.
    fn dial(&self, frontend: &str, question: u64) -> Result<()> {
        let mut connection = self.connect(frontend)?;
        connection.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        connection.ask(question)
    }

    /// Does something `rounds` times during a flood, and once more after it.
    fn in_a_flood(&self, rounds: u64, mut something: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let socket = self.network.client.raw_socket()?;
        let (sent, enough) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut do_it = |round: u64| {
            something(round).with_context(|| {
                format!("round {round} of {rounds}, after {} SYNs", sent.load(Relaxed))
            })
        };
        thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(&socket, &sent, &enough));
            let done = (1..=rounds).try_for_each(&mut do_it);
            enough.store(true, Relaxed);
            flooding.join().expect("the flood panicked")?;
            done
        })?;
        println!("{rounds} rounds in a flood of {} SYNs", sent.load(Relaxed));
        do_it(rounds + 1)
    }

    /// The established flows, without the field that changes with every packet.
    fn established(&self) -> Result<Vec<Value>> {
        let mut flows = self.get("flows")?;
        flows.retain(|flow| flow["state"] == "established");
        flows.iter_mut().for_each(|flow| flow["idleSeconds"] = Value::Null);
        Ok(flows)
    }

    fn get(&self, what: &str) -> Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.agent.get(&[what, "-o", "json"])?)?)
    }

    /// New flows through the load balancer addresses.
    fn new_flows(&self) -> Result<u64> {
        let frontends = self.get("frontends")?;
        let opened = frontends.iter().filter(|row| row["kind"] == "LoadBalancer");
        let flows = opened.map(|row| row["traffic"]["newFlows"].as_u64());
        flows.sum::<Option<u64>>().with_context(|| format!("{frontends:?}"))
    }
}

/// A connection to an echo server.
struct EchoConnection {
    stream: BufReader<TcpStream>,
}

impl EchoConnection {
    fn ask(&mut self, question: u64) -> Result<()> {
        self.stream.get_ref().write_all(format!("{question}\n").as_bytes())?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        ensure!(answer.ends_with(&format!(" {question}\n")), "reply to {question}: {answer:?}");
        Ok(())
    }
}

/// Sends SYNs to all frontends: at least `SYNS`, and until `enough` is set. All have different
/// sources. A SYN to a backend on this node is followed by a segment without flags, which Linux
/// ignores, and by two datagrams, which the backend echoes.
fn flood(socket: &RawSocket, sent: &AtomicU64, enough: &AtomicBool) -> Result<()> {
    for number in (0..).take_while(|number| *number < SYNS || !enough.load(Relaxed)) {
        let port = 1024 + number % 50_000;
        let from = [
            format!("198.18.{}.{}:{port}", number >> 8 & 0xff, number & 0xff),
            format!("[2001:db8:bad::{:x}]:{port}", number & 0xffff),
        ];
        for frontend in FRONTENDS.iter().skip(number as usize % 2).step_by(2) {
            let from = from[usize::from(frontend.starts_with('['))].as_str();
            socket.send(&tcp(from, *frontend).syn())?;
            if let Some(datagrams) = DATAGRAMS.iter().find(|to| same_address(to, frontend)) {
                socket.send(&tcp(from, *frontend).flags(""))?;
                socket.send(&udp(from, *datagrams))?;
                socket.send(&udp(from, *datagrams))?;
            }
        }
        sent.fetch_add(2, Relaxed);
    }
    Ok(())
}

fn same_address(one: &str, other: &str) -> bool {
    let address = |end: &str| end.rsplit_once(':').map(|(address, _)| address.to_owned());
    address(one) == address(other)
}

#[test]
fn established_connections_survive_a_flood_and_new_ones_succeed() -> Result<()> {
    let case = Case::new()?;
    let mut connections = Vec::new();
    for frontend in FRONTENDS {
        for _ in 0..CONNECTIONS {
            let mut connection = case.connect(frontend)?;
            connection.ask(0)?;
            connections.push(connection);
        }
    }
    let before = case.established()?;
    assert_eq!(before.len(), connections.len());

    case.in_a_flood(20, |round| {
        let mut connections = connections.iter_mut().enumerate();
        connections.try_for_each(|(number, connection)| {
            connection.ask(round).with_context(|| format!("connection {number}"))
        })
    })?;
    assert_eq!(case.established()?, before, "flows changed");
    assert!(case.get("flows")?.len() <= 2 * FLOWS);
    let (new, refused) = (case.new_flows()?, case.agent.counted("flow_table_full")?);
    // A SYN that XDP left to tc may have lost its flow in between, and has then got another one.
    let met = new + refused + case.network.client.count_lost_packets("eth0")?;
    assert!(met >= 2 * SYNS + before.len() as u64, "{met}: not every SYN was counted");
    assert!(new > 20 * FLOWS as u64, "{new} flows, {refused} refused: too few were evicted");

    // New connections to backends on this node. Until the handshake completes, their flows look
    // like those of the flood, and may be evicted. The next packet then gets a new flow. Only an
    // eviction while the backend's reply is under way can break the connection.
    let (mut opened, mut lost) = (0, 0);
    case.in_a_flood(50, |round| {
        for frontend in FRONTENDS.iter().step_by(2) {
            opened += 1;
            if case.dial(frontend, round).is_err() {
                lost += 1;
                case.dial(frontend, round).context("second attempt")?;
            }
        }
        Ok(())
    })?;
    println!("{lost} of {opened} were lost");
    assert!(lost <= 1, "{lost} of {opened} connections were lost");
    Ok(())
}
