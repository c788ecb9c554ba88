//! Nodes on one switch, behind a router that spreads the address of a Service over them by BGP. Each node has many
//! backends.
//!
//! ```text
//! client ─ router ─ switch (a bridge) ─┬─ node0 ─ backends
//!                                      ├─ node1 ─ backends
//!                                      └─ ...
//! ```

mod crowded;
mod router;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use lb_common::family::{Address4, V4};
use lb_common::hash::{backend_identity, scale, spread};
use lb_common::header::protocol;
use lb_common::maglev;
use serde_json::json;

use crate::load::crowd::Servers;
use crate::manifests::{Service, manifests};
use crate::programs::agent::{Agent, AgentSource, program};
use crate::programs::bgp::{Speaker, is_answered, is_established};
use crate::worlds::topology::{Host, SOON, Topology, wait_until};

pub use crowded::CrowdedRack;
pub use router::{Daemons, RouterKind};

/// The network of router and nodes.
const NETWORK: &str = "192.0.2";
const ROUTER_AS: u32 = 64_513;
const LOCAL_AS: u32 = 64_512;
const ADDRESS: &str = "203.0.113.10";
const PORT: u16 = 9000;
const DEVICE: &str = "ext0";

pub struct Rack {
    pub client: Host,
    pub nodes: Vec<RackNode>,
    switch: Host,
    router: Host,
    kind: RouterKind,
    daemons: Option<Daemons>,
    servers: Servers,
    backends: Vec<RackBackend>,
    /// The backends that the agents have been told of, from the first ones on.
    written: RefCell<Vec<Vec<RackBackend>>>,
    cordoned: Option<usize>,
    /// In seconds.
    history: u32,
    topology: Topology,
}

pub struct RackNode {
    pub host: Host,
    pub agent: Option<Agent>,
    pods: Host,
    /// Backends that it has ever had.
    backends: u8,
    is_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackBackend {
    pub address: Ipv4Addr,
    pub node: usize,
}

/// The sizes of a rack.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub nodes: usize,
    pub backends: usize,
}

fn node_address(number: usize) -> String {
    format!("{NETWORK}.{}", 11 + number)
}

fn node_name(number: usize) -> String {
    format!("node{number}")
}

impl Rack {
    /// With all nodes on, and the router's packets spread over all of them.
    pub fn start(kind: RouterKind, sizes: Sizes, history: u32) -> Result<Self> {
        let topology = Topology::new("rack")?;
        let (client, switch) = (topology.host("client")?, topology.host("switch")?);
        let router = topology.router("router")?;
        // By ports, too.
        router.sysctl(&["net.ipv4.fib_multipath_hash_policy=1"])?;
        switch.bridge("br0")?;
        topology.link(
            client.port("eth0").address("10.0.0.2/24"),
            router.port("lan").address("10.0.0.1/24"),
        )?;
        client.default_route("10.0.0.1")?;
        topology.link(
            router.port("rack").address(&format!("{NETWORK}.1/24")),
            switch.port("router").bridge("br0"),
        )?;
        let nodes = (0..sizes.nodes).map(|number| RackNode::new(&topology, &switch, number));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        std::fs::write(topology.directory().join("key"), "d41d8cd98f00b204e9800998ecf8427e")?;
        let mut rack = Self {
            client,
            nodes,
            switch,
            router,
            kind,
            daemons: None,
            servers: Servers::new(PORT)?,
            backends: Vec::new(),
            written: RefCell::default(),
            cordoned: None,
            history,
            topology,
        };
        for number in 0..sizes.backends {
            rack.add_backend(number % sizes.nodes)?;
        }
        rack.write()?;
        for node in 0..sizes.nodes {
            rack.launch(node)?;
        }
        rack.start_router()?;
        rack.wait_for_agents()?;
        rack.wait_for_nodes(sizes.nodes)?;
        Ok(rack)
    }

    /// The address and port of the Service.
    pub fn target(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(ADDRESS.parse()?, PORT))
    }

    pub fn backends(&self) -> &[RackBackend] {
        &self.backends
    }

    /// The backends to which the slot of a client's connection has led, each once, the last one first.
    pub fn slot_owners(&self, client: SocketAddrV4) -> Result<Vec<RackBackend>> {
        let SocketAddr::V4(target) = self.target()? else { bail!("an IPv4 address") };
        let [(from, from_port), (to, to_port)] =
            [client, target].map(|end| (Address4::from(*end.ip()), end.port()));
        let hash = spread::<V4>(from, from_port, to, to_port, protocol::TCP);
        let mut owners = Vec::new();
        for backends in self.written.borrow().iter().rev() {
            let identity =
                |it: &RackBackend| (backend_identity(Address4::from(it.address), PORT), *it);
            let mut backends: Vec<_> = backends.iter().map(identity).collect();
            backends.sort_unstable_by_key(|(identity, _)| *identity);
            let identities: Vec<u64> = backends.iter().map(|(identity, _)| *identity).collect();
            let slots = maglev::table(&identities, maglev::fitted_size(identities.len()));
            let slot = scale(hash, slots.len() as u32) as usize;
            let owner = backends[slots[slot] as usize].1;
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        Ok(owners)
    }

    /// Starts a backend. The agents learn of it by [`Self::write`].
    pub fn add_backend(&mut self, number: usize) -> Result<RackBackend> {
        let node = &mut self.nodes[number];
        node.backends = node.backends.checked_add(1).context("no more addresses")?;
        let address = Ipv4Addr::new(10, 244, number as u8 + 1, node.backends);
        self.servers.start(&node.pods, address)?;
        let backend = RackBackend { address, node: number };
        self.backends.push(backend);
        Ok(backend)
    }

    /// Takes a backend out of the list for [`Self::write`]. It still runs.
    pub fn remove_backend(&mut self, index: usize) -> RackBackend {
        self.backends.remove(index)
    }

    /// Ends what a backend runs.
    pub fn end_backend(&mut self, backend: RackBackend) {
        self.servers.end(backend.address);
    }

    /// The node that is on and has the fewest backends.
    pub fn emptiest(&self) -> Option<usize> {
        let count = |node: &usize| self.backends.iter().filter(|each| each.node == *node).count();
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_on).min_by_key(count)
    }

    /// Writes what the agents read.
    pub fn write(&self) -> Result<()> {
        let mut written = self.written.borrow_mut();
        if written.last() != Some(&self.backends) {
            written.push(self.backends.clone());
        }
        let mut objects: Vec<_> = (0..self.nodes.len())
            .map(|number| {
                let address = json!({"type": "InternalIP", "address": node_address(number)});
                json!({
                    "apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(number)},
                    "spec": {"unschedulable": self.cordoned == Some(number)},
                    "status": {"addresses": [address]},
                })
            })
            .collect();
        objects.push(json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer",
            "metadata": {"name": "router"},
            "spec": {
                "address": format!("{NETWORK}.1"), "peerASN": ROUTER_AS, "localASN": LOCAL_AS,
                "bfd": {},
            },
        }));
        objects.push(json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "AddressPool",
            "metadata": {"name": "public"},
            "spec": {"addresses": ["203.0.113.0/24"], "announce": false},
        }));
        let objects: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
        let service =
            Service::new("web", &["10.96.0.10"]).load_balancer(&[ADDRESS]).tcp(PORT, PORT);
        let service = self.backends.iter().fold(service, |service, backend| {
            service.on(&node_name(backend.node), &[&backend.address.to_string()])
        });
        self.topology.replace_manifests(&(objects + &manifests(&[service])))
    }

    fn pins(&self, node: usize) -> PathBuf {
        self.topology.warm_pins(&node_name(node))
    }

    /// Starts the agent of a node, without waiting.
    pub fn launch(&mut self, node: usize) -> Result<()> {
        let directory = self.topology.directory();
        let path = |name: &str| {
            let path = directory.join(name);
            path.to_str().map(str::to_owned).context("UTF-8")
        };
        let (name, history) = (node_name(node), self.history.to_string());
        let (key, state) = (path("key")?, path(&format!("state-{name}"))?);
        let more = [
            ["--node-name", &name],
            ["--forwarding", "gue"],
            ["--tunnel-key-file", &key],
            ["--slot-history", &history],
            ["--state-directory", &state],
            ["--xdp-mode", "off"],
        ];
        let manifests = self.topology.manifests();
        let source = AgentSource::Manifests(&manifests);
        let host = &self.nodes[node].host;
        let agent = Agent::launch(host, &self.pins(node), source, DEVICE, &more.concat())?;
        self.nodes[node].agent = Some(agent);
        Ok(())
    }

    /// Ends the agents of all nodes, and starts the next ones, without waiting.
    pub fn restart_agents(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            if let Some(agent) = self.nodes[node].agent.take() {
                agent.end()?;
                self.launch(node)?;
            }
        }
        Ok(())
    }

    /// Waits until agents are ready and have their sessions.
    pub fn wait_for_agents(&mut self) -> Result<()> {
        for agent in self.nodes.iter_mut().filter_map(|node| node.agent.as_mut()) {
            agent.wait_for_output("ready service_ports=")?;
        }
        for number in 0..self.nodes.len() {
            if self.nodes[number].agent.is_some() {
                let speaker = Speaker::of(&self.nodes[number].host, self.pins(number));
                speaker.wait_for_peers("sessions", 1, is_established)?;
                speaker.wait_for_paths("paths", 1, is_answered)?;
            }
        }
        let on = self.nodes.iter().filter(|node| node.is_on).count();
        // Nodes ask only those whose replies to probes say that they understand questions.
        let known = format!("millrace_tunnel_nodes{{state=\"decapsulates\"}} {}\n", on - 1);
        for node in self.nodes.iter().filter(|node| node.agent.is_some()) {
            wait_until("the nodes have replied to probes", SOON, || {
                let metrics = node.host.curl("http://127.0.0.1:10249/metrics");
                metrics.is_ok_and(|metrics| metrics.contains(&known))
            })?;
        }
        Ok(())
    }

    /// Waits until the router spreads packets over so many nodes.
    pub fn wait_for_nodes(&self, number: usize) -> Result<()> {
        let mut last = String::new();
        wait_until("the router uses the nodes", SOON, || {
            last = self.router.ip(&format!("route show {ADDRESS}")).unwrap_or_default();
            last.matches("via").count() == number
        })
        .context(last)
    }

    /// Whether a node is to be drained; none: no node.
    pub fn cordon(&mut self, node: Option<usize>) -> Result<()> {
        self.cordoned = node;
        self.write()
    }

    /// Ends a node without a word. Its backends end, too; the agents learn of it by [`Self::write`].
    pub fn power_off(&mut self, number: usize) -> Result<Vec<RackBackend>> {
        self.switch.ip(&format!("link set port{number} down"))?;
        let node = &mut self.nodes[number];
        node.is_on = false;
        if let Some(agent) = node.agent.take() {
            agent.kill();
        }
        let (gone, left): (Vec<RackBackend>, _) =
            self.backends.iter().partition(|backend| backend.node == number);
        self.backends = left;
        for &RackBackend { address, .. } in &gone {
            self.servers.end(address);
        }
        Ok(gone)
    }

    /// Starts a node that knows nothing of what it did before, without waiting.
    pub fn power_on(&mut self, number: usize) -> Result<()> {
        let pins = self.pins(number);
        let host = &self.nodes[number].host;
        let mut cleanup = host.command(program()?);
        let output = cleanup.arg("cleanup").arg("--pin-path").arg(pins).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.switch.ip(&format!("link set port{number} up"))?;
        self.nodes[number].is_on = true;
        self.launch(number)
    }

    /// Starts the router's daemons.
    pub fn start_router(&mut self) -> Result<()> {
        let Self { kind, topology, router, nodes, .. } = self;
        self.daemons = Some(Daemons::start(*kind, topology, router, nodes.len())?);
        Ok(())
    }

    /// Ends the router's daemons in order.
    pub fn end_router(&mut self) -> Result<()> {
        self.daemons.take().context("it runs")?.end()
    }

    /// Counters of all nodes, as text.
    pub fn counters(&self) -> String {
        let agents = self.nodes.iter().filter_map(|node| node.agent.as_ref());
        let of = |agent: &Agent| agent.get(&["counters"]).unwrap_or_else(|error| error.to_string());
        agents.map(of).collect::<Vec<_>>().join("\n")
    }
}

impl RackNode {
    fn new(topology: &Topology, switch: &Host, number: usize) -> Result<Self> {
        let host = topology.router(&node_name(number))?;
        topology.link(
            host.port(DEVICE).address(&format!("{}/24", node_address(number))),
            switch.port(&format!("port{number}")).bridge("br0"),
        )?;
        host.default_route(&format!("{NETWORK}.1"))?;
        // One host is all pods of the node: all addresses of a network are its own.
        let (gateway, network) =
            (format!("10.244.{}.254", number + 1), format!("10.244.{}.0/24", number + 1));
        let pods = host.pod(&format!("pods{number}"), &[&gateway])?;
        pods.ip(&format!("route add local {network} dev lo"))?;
        host.ip(&format!("route add {network} dev pods{number}"))?;
        Ok(Self { host, agent: None, pods, backends: 0, is_on: true })
    }
}
