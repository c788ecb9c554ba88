//! What is measured: a service proxy on a node of its own, with a client and endpoints as pods of that node.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tests::programs::agent;
use tests::programs::usage::{AnonymousPeak, peak_memory};
use tests::worlds::topology::{Echo, Host, Process, Topology, run_to_end};

use super::objects::{
    ClusterSize, ENDPOINT_PORT, SERVICE_PORT, endpoint_object, service_address, slice_name,
    slices_path,
};
use super::probe::wait_for_endpoint;
use crate::network::{NodeAddresses, POD_RANGES};

/// Time limit of each wait. With many Services, kube-proxy needs minutes.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);
/// How often it is checked whether the process still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The names of the two endpoints of which each measured Service has one.
const ENDPOINTS: [&str; 2] = ["a", "b"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ContenderKind {
    Millrace,
    KubeProxy,
}

impl ContenderKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Millrace => "Millrace",
            Self::KubeProxy => "kube-proxy, nftables",
        }
    }
}

pub struct Contender {
    pub kind: ContenderKind,
    process: Option<Process>,
    peak: Option<AnonymousPeak>,
    node: Host,
    client: Host,
    name: String,
    addresses: [String; 2],
    /// The numbers of the measured Services, in the order of lists. The second one's endpoint changes.
    pub measured: [usize; 3],
    /// Which endpoint the changing Service has.
    endpoint: usize,
    start: Command,
    pins: PathBuf,
    state: PathBuf,
    _echoes: Vec<Echo>,
}

impl Contender {
    /// Prepares a node. Of several contenders each has an index, and Services of its own.
    pub fn new(
        kind: ContenderKind,
        index: usize,
        (node, addresses): &(Host, NodeAddresses),
        topology: &Topology,
        programs: &Path,
        kubeconfig: &Path,
        size: ClusterSize,
    ) -> Result<Self> {
        let pods = addresses.pods[0].rsplit_once('.').context("an IPv4 subnet")?.0.to_owned();
        let address = |last: u8| format!("{pods}.{last}");
        let name = &addresses.name;
        let client = node.pod(&format!("{name}-client"), &[&address(20)])?;
        let endpoints = [address(10), address(11)];
        let mut echoes = Vec::new();
        for (endpoint, address) in ENDPOINTS.iter().zip(&endpoints) {
            let pod = node.pod(&format!("{name}-{endpoint}"), &[address])?;
            echoes.push(pod.udp_echo(&format!("{address}:{ENDPOINT_PORT}"), endpoint)?);
        }
        let files = topology.directory().join(format!("{name}-files"));
        fs::create_dir_all(&files)?;
        let (pins, state) = (topology.pins().join(name), files.join("state"));
        let start = match kind {
            ContenderKind::Millrace => {
                let mut command = node.command(agent::program()?);
                command.args(["agent", "--node-name", name, "--device", "eth0"]);
                command.arg("--kubeconfig").arg(kubeconfig).arg("--pin-path").arg(&pins);
                command.arg("--state-directory").arg(&state).arg("--cgroup").arg(node.cgroup());
                let [ports, backends] = [size.services * 2, size.services * size.endpoints * 2];
                command.args(["--max-service-ports", &ports.to_string()]);
                command.args(["--max-endpoints", &backends.to_string()]);
                command
            }
            ContenderKind::KubeProxy => {
                let config = files.join("config.json");
                fs::write(&config, kube_proxy_configuration(name, kubeconfig).to_string())?;
                let mut command = node.command(programs.join("kube-proxy"));
                command.arg("--config").arg(config);
                command
            }
        };
        let (middle, last) = (size.services / 2, size.services - 1);
        Ok(Self {
            kind,
            process: None,
            peak: None,
            node: node.clone(),
            client,
            name: name.clone(),
            addresses: endpoints,
            measured: [index, middle + index, last - index],
            endpoint: 0,
            start,
            pins,
            state,
            _echoes: echoes,
        })
    }

    /// The endpoint that measured Services have at first.
    pub fn first_endpoint(&self) -> Value {
        endpoint_object(&self.addresses[0], &self.name, 0)
    }

    /// Removes all that an earlier process has left.
    pub fn clean_up(&mut self) -> Result<()> {
        self.process = None;
        match self.kind {
            ContenderKind::Millrace => {
                let mut command = self.node.command(agent::program()?);
                run_to_end(command.arg("cleanup").arg("--pin-path").arg(&self.pins))?;
                if self.state.exists() {
                    fs::remove_dir_all(&self.state)?;
                }
            }
            ContenderKind::KubeProxy => {
                for family in ["ip", "ip6"] {
                    let table =
                        format!("add table {family} kube-proxy; delete table {family} kube-proxy");
                    self.node.run(["nft", &table])?;
                }
            }
        }
        Ok(())
    }

    /// Starts the process; returns when.
    pub fn start(&mut self) -> Result<Instant> {
        let began = Instant::now();
        let process = self.node.spawn(&mut self.start)?;
        self.peak = Some(AnonymousPeak::follow(process.pid()));
        self.process = Some(process);
        Ok(began)
    }

    /// Ends the process by SIGKILL. What it has written into the kernel stays. Returns the peaks of its anonymous memory
    /// and of all its memory, in MiB.
    pub fn kill(&mut self) -> Result<[f64; 2]> {
        let all = peak_memory(self.pid()?)?;
        let anonymous = self.peak.take().map(AnonymousPeak::end).unwrap_or_default();
        self.process = None;
        Ok([anonymous, all])
    }

    pub fn pid(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the process runs")?.pid())
    }

    /// Waits until all measured Services answer; returns when each did.
    pub fn wait_for_all(&mut self) -> Result<Vec<Instant>> {
        let endpoints = [0, self.endpoint, 0];
        let all: Vec<_> = self.measured.into_iter().zip(endpoints).collect();
        self.wait_for_endpoints(&all)
    }

    /// Waits until the changing Service has its endpoint; returns when.
    pub fn wait_for_change(&mut self) -> Result<Instant> {
        let changed = [(self.measured[1], self.endpoint)];
        self.wait_for_endpoints(&changed)?.pop().context("one Service is one time")
    }

    /// Decides that the changing Service gets its other endpoint; returns the EndpointSlice's path, and the patch.
    pub fn next_change(&mut self) -> (String, Value) {
        self.endpoint = 1 - self.endpoint;
        let endpoint = endpoint_object(&self.addresses[self.endpoint], &self.name, 0);
        let path = format!("{}/{}", slices_path(), slice_name(self.measured[1]));
        (path, json!({"endpoints": [endpoint]}))
    }

    /// Waits in another thread until the changing Service has its endpoint; returns when.
    pub fn watch_change(&self) -> thread::JoinHandle<Result<Instant>> {
        let (client, service, endpoint) =
            (self.client.clone(), self.measured[1], ENDPOINTS[self.endpoint]);
        thread::spawn(move || wait_within(&client, service, endpoint, &AtomicBool::new(false)))
    }

    fn wait_for_endpoints(&mut self, services: &[(usize, usize)]) -> Result<Vec<Instant>> {
        let (client, stop) = (&self.client, &AtomicBool::new(false));
        let process = self.process.as_mut().context("the process runs")?;
        let (ended, answers) = thread::scope(|scope| {
            let waits: Vec<_> = services
                .iter()
                .map(|&(service, endpoint)| {
                    scope.spawn(move || wait_within(client, service, ENDPOINTS[endpoint], stop))
                })
                .collect();
            while !waits.iter().all(thread::ScopedJoinHandle::is_finished) {
                if process.has_ended() {
                    stop.store(true, Ordering::Relaxed);
                }
                thread::sleep(CHECK_INTERVAL);
            }
            let answers = waits
                .into_iter()
                .map(|wait| wait.join().unwrap_or_else(|_| bail!("a probe panicked")));
            (process.has_ended(), answers.collect::<Result<Vec<_>>>())
        });
        answers.with_context(|| {
            let output = process.output();
            let last: Vec<_> = output.lines().rev().take(20).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            let state = if ended { "has ended" } else { "runs" };
            format!("{} {state}; it said:\n{}", self.kind.name(), last.join("\n"))
        })
    }
}

/// Waits until an endpoint has replied to a client of the Service; returns when.
fn wait_within(
    client: &Host,
    service: usize,
    endpoint: &str,
    stop: &AtomicBool,
) -> Result<Instant> {
    let address: SocketAddr = format!("{}:{SERVICE_PORT}", service_address(service)).parse()?;
    client.enter(|| wait_for_endpoint(address, endpoint, ANSWER_LIMIT, stop))
}

/// As kubeadm configures kube-proxy, in nftables mode.
fn kube_proxy_configuration(node: &str, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "clusterCIDR": POD_RANGES[0], "hostnameOverride": node,
        "clientConnection": {"kubeconfig": kubeconfig},
        // Limits of the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
    })
}
