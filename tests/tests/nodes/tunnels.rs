//! Direct server return: backends on another node are reached through tunnels, and their replies go
//! directly to the client.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use tests::load::upload::upload_file;
use tests::programs::agent::Agent;
use tests::worlds::topology::{Echo, Host, LARGE, Process, SOON, Topology, wait_until};

/// Each kind of tunnel, and the load balancer addresses of the Service that uses it.
const KINDS: [(&str, [&str; 2]); 2] = [
    ("ipip", ["203.0.113.10", "[2001:db8:113::10]"]),
    ("gue", ["203.0.113.11", "[2001:db8:113::11]"]),
];

/// client - router - node: the router sends the Services' addresses here
///                 \ other - pod: the backend of all Services
struct Tunnels {
    client: Host,
    router: Host,
    node: Host,
    pod: Host,
    agents: [Agent; 2],
    _server: Process,
    _echos: [Echo; 2],
    topology: Topology,
}

/// Which program sends packets into tunnels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// XDP, back through the interface.
    Xdp,
    /// tc: XDP leaves the packets to it.
    LeftToTc,
    /// tc, without XDP.
    TcAlone,
}

impl Tunnels {
    /// `narrowest` is the MTU of the link between router and client.
    fn new(sending: Sending, narrowest: u16) -> Result<Self> {
        Self::with_key(sending, narrowest, None)
    }

    fn with_key(sending: Sending, narrowest: u16, key: Option<&str>) -> Result<Self> {
        let topology = Topology::new("tunnels")?;
        let client = topology.host("client")?;
        let (router, node, other) =
            (topology.router("router")?, topology.router("node")?, topology.router("other")?);
        for (host, device, near, network) in [
            (&client, "eth0", "client0", 1),
            (&node, "ext0", "node0", 2),
            (&other, "ext0", "other0", 3),
        ] {
            let port = router.port(near).address(&format!("10.7.{network}.1/24"));
            let mtu = if near == "client0" { narrowest } else { 1500 };
            let port = port.address(&format!("fd07:{network}::1/64")).mtu(mtu).wire();
            let host_port = host.port(device).address(&format!("10.7.{network}.2/24"));
            let host_port = host_port.address(&format!("fd07:{network}::2/64")).wire();
            topology.link(host_port, port.gro(sending == Sending::Xdp))?;
            host.default_routes(&[&format!("10.7.{network}.1"), &format!("fd07:{network}::1")])?;
        }
        for address in ["203.0.113.0/24", "2001:db8:113::/64"] {
            let via = if address.contains(':') { "fd07:2::2" } else { "10.7.2.2" };
            router.route(address, via)?;
        }
        // Without a tunnel, the node sends packets to the pod's own address.
        router.route("10.244.2.0/24", "10.7.3.2")?;
        router.route("fd00:10:244:2::/64", "fd07:3::2")?;
        let pod = other.pod("pod", &["10.244.2.10", "fd00:10:244:2::10"])?;
        let server = pod.http_server(&["10.244.2.10:8080", "[fd00:10:244:2::10]:8080"], "pod")?;
        let echos = [
            pod.udp_echo("10.244.2.10:7007", "pod")?,
            pod.udp_echo("[fd00:10:244:2::10]:7007", "pod")?,
        ];
        let file = topology.directory().join("manifests.yaml");
        fs::write(&file, manifests())?;
        let key_file = topology.directory().join("key");
        fs::write(&key_file, key.unwrap_or_default())?;
        let agent = |host: &Host, name: &str| {
            let pins = topology.warm_pins(name);
            let mut more = vec!["--node-name", name];
            if sending == Sending::TcAlone {
                more.extend(["--xdp-mode", "off"]);
            }
            if key.is_some() {
                more.extend(["--tunnel-key-file", key_file.to_str().context("a path in UTF-8")?]);
            }
            Agent::start(host, &pins, &file, "ext0", &more)
        };
        let agents = [agent(&node, "node")?, agent(&other, "other")?];
        Ok(Self { client, router, node, pod, agents, _server: server, _echos: echos, topology })
    }

    fn curl(&self, url: &str) -> Result<String> {
        let page = self.client.curl(url).with_context(|| self.counters())?;
        Ok(page.trim().to_owned())
    }

    fn get_large(&self) -> Result<()> {
        for address in KINDS.iter().flat_map(|(_, addresses)| addresses) {
            let size = self.client.download(&format!("http://{address}/large"));
            assert_eq!(size.with_context(|| self.counters())?, LARGE);
        }
        Ok(())
    }

    fn counters(&self) -> String {
        let of = |agent: &Agent| agent.get(&["counters"]).unwrap_or_default();
        self.agents.iter().map(of).collect::<Vec<_>>().join("\n")
    }
}

const NODES: &str = "
apiVersion: v1
kind: Node
metadata: {name: node}
status: {addresses: [{type: InternalIP, address: 10.7.2.2}, {type: InternalIP, address: 'fd07:2::2'}]}
---
apiVersion: v1
kind: Node
metadata: {name: other}
status: {addresses: [{type: InternalIP, address: 10.7.3.2}, {type: InternalIP, address: 'fd07:3::2'}]}
";

const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: KIND, annotations: {millrace.io/forwarding: KIND}}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.NUMBER, 'fd00:10:96::NUMBER']
  ports: [{name: http, port: 80}, {name: sink, port: 9000}, {name: echo, port: 7, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.NUMBER}, {ip: '2001:db8:113::NUMBER'}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: KIND-4, labels: {kubernetes.io/service-name: KIND}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: sink, port: 9000}, {name: echo, port: 7007, protocol: UDP}]
endpoints: [{addresses: [10.244.2.10], nodeName: other}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: KIND-6, labels: {kubernetes.io/service-name: KIND}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: sink, port: 9000}, {name: echo, port: 7007, protocol: UDP}]
endpoints: [{addresses: ['fd00:10:244:2::10'], nodeName: other}]
";

fn manifests() -> String {
    let service = |(kind, number)| SERVICE.replace("KIND", kind).replace("NUMBER", number);
    let services = [("ipip", "10"), ("gue", "11"), ("default", "12")].map(service);
    let all: String = [NODES.to_owned()].into_iter().chain(services).collect();
    all.replace("annotations: {millrace.io/forwarding: default}", "annotations: {}")
}

fn clients_are_served(sending: Sending) -> Result<()> {
    let network = Tunnels::new(sending, 1500)?;
    // Between router and node no packet may have an address of a Service as its source: replies
    // must not pass through the node.
    let from_services = "src net 203.0.113.0/24 or src net 2001:db8:113::/64";
    let answers = network.router.capture("node0", from_services)?;
    for [v4, v6] in KINDS.map(|(_, addresses)| addresses) {
        for address in [v4, v6].repeat(5) {
            assert_eq!(network.curl(&format!("http://{address}"))?, "pod");
        }
        assert_eq!(network.curl(&format!("http://{v4}/client"))?, "10.7.1.2");
        assert_eq!(network.curl(&format!("http://{v6}/client"))?, "fd07:1::2");
    }
    network.get_large()?;
    assert_eq!(answers.lines(), [""; 0], "replies passed through the node");
    Ok(())
}

#[test]
fn clients_are_served_by_xdp() -> Result<()> {
    clients_are_served(Sending::Xdp)
}

#[test]
fn clients_are_served_where_xdp_leaves_it_to_tc() -> Result<()> {
    clients_are_served(Sending::LeftToTc)
}

#[test]
fn clients_are_served_without_xdp() -> Result<()> {
    clients_are_served(Sending::TcAlone)
}

/// Full-sized packets do not fit through the tunnel. ICMP errors make clients send smaller ones.
fn large_requests_arrive(sending: Sending) -> Result<()> {
    large_requests_arrive_in(&Tunnels::new(sending, 1500)?)
}

fn large_requests_arrive_in(network: &Tunnels) -> Result<()> {
    for address in KINDS.iter().flat_map(|(_, addresses)| addresses) {
        let sink =
            if address.contains(':') { "[fd00:10:244:2::10]:9000" } else { "10.244.2.10:9000" };
        upload_file(&network.client, &format!("{address}:9000"), &network.pod, sink)
            .with_context(|| network.counters())?;
    }
    Ok(())
}

#[test]
fn large_requests_arrive_by_xdp() -> Result<()> {
    large_requests_arrive(Sending::Xdp)
}

#[test]
fn large_requests_arrive_where_xdp_leaves_it_to_tc() -> Result<()> {
    large_requests_arrive(Sending::LeftToTc)
}

#[test]
fn large_requests_arrive_without_xdp() -> Result<()> {
    large_requests_arrive(Sending::TcAlone)
}

/// Datagrams in fragments. Full-sized ones do not fit through the tunnel until the client has
/// received an ICMP error.
fn large_datagrams_arrive(sending: Sending) -> Result<()> {
    let network = Tunnels::new(sending, 1500)?;
    for address in KINDS.iter().flat_map(|(_, addresses)| addresses) {
        let own = if address.contains(':') { "[fd07:1::2]:0" } else { "10.7.1.2:0" };
        let socket = network.client.udp_socket(own)?;
        network.client.enter(|| Ok(socket.connect(format!("{address}:7"))?))?;
        socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        let question = [7; 4000];
        let mut answer = [0; 5000];
        let answered = || {
            // An ICMP error becomes an error of the socket.
            socket.send(&question).is_ok()
                && matches!(socket.recv(&mut answer), Ok(length) if length >= question.len())
        };
        let what = format!("{address} replies");
        wait_until(&what, SOON, answered).with_context(|| network.counters())?;
    }
    Ok(())
}

#[test]
fn large_datagrams_arrive_by_xdp() -> Result<()> {
    large_datagrams_arrive(Sending::Xdp)
}

#[test]
fn large_datagrams_arrive_without_xdp() -> Result<()> {
    large_datagrams_arrive(Sending::TcAlone)
}

const KEY: &str = "5f4dcc3b5aa765d61d8327deb882cf99";

/// With a key, all tunnels use UDP. Large transfers work as they do without a key.
fn keyed_tunnels_serve_clients(sending: Sending) -> Result<()> {
    let network = Tunnels::with_key(sending, 1500, Some(KEY))?;
    let nodes =
        "(src host 10.7.2.2 and dst host 10.7.3.2) or (src host fd07:2::2 and dst host fd07:3::2)";
    // Replies to probes come from the port. The agents ask each other over TCP, which is no tunnel.
    let without_key = format!("({nodes}) and not udp port 6080 and not tcp port 10256");
    let others = network.router.capture("node0", &without_key)?;
    for address in KINDS.iter().flat_map(|(_, addresses)| addresses) {
        assert_eq!(network.curl(&format!("http://{address}"))?, "pod");
    }
    network.get_large()?;
    large_requests_arrive_in(&network)?;
    let neighbours = |line: &String| !line.contains("neighbor");
    assert!(!others.lines().iter().any(neighbours), "tunnels without a key: {:?}", others.lines());
    Ok(())
}

#[test]
fn keyed_tunnels_serve_clients_by_xdp() -> Result<()> {
    keyed_tunnels_serve_clients(Sending::Xdp)
}

#[test]
fn keyed_tunnels_serve_clients_without_xdp() -> Result<()> {
    keyed_tunnels_serve_clients(Sending::TcAlone)
}

/// The addresses of the Service without an annotation, and of the client and the node as the backend
/// sees them.
const DEFAULT: [(&str, &str, &str); 2] =
    [("203.0.113.12", "10.7.1.2", "10.7.2.2"), ("[2001:db8:113::12]", "fd07:1::2", "fd07:2::2")];

/// Waits until the backend sees clients with this address.
fn wait_for_client(network: &Tunnels, address: &str, client: &str) -> Result<()> {
    let url = format!("http://{address}/client");
    let what = format!("clients of {address} are seen as {client}");
    wait_until(&what, SOON, || network.curl(&url).is_ok_and(|seen| seen == client))
        .with_context(|| network.counters())
}

/// By default, tunnels lead to nodes that return probes.
fn tunnels_lead_to_nodes_that_return_probes(sending: Sending) -> Result<()> {
    let network = Tunnels::with_key(sending, 1500, Some(KEY))?;
    let accepted = network.router.capture("client0", "src host 203.0.113.12 and tcp[13] == 18")?;
    for (address, client, _) in DEFAULT {
        wait_for_client(&network, address, client)?;
    }
    // 1500 without IP, UDP, the key and again IP and TCP.
    let is_reduced = || accepted.lines().iter().any(|line| line.contains("mss 1420,"));
    wait_until("the segment size fits in the tunnel", SOON, is_reduced)
        .with_context(|| accepted.lines().join("\n"))?;
    let nodes = |state: &str, count: u8| {
        let metrics = network.node.curl("http://127.0.0.1:10249/metrics").unwrap_or_default();
        metrics.contains(&format!("millrace_tunnel_nodes{{state=\"{state}\"}} {count}\n"))
    };
    wait_until("both families are counted", SOON, || nodes("decapsulates", 2))?;
    // Something on the path begins to drop tunnels.
    for family in ["-4", "-6"] {
        let drop = "rule add iif node0 ipproto udp dport 6080 blackhole";
        network.router.ip(&format!("{family} {drop}"))?;
    }
    wait_until("the nodes are silent", SOON, || nodes("silent", 2))?;
    for (address, _, node) in DEFAULT {
        wait_for_client(&network, address, node)?;
    }
    Ok(())
}

#[test]
fn tunnels_lead_to_nodes_that_return_probes_by_xdp() -> Result<()> {
    tunnels_lead_to_nodes_that_return_probes(Sending::Xdp)
}

#[test]
fn tunnels_lead_to_nodes_that_return_probes_without_xdp() -> Result<()> {
    tunnels_lead_to_nodes_that_return_probes(Sending::TcAlone)
}

/// Ports of the first node's own addresses: no other node can reply from them.
#[test]
fn connections_to_lent_ports_of_a_node_use_no_tunnel() -> Result<()> {
    let network = Tunnels::with_key(Sending::Xdp, 1500, Some(KEY))?;
    for (address, client, _) in DEFAULT {
        wait_for_client(&network, address, client)?;
    }
    let ready = "conditions: [{type: Ready, status: 'True'}], addresses: ";
    let nodes = NODES.replace("addresses: ", ready);
    let nodes = nodes.replace("name: node}", "name: node, labels: {role: edge}}");
    let lent =
        SERVICE.split("status: ").next().unwrap_or_default().replace("port: 80}", "port: 8081}");
    let slices = SERVICE.split_once("---\napiVersion: discovery").context("slices")?.1;
    let lent = format!("{lent}---\napiVersion: discovery{slices}");
    let lent = lent.replace(" annotations: {millrace.io/forwarding: KIND}", "");
    let lent = lent.replace("KIND", "lent").replace("NUMBER", "13");
    let pool = "---
apiVersion: millrace.io/v1alpha1
kind: AddressPool
metadata: {name: edge}
spec: {nodes: {addressType: InternalIP, selector: {matchLabels: {role: edge}}, ports: [8081]}}
";
    let manifests = manifests().replace(NODES, &nodes) + pool + &lent;
    fs::write(network.topology.directory().join("manifests.yaml"), manifests)?;
    for (address, node) in [("10.7.2.2:8081", "10.7.2.2"), ("[fd07:2::2]:8081", "fd07:2::2")] {
        wait_for_client(&network, address, node)?;
        for _ in 0..20 {
            assert_eq!(network.curl(&format!("http://{address}/client"))?, node, "{address}");
        }
    }
    // Other addresses keep their tunnels.
    for (address, client, _) in DEFAULT {
        wait_for_client(&network, address, client)?;
    }
    Ok(())
}

#[test]
fn without_a_key_no_tunnel_is_used_by_default() -> Result<()> {
    let network = Tunnels::new(Sending::Xdp, 1500)?;
    for (address, _, node) in DEFAULT {
        wait_for_client(&network, address, node)?;
    }
    Ok(())
}

/// With most network plugins, packets from a pod to another node have the pod's node as their
/// source, so the source address does not authenticate a tunnel.
#[test]
fn forged_tunnel_packets_without_the_key_open_no_flow() -> Result<()> {
    let network = Tunnels::with_key(Sending::Xdp, 1500, Some(KEY))?;
    let [node, other] = &network.agents;
    let inner = tests::packets::tcp("10.7.1.2:40000", "203.0.113.10:80").syn();
    let inner = &inner[14..];
    let keyed = [&[2, 4, 0, 0][..], &[7; 8], inner].concat();
    let socket = network.node.udp_socket("10.7.2.2:40000")?;
    for datagram in [inner, &keyed] {
        socket.send_to(datagram, "10.7.3.2:6080")?;
    }
    let counted = || {
        let counters = other.get(&["counters"]).unwrap_or_default();
        counters.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some("wrong_tunnel_key") && words.next() == Some("2")
        })
    };
    wait_until("both datagrams are counted", SOON, counted).with_context(|| network.counters())?;
    for agent in [node, other] {
        assert!(!agent.get(&["flows"])?.contains("10.7.1.2"));
    }
    Ok(())
}

/// ICMP errors about the replies are routed to the node that has the Service's address. It did not
/// send these replies, and forwards the errors to the backend's node.
fn large_replies_fit_through_a_narrow_path_to_the_client(sending: Sending) -> Result<()> {
    Tunnels::new(sending, 1400)?.get_large()
}

#[test]
fn large_responses_cross_a_smaller_mtu_to_the_client_by_xdp() -> Result<()> {
    large_replies_fit_through_a_narrow_path_to_the_client(Sending::Xdp)
}

#[test]
fn large_responses_cross_a_smaller_mtu_to_the_client_without_xdp() -> Result<()> {
    large_replies_fit_through_a_narrow_path_to_the_client(Sending::TcAlone)
}
