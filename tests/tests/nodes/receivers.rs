//! Frames that are for another machine, on a switch that floods: exactly one node serves a request.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::topology::{Echo, Host, SOON, Topology, wait_until};

const FRONTEND: &str = "203.0.113.10";
const BACKEND: &str = "10.244.9.10";
const DEVICE: &str = "ext0";

/// Two nodes, a client and a backend on a switch that sends every frame to all of them. The nodes
/// forward to the backend: what a node keeps its stack would drop, if the frame is for another.
struct Case {
    client: Host,
    nodes: Vec<Host>,
    agents: Vec<Agent>,
    socket: UdpSocket,
    _server: Echo,
    _topology: Topology,
}

impl Case {
    fn new(more: &[&str]) -> Result<Self> {
        let topology = Topology::new("receivers")?;
        let (client, switch) = (topology.host("client")?, topology.host("switch")?);
        switch.bridge("br0")?;
        let plug = |host: &Host, device: &str, last: usize| -> Result<()> {
            let (address, port) = (format!("192.0.2.{last}/24"), format!("port{last}"));
            let at_switch = switch.port(&port).bridge("br0");
            topology.link(host.port(device).addresses(&[&address]).wire(), at_switch)?;
            switch.ip(&format!("link set {port} type bridge_slave learning off flood on"))?;
            // What it has learned meanwhile.
            switch.ip(&format!("link set {port} type bridge_slave fdb_flush")).map(drop)
        };
        plug(&client, "eth0", 2)?;
        let backend = topology.host("backend")?;
        plug(&backend, "eth0", 20)?;
        backend.address("lo", &format!("{BACKEND}/32"))?;
        let server = backend.udp_echo(&format!("{BACKEND}:5353"), "backend")?;
        let (mut nodes, mut agents) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let node = topology.router(&name(number))?;
            plug(&node, DEVICE, 11 + number)?;
            node.route(&format!("{BACKEND}/32"), "192.0.2.20")?;
            nodes.push(node);
        }
        let service = Service::new("dns", &["10.96.0.10"]).load_balancer(&[FRONTEND]).udp(53, 5353);
        let service = service.on("elsewhere", &[BACKEND]);
        let path: PathBuf = topology.write_manifests(&manifests(&[service]))?;
        for (number, node) in nodes.iter().enumerate() {
            let (name, pins) = (name(number), topology.warm_pins(&name(number)));
            let more = [&["--node-name", &name][..], more].concat();
            agents.push(Agent::start(node, &pins, &path, DEVICE, &more)?);
        }
        let socket = client.udp_socket("192.0.2.2:40000")?;
        let case = Self { client, nodes, agents, socket, _server: server, _topology: topology };
        Ok(case)
    }

    /// From now on requests have this link-layer address of the node, on a device of the client.
    fn aim(&self, node: usize, link: &str, device: &str) -> Result<()> {
        let via = format!("192.0.2.{}", 11 + node);
        self.client.ip(&format!("route replace {via} dev {device} src 192.0.2.2"))?;
        self.client.ip(&format!("neigh replace {via} lladdr {link} dev {device} nud permanent"))?;
        self.client
            .ip(&format!("route replace {FRONTEND} via {via} dev {device} onlink src 192.0.2.2"))
            .map(drop)
    }

    fn request(&self, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.ask("?"))
    }

    fn ask(&self, question: &str) -> Result<()> {
        self.socket.send_to(question.as_bytes(), (FRONTEND, 53))?;
        Ok(())
    }

    /// Reads what is left of earlier requests. The backend replies to the last one last.
    fn skip_replies(&self) -> Result<()> {
        const LAST: &str = "last";
        self.ask(LAST)?;
        let mut reply = [0; 128];
        loop {
            let length = self.socket.recv(&mut reply)?;
            if reply[..length].ends_with(LAST.as_bytes()) {
                return Ok(());
            }
        }
    }

    /// The number of replies of each node. The last request goes to the other node, which gets all
    /// frames in their order: what it duplicates has been sent before that reply.
    fn replies(&self, node: usize, link: &str, device: &str) -> Result<BTreeMap<String, usize>> {
        const REQUESTS: usize = 20;
        self.aim(node, link, device)?;
        self.request(REQUESTS)?;
        let other = 1 - node;
        let mut replies = BTreeMap::new();
        let mut read = || -> Result<String> {
            let mut buffer = [0; 128];
            let length = self.socket.recv(&mut buffer).context("no reply")?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            // The backend's client is the node that has forwarded the request.
            let peer = text.split([' ', ':']).nth(1).unwrap_or_default();
            let name = name(usize::from(peer == "192.0.2.12"));
            *replies.entry(name.clone()).or_default() += 1;
            Ok(name)
        };
        for _ in 0..REQUESTS {
            read()?;
        }
        self.aim(other, &link_address(&self.nodes[other])?, "eth0")?;
        self.request(1)?;
        while read()? != name(other) {}
        Ok(replies)
    }

    fn assert_served_once(&self, node: usize, link: &str, device: &str) -> Result<()> {
        let replies = self.replies(node, link, device)?;
        let expected = [(name(node), 20), (name(1 - node), 1)].into();
        ensure!(replies == expected, "frames to {link}: {replies:?}");
        Ok(())
    }
}

fn name(node: usize) -> String {
    format!("node{node}")
}

fn link_address(node: &Host) -> Result<String> {
    let shown: serde_json::Value =
        serde_json::from_str(&node.ip(&format!("-json link show dev {DEVICE}"))?)?;
    Ok(shown[0]["address"].as_str().context("a link-layer address")?.to_owned())
}

/// In XDP and tc, and in tc alone.
const MODES: [&[&str]; 2] = [&["--xdp-mode", "native"], &["--xdp-mode", "off"]];

#[test]
fn exactly_one_node_serves_a_request_on_a_switch_that_floods() -> Result<()> {
    for mode in MODES {
        let mut case = Case::new(mode)?;
        for node in [0, 1] {
            case.assert_served_once(node, &link_address(&case.nodes[node])?, "eth0")
                .with_context(|| format!("{mode:?}"))?;
        }
        // A priority without a VLAN (IEEE 802.1Q, VLAN 0).
        if case.client.ip("link add link eth0 name priority type vlan id 0").is_ok() {
            case.client.ip("link set priority up")?;
            case.assert_served_once(0, &link_address(&case.nodes[0])?, "priority")
                .with_context(|| format!("{mode:?}, priority"))?;
        }
        // A virtual router: an interface above with an address of its own.
        const VIRTUAL: &str = "00:00:5e:00:01:07";
        let added = format!("link add link {DEVICE} name vrrp0 address {VIRTUAL} type macvlan");
        if case.nodes[0].ip(&added).is_ok() {
            case.nodes[0].ip("link set vrrp0 up")?;
            case.aim(0, VIRTUAL, "eth0")?;
            let served = || {
                let _ = case.request(1);
                case.socket.set_read_timeout(Some(std::time::Duration::from_millis(100))).is_ok()
                    && case.socket.recv(&mut [0; 128]).is_ok()
            };
            wait_until("the agent learns of the virtual router", SOON, served)?;
            case.socket.set_read_timeout(Some(SOON))?;
            case.skip_replies()?;
            case.assert_served_once(0, VIRTUAL, "eth0").with_context(|| format!("{mode:?}"))?;
        }
        // The kernel knows a new address before an agent does.
        case.agents.remove(0).kill();
        const NEW: &str = "02:00:00:00:77:01";
        case.nodes[0].ip(&format!("link set {DEVICE} address {NEW}"))?;
        case.assert_served_once(0, NEW, "eth0")
            .with_context(|| format!("{mode:?}, new address"))?;
    }
    Ok(())
}
