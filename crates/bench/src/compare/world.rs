//! The network of one contender, and the measurements in it.
//!
//! ```text
//! client 192.0.2.2 ── ext0 node in0 ── other node 10.0.0.2, 10.0.0.3: backends
//! ```
//!
//! The client connects to 203.0.113.10, a load balancer address. The backends are on another node,
//! so the measured node only forwards. Client and backends send frames as on a wire: segmented, with
//! complete checksums. All ends merge received segments (GRO), as network cards do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use crate::figures::Sample;
use crate::load::{self, ClosingSide, Done};
use ::tests::worlds::one_node::OneNode;
use ::tests::worlds::topology::{Echo, Host, Process};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::balancer::{Balancer, BalancerKind, check_translation};
use super::figure::ComparisonFigure;
use super::frames::{self, Frames};
use super::pinned::Pinned;
use super::processor::{Meter, Used};
use super::services::{BACKENDS, MeasuredPort, compared_services};

/// Number of concurrent connections in the phase that opens as many as possible.
const THREADS: usize = 4;
/// Source ports of UDP clients: below those of generated frames.
const DATAGRAM_PORTS: Range<u16> = 2_000..36_000;
/// The name of the echo server.
const ECHO: &str = "echo";

/// The amount of work in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComparisonEffort {
    pub connections: Duration,
    pub one_at_a_time: Duration,
    pub stream_seconds: u32,
    pub datagrams: u16,
    pub frames: u32,
}

pub struct World {
    pub kind: BalancerKind,
    /// The number of Services; `None`: the contender has none.
    pub services: Option<u32>,
    pub samples: BTreeMap<ComparisonFigure, Sample>,
    pub answered: u64,
    pub failed: u64,
    /// The phases that failed, and why.
    pub problems: BTreeMap<Phase, String>,
    balancer: Balancer,
    meter: Meter,
    /// Created when it is first needed.
    frames: Option<Frames>,
    other: Host,
    network: OneNode,
    datagrams_sent: u16,
    _servers: Vec<Process>,
    _echo: Echo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Connections,
    OneAtATime,
    Kept,
    Stream,
    Datagrams,
    Frames,
}

impl Phase {
    pub const ALL: [Self; 6] = [
        Self::Connections,
        Self::OneAtATime,
        Self::Kept,
        Self::Stream,
        Self::Datagrams,
        Self::Frames,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "new connections",
            Self::OneAtATime => "connecting and asking",
            Self::Kept => "asking on a kept connection",
            Self::Stream => "bulk throughput",
            Self::Datagrams => "the first datagram",
            Self::Frames => "packets a second",
        }
    }
}

impl World {
    pub fn new(kind: BalancerKind, number: Option<u32>) -> Result<Self> {
        let network = OneNode::with_pods(0)?;
        let other = network.other_node()?;
        other.address("eth0", &format!("{}/24", BACKENDS[1].0))?;
        for (host, device) in [
            (&network.client, "eth0"),
            (&network.node, "ext0"),
            (&network.node, "in0"),
            (&other, "eth0"),
        ] {
            host.run(["ethtool", "-K", device, "gro", "on"])?;
        }
        // The client closes connections, so TIME_WAIT is on its side and it may reuse their ports.
        network
            .client
            .sysctl(&["net.ipv4.ip_local_port_range=1025 65535", "net.ipv4.tcp_tw_reuse=1"])?;
        let mut servers = Vec::new();
        for ((_, name), backend) in BACKENDS.into_iter().zip(MeasuredPort::Web.backends()) {
            servers.push(other.http_server(&[&backend.to_string()], name)?);
        }
        servers.push(other.iperf3_server(&MeasuredPort::Stream.backends()[0].to_string())?);
        let echo = other.udp_echo(&MeasuredPort::Datagram.backends()[0].to_string(), ECHO)?;

        let balancer = Balancer::start(kind, &network, &compared_services(number.unwrap_or(1)))?;
        check_translation(kind, &balancer, &network)?;
        let meter = Meter::of(network.topology.cgroup())?;
        Ok(Self {
            kind,
            services: number,
            samples: BTreeMap::new(),
            answered: 0,
            failed: 0,
            problems: BTreeMap::new(),
            balancer,
            meter,
            frames: None,
            datagrams_sent: 0,
            other,
            network,
            _servers: servers,
            _echo: echo,
        })
    }

    pub fn applies(&self, phase: Phase) -> bool {
        match phase {
            Phase::Datagrams | Phase::Frames => self.kind.carries_datagrams(),
            _ => true,
        }
    }

    pub fn measure(&mut self, phase: Phase, effort: ComparisonEffort) -> Result<()> {
        match phase {
            Phase::Connections => self.connections(effort.connections),
            Phase::OneAtATime => self.one_at_a_time(effort.one_at_a_time),
            Phase::Kept => self.kept(effort.one_at_a_time),
            Phase::Stream => self.stream(effort.stream_seconds),
            Phase::Datagrams => self.datagrams(effort.datagrams),
            Phase::Frames => self.frames(effort.frames),
        }
    }

    /// Opens as many connections as possible, several at once, with one request each.
    fn connections(&mut self, time: Duration) -> Result<()> {
        let servers = self.balancer.addresses(MeasuredPort::Web);
        let before = self.counts(MeasuredPort::Web)?;
        let started = self.meter.read()?;
        let done = load::load_connections(
            &self.network.client,
            &servers,
            THREADS,
            time,
            ClosingSide::Client,
            is_backends,
        )?;
        let used = self.meter.read()?.since(started);
        self.count(&done);
        self.check(MeasuredPort::Web, before, expected(&done))?;
        self.push(ComparisonFigure::Connections, done.a_second());
        self.push_used(
            ComparisonFigure::ConnectionTime,
            Some(ComparisonFigure::ConnectionSoftirq),
            used,
            &done,
        );
        Ok(())
    }

    /// Opens one connection after the other, with one request each.
    fn one_at_a_time(&mut self, time: Duration) -> Result<()> {
        let _pinned = self.pin()?;
        let servers = self.balancer.addresses(MeasuredPort::Web);
        let before = self.counts(MeasuredPort::Web)?;
        let mut done = load::load_connections(
            &self.network.client,
            &servers,
            1,
            time,
            ClosingSide::Client,
            is_backends,
        )?;
        self.count(&done);
        self.check(MeasuredPort::Web, before, expected(&done))?;
        self.push_times([ComparisonFigure::ConnectHalf, ComparisonFigure::ConnectMost], &mut done)
    }

    /// Sends one request after the other over one connection.
    fn kept(&mut self, time: Duration) -> Result<()> {
        let _pinned = self.pin()?;
        let server = self.address(MeasuredPort::Web)?;
        let before = self.counts(MeasuredPort::Web)?;
        let started = self.meter.read()?;
        let (mut done, connections) =
            load::load_kept_connection(&self.network.client, &server, time, is_backends)?;
        let used = self.meter.read()?.since(started);
        self.count(&done);
        self.check(MeasuredPort::Web, before, connections..=connections)?;
        self.push_used(ComparisonFigure::KeptTime, None, used, &done);
        self.push_times([ComparisonFigure::KeptHalf, ComparisonFigure::KeptMost], &mut done)
    }

    /// Measures the throughput of one connection.
    fn stream(&mut self, seconds: u32) -> Result<()> {
        let server = self.address(MeasuredPort::Stream)?;
        let before = self.counts(MeasuredPort::Stream)?;
        let (address, port) = (server.ip().to_string(), server.port().to_string());
        let seconds = seconds.to_string();
        let words = ["iperf3", "--client", &address, "--port", &port, "--time", &seconds, "--json"];
        let limit = Duration::from_secs(60);
        let report: Value = serde_json::from_str(&self.network.client.run_within(limit, words)?)?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        // One control connection, and one for the data.
        self.check(MeasuredPort::Stream, before, 2..=2)?;
        self.push(ComparisonFigure::Stream, bits.context("iperf3 reported no throughput")? / 1e9);
        Ok(())
    }

    /// Exchanges datagrams from many sockets in turn.
    fn datagrams(&mut self, number: u16) -> Result<()> {
        let _pinned = self.pin()?;
        // UDP flows stay in the tables for a while: each round uses other ports.
        let first = DATAGRAM_PORTS.start + self.datagrams_sent;
        let ports = first..first + number;
        self.datagrams_sent =
            (self.datagrams_sent + number) % (DATAGRAM_PORTS.len() as u16 - number);
        let server = self.address(MeasuredPort::Datagram)?;
        let before = self.counts(MeasuredPort::Datagram)?;
        let mut done = load::load_datagrams(&self.network.client, &server, ports, ECHO)?;
        self.count(&done);
        self.check(
            MeasuredPort::Datagram,
            before,
            done.answered()..=done.answered() + done.failed,
        )?;
        self.push_times([ComparisonFigure::DatagramHalf, ComparisonFigure::DatagramMost], &mut done)
    }

    fn frames(&mut self, number: u32) -> Result<()> {
        let _pinned = self.pin()?;
        let server = self.address(MeasuredPort::Datagram)?;
        Frames::open_flows(&self.network, server, ECHO)?;
        let before = self.counts(MeasuredPort::Datagram)?;
        let frames = match &mut self.frames {
            Some(frames) => frames,
            none => none.insert(Frames::new(&self.network, server)?),
        };
        let rate = frames.measure(&self.network, &self.other, number)?;
        ensure!(
            rate.arrived * 10 >= u64::from(rate.sent) * 9,
            "of {} frames sent only {} arrived",
            rate.sent,
            rate.arrived
        );
        // All flows were open.
        let after = self.counts(MeasuredPort::Datagram)?;
        ensure!(
            after.balanced - before.balanced <= u64::from(frames::FLOWS) / 100,
            "{} flows were opened again",
            after.balanced - before.balanced
        );
        if let (Some(before), Some(after)) = (before.sent_on, after.sent_on) {
            ensure!(
                after - before >= rate.arrived,
                "XDP has sent on {} of {} frames",
                after - before,
                rate.arrived
            );
        }
        self.push(ComparisonFigure::Frames, rate.arrived_a_second / 1e6);
        Ok(())
    }

    fn pin(&self) -> Result<Pinned> {
        Pinned::new(self.network.topology.cgroup())
    }

    fn address(&self, measured: MeasuredPort) -> Result<SocketAddr> {
        self.balancer.addresses(measured).first().copied().context("there is a frontend")
    }

    fn counts(&self, measured: MeasuredPort) -> Result<PacketCounts> {
        Ok(PacketCounts {
            balanced: self.balancer.balanced(&self.network, measured)?,
            sent_on: self.balancer.sent_on_by_xdp(&self.network)?,
        })
    }

    /// Fails unless the load balancer has counted every connection: otherwise something else was
    /// measured.
    fn check(
        &self,
        measured: MeasuredPort,
        before: PacketCounts,
        connections: RangeInclusive<u64>,
    ) -> Result<()> {
        let after = self.counts(measured)?;
        let seen = after.balanced - before.balanced;
        let expected = if self.kind == BalancerKind::None { 0..=0 } else { connections };
        ensure!(
            expected.contains(&seen),
            "the balancer saw {seen} connections instead of {expected:?}"
        );
        if let (Some(before), Some(after)) = (before.sent_on, after.sent_on) {
            ensure!(
                after - before >= *expected.start(),
                "XDP has sent on {} packets of {seen} connections",
                after - before
            );
        }
        Ok(())
    }

    fn count(&mut self, done: &Done) {
        self.answered += done.answered();
        self.failed += done.failed;
        if let Some(failure) = &done.failure {
            eprintln!("{}: {} failed, the first one: {failure}", self.title(), done.failed);
        }
    }

    /// The contender and its number of Services.
    pub fn title(&self) -> String {
        match self.services {
            None => self.kind.name().to_owned(),
            Some(1) => format!("{}, 1 Service", self.kind.name()),
            Some(number) => format!("{}, {number} Services", self.kind.name()),
        }
    }

    fn push(&mut self, figure: ComparisonFigure, value: f64) {
        self.samples.entry(figure).or_default().push(value);
    }

    fn push_times(&mut self, [half, most]: [ComparisonFigure; 2], done: &mut Done) -> Result<()> {
        for (figure, percent) in [(half, 50), (most, 99)] {
            let time = done.percentile(percent).context("nothing was answered")?;
            self.push(figure, time.as_secs_f64() * 1e6);
        }
        Ok(())
    }

    fn push_used(
        &mut self,
        all: ComparisonFigure,
        softirq: Option<ComparisonFigure>,
        used: Used,
        done: &Done,
    ) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / done.answered().max(1) as f64;
        self.push(all, each(used.measured));
        if let Some(softirq) = softirq {
            self.push(softirq, each(used.softirq));
        }
    }
}

#[derive(Clone, Copy)]
struct PacketCounts {
    balanced: u64,
    /// Packets redirected by XDP, if XDP should forward them.
    sent_on: Option<u64>,
}

/// The possible numbers of counted connections: a client that is reset may connect once more.
fn expected(done: &Done) -> RangeInclusive<u64> {
    done.answered()..=done.answered() + 2 * done.failed
}

/// Whether this is the response of a backend, which contains its name.
fn is_backends(answer: &[u8]) -> bool {
    load::is_ok(answer)
        && BACKENDS.iter().any(|(_, name)| {
            answer.strip_suffix(b"\n").is_some_and(|answer| answer.ends_with(name.as_bytes()))
        })
}
