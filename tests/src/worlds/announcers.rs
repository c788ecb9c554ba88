//! Nodes and a client on one switch: who answers for addresses of load balancers there.
//!
//! ```text
//! client ─┐
//! api ────┼─ switch (a bridge that learns where addresses are)
//! node0 ──┤
//! node1 ──┘   each node has a pod; Services have all pods as endpoints, through tunnels
//! ```

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::manifests::{self, Service};
use crate::programs::agent::{Agent, AgentSource, program};
use crate::programs::api_server::ApiServer;
use crate::worlds::topology::{Echo, Host, SOON, Topology, make_thread_urgent, wait_until};

/// The port of all Services, and of all servers.
const PORT: u16 = 7;
/// The port to which nodes send heartbeats.
const HEARTBEATS: u16 = 10_245;
const DEVICE: &str = "ext0";
const API: &str = "192.0.2.3:6443";

pub struct Announcers {
    pub client: Host,
    pub switch: Host,
    pub nodes: Vec<Host>,
    /// Where the API server is.
    api: Host,
    server: Option<ApiServer>,
    /// Of agents that are started from now on; none: they read manifests.
    kubeconfig: Option<PathBuf>,
    pub agents: Vec<Option<Agent>>,
    addresses: Vec<String>,
    cordoned: Option<usize>,
    /// Of each node.
    labels: Vec<Value>,
    /// Objects beside those of the Services.
    more: Vec<Value>,
    /// Of agents that are started from now on.
    pub arguments: Vec<String>,
    /// The first nodes whose pods are no endpoints.
    without_endpoints: usize,
    /// Whether agents need not wait for other processes of this machine.
    is_urgent: bool,
    _servers: Vec<Echo>,
    topology: Topology,
}

/// The addresses of one number, of both families.
fn of_number(number: usize) -> [String; 2] {
    [
        format!("192.0.{}.{}", 3 + number / 250, 1 + number % 250),
        format!("2001:db8:3::{:x}", number + 1),
    ]
}

impl Announcers {
    /// Starts the agents, and `count` Services of two addresses each. Pods of the first nodes are no endpoints, so that
    /// connections survive their nodes.
    pub fn start(nodes: usize, without_endpoints: usize, count: usize) -> Result<Self> {
        Self::start_with(nodes, without_endpoints, count, true)
    }

    /// Starts the agents with the priority of all processes.
    pub fn start_ordinary(nodes: usize, without_endpoints: usize, count: usize) -> Result<Self> {
        Self::start_with(nodes, without_endpoints, count, false)
    }

    fn start_with(
        nodes: usize,
        without_endpoints: usize,
        count: usize,
        is_urgent: bool,
    ) -> Result<Self> {
        let topology = Topology::new("announcers")?;
        let (client, switch) = (topology.host("client")?, topology.host("switch")?);
        switch.bridge("br0")?;
        plug(&topology, &switch, &client, "eth0", 2)?;
        let api = topology.host("api")?;
        plug(&topology, &switch, &api, "eth0", 3)?;
        let mut hosts = Vec::new();
        let mut servers = Vec::new();
        for number in 0..nodes {
            let node = topology.router(&format!("node{number}"))?;
            plug(&topology, &switch, &node, DEVICE, 11 + number)?;
            let [four, six] = pod(number);
            let pod = node.pod(&format!("pod{number}"), &[&four, &six])?;
            node.default_routes(&["192.0.2.2", "2001:db8::2"])?;
            servers.push(pod.tcp_echo(&format!("{four}:{PORT}"), &format!("pod{number}"))?);
            servers.push(pod.tcp_echo(&format!("[{six}]:{PORT}"), &format!("pod{number}"))?);
            hosts.push(node);
        }
        let addresses = (0..count).flat_map(of_number).collect();
        let mut world = Self {
            client,
            switch,
            nodes: hosts,
            api,
            server: None,
            kubeconfig: None,
            agents: Vec::new(),
            addresses,
            cordoned: None,
            labels: vec![json!({}); nodes],
            more: Vec::new(),
            arguments: Vec::new(),
            without_endpoints,
            is_urgent,
            _servers: servers,
            topology,
        };
        world.write_manifests(count)?;
        std::fs::write(world.key_file(), "d41d8cd98f00b204e9800998ecf8427e0123")?;
        world.agents = (0..nodes).map(|_| None).collect();
        for number in 0..nodes {
            world.launch(number)?;
        }
        for agent in world.agents.iter_mut().flatten() {
            agent.wait_for_output("ready service_ports=")?;
        }
        Ok(world)
    }

    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    fn key_file(&self) -> PathBuf {
        self.topology.directory().join("key")
    }

    /// Starts the agent of a node, without waiting.
    pub fn launch(&mut self, node: usize) -> Result<()> {
        let key = self.key_file();
        let name = format!("node{node}");
        let mut more = vec![
            "--node-name",
            &name,
            "--forwarding",
            "gue",
            "--tunnel-key-file",
            key.to_str().context("UTF-8")?,
            "--load-balancer-addresses",
            "192.0.3.0-192.0.15.254,2001:db8:3::/112",
            "--xdp-mode",
            "off",
        ];
        more.extend(self.arguments.iter().map(String::as_str));
        let pins = self.topology.warm_pins(&name);
        let manifests = self.topology.manifests();
        let source = match &self.kubeconfig {
            Some(kubeconfig) => AgentSource::Cluster(kubeconfig),
            None => AgentSource::Manifests(&manifests),
        };
        let launch = if self.is_urgent { Agent::launch_urgent } else { Agent::launch };
        let agent = launch(&self.nodes[node], &pins, source, DEVICE, &more)?;
        self.agents[node] = Some(agent);
        Ok(())
    }

    /// Starts the API server with objects that equal the manifests. Agents that are started from
    /// now on read them there.
    pub fn join_cluster(&mut self) -> Result<()> {
        let mut objects = self.objects(self.addresses.len() / 2);
        let services = objects.iter_mut().filter(|object| object["kind"] == "Service");
        for spec in services.filter_map(|service| service["spec"].as_object_mut()) {
            // The server assigns others: its own Service has one of these.
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
            spec.insert("ipFamilyPolicy".to_owned(), json!("RequireDualStack"));
        }
        let server = self.api_server()?;
        server.create(&self.api, objects)?;
        self.kubeconfig = Some(server.kubeconfig().to_owned());
        self.server = Some(server);
        Ok(())
    }

    /// Agents that are started from now on read manifests again.
    pub fn leave_cluster(&mut self) {
        self.kubeconfig = None;
    }

    fn api_server(&self) -> Result<ApiServer> {
        ApiServer::start(&self.api, self.topology.directory().join("api"), API.parse()?)
    }

    /// Ends the API server, and the connections to it.
    pub fn stop_api_server(&mut self) {
        self.server = None;
    }

    /// Starts it again, with the objects that it had.
    pub fn start_api_server(&mut self) -> Result<()> {
        self.server = Some(self.api_server()?);
        Ok(())
    }

    /// Marks a node as one that is about to be drained; none: no node.
    pub fn cordon(&mut self, node: Option<usize>) -> Result<()> {
        self.cordoned = node;
        self.write_manifests(self.addresses.len() / 2)
    }

    /// Replaces the labels of nodes.
    pub fn label(&mut self, nodes: &[usize], labels: &Value) -> Result<()> {
        for &node in nodes {
            self.labels[node] = labels.clone();
        }
        self.write_manifests(self.addresses.len() / 2)
    }

    /// Adds objects to those that the agents read.
    pub fn add(&mut self, objects: Vec<Value>) -> Result<()> {
        self.more.extend(objects);
        self.write_manifests(self.addresses.len() / 2)
    }

    /// A Service of all pods that are endpoints.
    pub fn service(&self, name: &str, cluster_ips: &[&str], addresses: &[&str]) -> Service {
        let service = Service::new(name, cluster_ips).load_balancer(addresses).tcp(PORT, PORT);
        (self.without_endpoints..self.nodes.len()).fold(service, |service, node| {
            let [four, six] = pod(node);
            let both = [four.as_str(), six.as_str()];
            service.on(&format!("node{node}"), &both[..cluster_ips.len()])
        })
    }

    /// The Nodes, the Services with their EndpointSlices, and what was added.
    fn objects(&self, count: usize) -> Vec<Value> {
        let nodes = (0..self.nodes.len()).map(|number| {
            let addresses =
                [format!("192.0.2.{}", 11 + number), format!("2001:db8::{}", 11 + number)];
            let addresses = addresses.map(|ip| json!({"type": "InternalIP", "address": ip}));
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": format!("node{number}"), "labels": self.labels[number]},
                "spec": {"unschedulable": self.cordoned == Some(number)},
                "status": {"addresses": addresses},
            })
        });
        let services = (0..count).flat_map(|number| {
            let cluster = [
                format!("10.96.{}.{}", number / 250, 1 + number % 250),
                format!("fd00:10:96::{number:x}"),
            ];
            let [four, six] = of_number(number);
            let cluster = [cluster[0].as_str(), &cluster[1]];
            let service = self.service(&format!("echo{number}"), &cluster, &[&four, &six]);
            service.documents().collect::<Vec<_>>()
        });
        nodes.chain(self.more.iter().cloned()).chain(services).collect()
    }

    fn write_manifests(&self, count: usize) -> Result<()> {
        self.topology.replace_manifests(&manifests::text(self.objects(count)))
    }

    /// What the agent of a node says about addresses.
    pub fn announcements(&self, node: usize) -> Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.list(node, "json")?)?)
    }

    /// What the agent of a node says about addresses, in a format of the command.
    pub fn list(&self, node: usize, format: &str) -> Result<String> {
        let mut command = self.nodes[node].command(program()?);
        command.args(["announcements", "-o", format, "--pin-path"]);
        command.arg(self.topology.warm_pins(&format!("node{node}")));
        let output = command.output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The holder of each address, by number of the node; fails unless all agents that run agree.
    pub fn holders(&self) -> Result<Vec<usize>> {
        let mut agreed: Option<Vec<usize>> = None;
        for node in (0..self.nodes.len()).filter(|node| self.agents[*node].is_some()) {
            let rows = self.announcements(node)?;
            let names = rows
                .iter()
                .filter_map(|row| Some((row["address"].as_str()?, row["holder"].as_str()?)));
            let names: HashMap<&str, &str> = names.collect();
            let holder = |address: &String| {
                let name = names.get(address.as_str());
                let name =
                    name.with_context(|| format!("node{node} knows no holder of {address}"))?;
                Ok(name.trim_start_matches("node").parse()?)
            };
            let holders = self.addresses.iter().map(holder).collect::<Result<Vec<usize>>>()?;
            if agreed.get_or_insert_with(|| holders.clone()) != &holders {
                bail!("node{node} sees other holders: {holders:?}, others: {agreed:?}");
            }
        }
        agreed.context("no agent runs")
    }

    /// Waits until all agents say that a node holds an address, or that none does.
    pub fn wait_for_holder(&self, address: &str, node: Option<usize>) -> Result<()> {
        let expected = node.map_or(Value::Null, |node| format!("node{node}").into());
        let mut last = Vec::new();
        let agree = || {
            let agents = (0..self.nodes.len()).filter(|node| self.agents[*node].is_some());
            last = agents.map(|node| self.announcements(node).unwrap_or_default()).collect();
            last.iter().all(|rows: &Vec<Value>| {
                let mut rows = rows.iter().filter(|row| row["address"] == *address);
                rows.next().is_some_and(|row| row["holder"] == expected)
            })
        };
        wait_until(&format!("{expected} holds {address}"), SOON, agree)
            .with_context(|| format!("{last:?}"))
    }

    /// Loses all frames in one direction between the switch and a node: to the node, or from it.
    pub fn lose_frames(&self, node: usize, to_it: bool) -> Result<()> {
        let (port, hook) = (11 + node, if to_it { "egress" } else { "ingress" });
        let chain =
            format!("{{ type filter hook {hook} device \"port{port}\" priority 0; policy drop; }}");
        self.switch.run(["nft", "add", "table", "netdev", "lost"])?;
        self.switch.run(["nft", "add", "chain", "netdev", "lost", "frames", &chain])?;
        Ok(())
    }

    /// Ends [`Self::lose`].
    pub fn lose_nothing(&self) -> Result<()> {
        self.switch.run(["nft", "delete", "table", "netdev", "lost"]).map(drop)
    }

    pub fn wait_for_holders(
        &self,
        what: &str,
        so: impl Fn(&[usize]) -> bool,
    ) -> Result<Vec<usize>> {
        let mut last = Err(anyhow::anyhow!("never asked"));
        let waited = wait_until(what, SOON, || {
            last = self.holders();
            last.as_ref().is_ok_and(|holders| so(holders))
        });
        waited
            .and(last.as_ref().map(Vec::clone).map_err(|error| anyhow::anyhow!("{error:#}")))
            .with_context(|| format!("{last:?}"))
    }

    /// Cuts a node from the switch, and kills its agent: its power is gone.
    pub fn power_off(&mut self, node: usize) -> Result<()> {
        self.switch.ip(&format!("link delete port{}", 11 + node))?;
        if let Some(agent) = self.agents[node].take() {
            agent.kill();
        }
        Ok(())
    }

    /// Connects a node again, and starts its agent, without waiting.
    pub fn power_on(&mut self, node: usize) -> Result<()> {
        plug(&self.topology, &self.switch, &self.nodes[node], DEVICE, 11 + node)?;
        self.nodes[node].default_routes(&["192.0.2.2", "2001:db8::2"])?;
        self.launch(node)
    }

    /// A connection of the client, and the server that it reached.
    pub fn connect(&self, address: &str) -> Result<OpenConnection> {
        self.client.enter(|| OpenConnection::open(address, SOON))
    }

    pub fn connect_within(&self, address: &str, limit: Duration) -> Result<OpenConnection> {
        self.client.enter(|| OpenConnection::open(address, limit))
    }

    /// Floods the link with datagrams to the port of heartbeats, which have no valid seal. Returns
    /// how many were sent.
    pub fn flood(&self, duration: Duration) -> Result<usize> {
        let shown = self.client.ip("-o link show dev eth0")?;
        let index = shown.split(':').next().unwrap_or_default().parse()?;
        self.client.enter(|| {
            // As the agents are, which would leave it little of a busy machine otherwise.
            make_thread_urgent()?;
            let four = UdpSocket::bind("192.0.2.2:0")?;
            let six = UdpSocket::bind("[::]:0")?;
            let to_six = SocketAddrV6::new("ff02::1".parse()?, HEARTBEATS, 0, index);
            let (begun, mut sent) = (Instant::now(), 0);
            while begun.elapsed() < duration {
                four.send_to(&[0; 1_000], ("224.0.0.1", HEARTBEATS))?;
                six.send_to(&[0; 1_000], to_six)?;
                sent += 2;
            }
            Ok(sent)
        })
    }

    /// A directory for files of the test.
    pub fn directory(&self) -> &std::path::Path {
        self.topology.directory()
    }

    /// Opens connections to an address, one after the other, until [`ConnectionStream::end`].
    /// Each must succeed within the limit. After a failure the next ones get a quarter of it, so
    /// that the end of a gap is seen soon.
    pub fn stream(&self, address: &str, limit: Duration) -> ConnectionStream {
        ConnectionStream::start(&self.client, address, limit)
    }
}

/// Connects a host to the switch. All are on one link with all addresses of Services.
fn plug(topology: &Topology, switch: &Host, host: &Host, device: &str, last: usize) -> Result<()> {
    let (four, six) = (format!("192.0.2.{last}/20"), format!("2001:db8::{last}/32"));
    let port = format!("port{last}");
    topology.link(host.port(device).addresses(&[&four, &six]), switch.port(&port).bridge("br0"))
}

fn pod(number: usize) -> [String; 2] {
    [format!("10.244.{}.10", number + 1), format!("fd00:10:244:{}::10", number + 1)]
}

/// Without a port, it is [`PORT`].
fn socket_address(address: &str) -> Result<SocketAddr> {
    match address.parse() {
        Ok(address) => Ok(address),
        Err(_) => Ok(SocketAddr::new(address.parse::<IpAddr>()?, PORT)),
    }
}

/// An open connection.
pub struct OpenConnection {
    stream: BufReader<TcpStream>,
    pub server: String,
}

impl OpenConnection {
    pub fn open(address: &str, limit: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&socket_address(address)?, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream: BufReader::new(stream), server: String::new() };
        connection.server = connection.ask()?;
        Ok(connection)
    }

    /// A request and its response: the server's name.
    pub fn ask(&mut self) -> Result<String> {
        self.stream.get_ref().write_all(b"who\n")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let name = line.split(' ').next().filter(|name| !name.is_empty());
        name.map(str::to_owned).context("the connection was closed")
    }
}

/// Shorter than the time after which TCP sends its SYN again: a lost SYN is a failure.
pub const IMPATIENT: Duration = Duration::from_millis(200);

/// A client that opens a connection every few milliseconds.
pub struct ConnectionStream {
    stop: Arc<AtomicBool>,
    succeeded: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<StreamOutcome>>>,
}

/// What a stream of connections met.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamOutcome {
    pub succeeded: usize,
    pub failed: usize,
    /// The longest time between two that succeeded.
    pub longest_gap: Duration,
}

impl ConnectionStream {
    /// See [`Announcers::stream`].
    pub fn start(client: &Host, address: &str, limit: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let succeeded: Arc<AtomicUsize> = Arc::default();
        let (stopped, namespace) = (Arc::clone(&stop), client.namespace_path());
        let (address, count) = (address.to_owned(), Arc::clone(&succeeded));
        let thread = thread::spawn(move || {
            setns(std::fs::File::open(namespace)?, CloneFlags::CLONE_NEWNET)?;
            let mut outcome = StreamOutcome::default();
            let mut last = Instant::now();
            let mut patience = limit;
            while !stopped.load(Ordering::Relaxed) {
                match OpenConnection::open(&address, patience) {
                    Ok(_) => {
                        outcome.succeeded = 1 + count.fetch_add(1, Ordering::Relaxed);
                        outcome.longest_gap = outcome.longest_gap.max(last.elapsed());
                        last = Instant::now();
                        patience = limit;
                    }
                    Err(_) => {
                        outcome.failed += 1;
                        patience = limit / 4;
                    }
                }
                thread::sleep(Duration::from_millis(5));
            }
            outcome.longest_gap = outcome.longest_gap.max(last.elapsed());
            Ok(outcome)
        });
        Self { stop, succeeded, thread: Some(thread) }
    }

    /// Waits until so many more connections have succeeded: how many there are in a time depends on the machine.
    pub fn wait_for_more(&self, connections: usize) -> Result<()> {
        let count = || self.succeeded.load(Ordering::Relaxed);
        let wanted = count() + connections;
        wait_until("more connections succeed", SOON, || count() >= wanted)
    }

    pub fn end(mut self) -> Result<StreamOutcome> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it runs once")?;
        thread.join().map_err(|_| anyhow::anyhow!("the stream of connections panicked"))?
    }
}
