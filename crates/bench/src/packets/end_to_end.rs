//! From a real client to real servers: through a NodePort, past all Services, and without a load
//! balancer.

use std::env;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::figures::Sample;
use crate::load::{ClosingSide, is_ok, load_connections};
use ::tests::programs::agent::Agent;
use ::tests::worlds::one_node::OneNode;
use ::tests::worlds::topology::Process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::progress::Progress;

use super::interrupt::check_interrupted;
use super::pattern::Pattern;
use super::record::CaseRecord;

/// Number of concurrent connections.
const CLIENTS: usize = 4;

/// Web servers on both pods, and iperf3 on one: its client opens two related connections.
const MANIFESTS: &str = "\
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort,
  clusterIP: 10.96.0.10, ports: [{name: http, port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {name: web-1, labels: {kubernetes.io/service-name: web}},
  ports: [{name: http, port: 8080}], endpoints: [
    {addresses: [10.244.1.10], nodeName: node}, {addresses: [10.244.1.11], nodeName: node}]}
---
{apiVersion: v1, kind: Service, metadata: {name: stream}, spec: {type: NodePort,
  clusterIP: 10.96.0.11, ports: [{name: iperf, port: 5201, nodePort: 30521}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {name: stream-1, labels: {kubernetes.io/service-name: stream}},
  ports: [{name: iperf, port: 5201}], endpoints: [{addresses: [10.244.1.10], nodeName: node}]}
";

/// No Services: programs are attached, and all packets pass them.
const NO_SERVICES: &str = "---\n";

/// `passing`: to the pods, past all programs. `direct`: without a load balancer.
const PATHS: [&str; 3] = ["nodeport", "passing", "direct"];

const NODE_PORTS: TargetAddresses =
    TargetAddresses { web: &["192.0.2.1:30080"], stream: "192.0.2.1:30521" };
const PODS: TargetAddresses =
    TargetAddresses { web: &["10.244.1.10:8080", "10.244.1.11:8080"], stream: "10.244.1.10:5201" };

/// The addresses to which the client connects; those of web servers are used in turn.
struct TargetAddresses {
    web: &'static [&'static str],
    stream: &'static str,
}

/// A topology for one kind of access.
struct MeasuredPath {
    name: &'static str,
    addresses: TargetAddresses,
    /// Whether the connections are load-balanced.
    balanced: bool,
    requests: Sample,
    gigabits: Sample,
    /// `None`: there is no program on the node's interface.
    agent: Option<Agent>,
    network: OneNode,
    _stream_server: Option<Process>,
}

/// Measures each kind of access in its own network, in turn.
pub fn measure_end_to_end(
    quick: bool,
    only: &Pattern,
    progress: &Progress,
) -> Result<Vec<CaseRecord>> {
    let wants = |what: &str| {
        let wanted = PATHS.iter().any(|path| only.fits(&format!("e2e.{path}.{what}")));
        wanted && can_run(what)
    };
    let (crr, stream) = (wants("crr"), wants("stream"));
    if !crr && !stream {
        return Ok(Vec::new());
    }
    let [nodeport, passing, direct] = PATHS;
    let mut paths = [
        MeasuredPath::new(nodeport, NODE_PORTS, Some(MANIFESTS), stream)?,
        MeasuredPath::new(passing, PODS, Some(NO_SERVICES), stream)?,
        MeasuredPath::new(direct, PODS, None, stream)?,
    ];
    let (rounds, seconds) = if quick { (1, 1) } else { (5, 2) };
    for _ in 0..rounds {
        for path in &mut paths {
            progress.step(&format!("e2e.{}", path.name));
            if crr {
                check_interrupted()?;
                path.crr(Duration::from_secs(seconds))?;
            }
            if stream {
                check_interrupted()?;
                path.stream(seconds)?;
            }
        }
    }
    let records = paths.iter().flat_map(|path| {
        let of = |what, sample: &Sample, unit| {
            let case = format!("e2e.{}.{what}", path.name);
            CaseRecord::end_to_end(sample, &case, unit)
        };
        let crr = crr.then(|| of("crr", &path.requests, "requests/s"));
        crr.into_iter().chain(stream.then(|| of("stream", &path.gigabits, "Gbit/s")))
    });
    Ok(records.filter(|record| only.fits(&record.case)).collect())
}

/// Whether the required programs are installed. Prints a message if not.
fn can_run(what: &str) -> bool {
    let programs: &[&str] = if what == "stream" { &["nginx", "iperf3"] } else { &["nginx"] };
    let path = env::var_os("PATH").unwrap_or_default();
    let missing = programs.iter().find(|program| {
        let mut directories = env::split_paths(&path);
        !directories.any(|directory| directory.join(program).exists())
    });
    if let Some(program) = missing {
        eprintln!("skipped: e2e.*.{what}: {program} is not installed");
    }
    missing.is_none()
}

impl MeasuredPath {
    /// `manifests`: those of the agent, if there is one.
    fn new(
        name: &'static str,
        addresses: TargetAddresses,
        manifests: Option<&str>,
        stream: bool,
    ) -> Result<Self> {
        let network = OneNode::with_pods(2)?;
        // More ports than connections are opened during TIME_WAIT.
        network.client.sysctl(&["net.ipv4.ip_local_port_range=1025 65535"])?;
        let server = || network.pods[0].host.iperf3_server(PODS.stream);
        let _stream_server = stream.then(server).transpose()?;
        let agent = manifests.map(|text| network.agent_with(text, &[])).transpose()?;
        let balanced = addresses.web == NODE_PORTS.web;
        let (requests, gigabits) = Default::default();
        Ok(Self { name, addresses, balanced, requests, gigabits, agent, network, _stream_server })
    }

    /// Requests per second, each over its own connection.
    fn crr(&mut self, time: Duration) -> Result<()> {
        let servers: Vec<SocketAddr> =
            self.addresses.web.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        let before = self.new_flows(":30080")?;
        let done = load_connections(
            &self.network.client,
            &servers,
            CLIENTS,
            time,
            ClosingSide::Server,
            is_ok,
        )?;
        let (answered, failed) = (done.answered(), done.failed);
        if let Some(failure) = &done.failure {
            eprintln!("e2e.{}: {failed} requests failed, the first one: {failure}", self.name);
        }
        ensure!(
            failed * 1000 <= answered,
            "e2e.{}: {failed} requests failed beside {answered} answered",
            self.name
        );
        self.requests.push(done.a_second());
        // A client that is reset may connect twice: again from the refused port.
        self.prove(before, self.new_flows(":30080")?, answered..=answered + 2 * failed)
    }

    /// Throughput of one connection in Gbit/s.
    fn stream(&mut self, seconds: u64) -> Result<()> {
        let (address, port) =
            self.addresses.stream.split_once(':').context("an address has a port")?;
        let before = self.new_flows(":30521")?;
        let seconds = seconds.to_string();
        let words = ["iperf3", "--client", address, "--port", port, "--time", &seconds, "--json"];
        let report: Value = serde_json::from_str(&self.network.client.run(words)?)?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        self.gigabits.push(bits.context("iperf3 reported no throughput")? / 1e9);
        // The other one is the control connection.
        self.prove(before, self.new_flows(":30521")?, 2..=2)
    }

    /// The number of flows that were opened to a NodePort.
    fn new_flows(&self, node_port: &str) -> Result<u64> {
        self.agent.as_ref().map_or(Ok(0), |agent| agent.new_flows(node_port))
    }

    /// Fails unless the load balancer has counted every connection, or none without it: otherwise
    /// something else was measured.
    fn prove(&self, before: u64, after: u64, connections: RangeInclusive<u64>) -> Result<()> {
        let seen = after - before;
        let expected = if self.balanced { connections } else { 0..=0 };
        ensure!(
            expected.contains(&seen),
            "e2e.{}: the balancer saw {seen} connections instead of {expected:?}",
            self.name
        );
        Ok(())
    }
}
