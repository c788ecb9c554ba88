//! Connections from processes of the node itself to Services.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{Echo, Host, Process, SOON, wait_until};

const SOCKET: &str = env!("CARGO_BIN_EXE_socket");
const ANY4: &str = "0.0.0.0:0";
const ANY6: &str = "[::]:0";

/// Two Services, `web` (TCP) and `dns` (UDP), in both families, and the nodes of their endpoints.
#[derive(Clone, Copy, Default)]
struct Services<'a> {
    /// Numbers of pods, and the `nodeName` of each one's endpoint.
    endpoints: &'a [(usize, &'a str)],
    /// Further fields of both Services' specs.
    more: &'a str,
}

impl Services<'_> {
    fn manifests(&self) -> String {
        self.service("web", "10.96.0.10", "fd00:10:96::a", "TCP", 80, 8080, 30080)
            + &self.service("dns", "10.96.0.53", "fd00:10:96::53", "UDP", 53, 5300, 30053)
    }

    #[allow(clippy::too_many_arguments, reason = "a table's columns")]
    fn service(
        &self,
        name: &str,
        v4: &str,
        v6: &str,
        protocol: &str,
        port: u16,
        target: u16,
        node_port: u16,
    ) -> String {
        let more = self.more;
        let service = format!(
            "apiVersion: v1\n\
             kind: Service\n\
             metadata: {{name: {name}}}\n\
             spec:\n\
             \x20 type: NodePort\n\
             \x20 clusterIP: {v4}\n\
             \x20 clusterIPs: [{v4}, \"{v6}\"]\n\
             \x20 ipFamilies: [IPv4, IPv6]\n\
             \x20 ports: [{{port: {port}, protocol: {protocol}, nodePort: {node_port}}}]\n\
             {more}\
             ---\n"
        );
        let slices =
            [("IPv4", "10.244.1."), ("IPv6", "fd00:10:244:1::")].map(|(family, prefix)| {
                let endpoints: String = self
                    .endpoints
                    .iter()
                    .map(|(pod, node)| {
                        format!("  - {{addresses: [\"{prefix}{}\"], nodeName: {node}}}\n", 10 + pod)
                    })
                    .collect();
                let (label, suffix) = ("kubernetes.io/service-name", family.to_lowercase());
                format!(
                    "apiVersion: discovery.k8s.io/v1\n\
                 kind: EndpointSlice\n\
                 metadata: {{name: {name}-{suffix}, labels: {{{label}: {name}}}}}\n\
                 addressType: {family}\n\
                 ports: [{{port: {target}, protocol: {protocol}}}]\n\
                 endpoints:\n{endpoints}\
                 ---\n"
                )
            });
        service + &slices.concat()
    }
}

/// A node with the agent, and pods with servers of TCP and UDP.
struct Case {
    agent: Agent,
    manifests: PathBuf,
    _servers: Vec<Echo>,
    network: OneNode,
}

impl Case {
    fn new(pods: usize, services: Services) -> Result<Self> {
        let network = OneNode::warm(pods)?;
        let mut servers = Vec::new();
        for (number, pod) in network.pods.iter().enumerate() {
            let ends = ["10.244.1.", "fd00:10:244:1::"].map(|prefix| {
                let address = format!("{prefix}{}", 10 + number);
                if address.contains(':') { format!("[{address}]") } else { address }
            });
            for end in ends {
                servers.push(pod.host.udp_echo(&format!("{end}:5300"), &pod.name)?);
            }
        }
        let (agent, manifests) = network.agent_on(&services.manifests())?;
        Ok(Self { agent, manifests, _servers: servers, network })
    }

    fn change(&self, services: Services) -> Result<()> {
        Ok(fs::write(&self.manifests, services.manifests())?)
    }

    /// Performs these actions on one socket of the node, and returns the result of each.
    fn socket(&self, protocol: &str, bind: &str, actions: &[&str]) -> Result<Vec<String>> {
        came_of(&self.network.node, protocol, bind, actions)
    }

    /// Starts a socket that keeps running in the background.
    fn start(&self, protocol: &str, bind: &str, actions: &[&str]) -> Result<Process> {
        let node = &self.network.node;
        let mut command = node.command(SOCKET);
        node.spawn(command.args([protocol, bind]).args(actions))
    }

    /// A map's entries, as bpftool dumps them.
    fn entries(&self, map: &str) -> Result<Vec<serde_json::Value>> {
        let path = self.network.pin_path().join(map);
        let path = path.to_string_lossy();
        let dump = self.network.node.run(["bpftool", "-j", "map", "dump", "pinned", &path])?;
        Ok(serde_json::from_str(&dump)?)
    }

    /// How often a reason was counted.
    fn counted(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get(&["counters"])?;
        let line = counters.lines().find(|line| line.split_whitespace().any(|w| w == reason));
        let line = line.with_context(|| format!("{reason} is not among:\n{counters}"))?;
        let count = line.split_whitespace().find_map(|word| word.parse().ok());
        count.with_context(|| format!("no number in {line}"))
    }
}

fn came_of(host: &Host, protocol: &str, bind: &str, actions: &[&str]) -> Result<Vec<String>> {
    let words = [SOCKET, protocol, bind].into_iter().chain(actions.iter().copied());
    let output = host.run(words)?;
    let lines: Vec<String> = output
        .lines()
        .zip(actions)
        .map(|(line, action)| {
            let came = line.strip_prefix(action).and_then(|line| line.strip_prefix(": "));
            came.map(str::to_owned).with_context(|| format!("{line} is not the result of {action}"))
        })
        .collect::<Result<_>>()?;
    ensure!(lines.len() == actions.len(), "not all actions have a result:\n{output}");
    Ok(lines)
}

const ONE: Services = Services { endpoints: &[(0, "node")], more: "" };
const NONE: Services = Services { endpoints: &[], more: "" };

#[test]
fn a_process_reaches_a_service_and_sees_the_frontend_as_its_peer() -> Result<()> {
    let case = Case::new(1, ONE)?;
    for (host, remote) in [
        ("10.96.0.10:80", "10.96.0.10 80"),
        ("[fd00:10:96::a]:80", "fd00:10:96::a 80"),
        // NodePorts are open on the node's own addresses.
        ("192.0.2.1:30080", "192.0.2.1 30080"),
        ("[2001:db8::1]:30080", "2001:db8::1 30080"),
        // An IPv6 socket that connects to an IPv4 address. curl prints the IPv4-mapped peer.
        ("[::ffff:10.96.0.10]:80", "::ffff:10.96.0.10 80"),
    ] {
        let url = format!("http://{host}/");
        let shown = "%{remote_ip} %{remote_port}";
        let log = case.network.node.curl_with(&["--write-out", shown], &url)?;
        assert_eq!(log, format!("pod-0\n{remote}"), "{url}");
    }
    Ok(())
}

/// A registry of the cluster that the container runtime reaches as localhost, for example.
#[test]
fn processes_reach_node_ports_on_localhost_and_nobody_else_does() -> Result<()> {
    let network = OneNode::warm(1)?;
    let _server = network.pods[0].host.udp_echo("10.244.1.10:5300", "pod-0")?;
    let more = ["--nodeport-addresses", "localhost"];
    let agent = network.agent_with(&ONE.manifests(), &more)?;
    for (host, remote) in [
        ("127.0.0.1:30080", "127.0.0.1 30080"),
        ("[::1]:30080", "::1 30080"),
        ("[::ffff:127.0.0.1]:30080", "::ffff:127.0.0.1 30080"),
    ] {
        let shown = "%{remote_ip} %{remote_port}";
        let url = format!("http://{host}/");
        let page = network.node.curl_with(&["--write-out", shown], &url)?;
        ensure!(page == format!("pod-0\n{remote}"), "{url}: {page}");
    }
    let ask = ["ask=hello@127.0.0.1:30053", "ask=again@127.0.0.1:30053"];
    for answer in came_of(&network.node, "udp", ANY4, &ask)? {
        ensure!(answer.ends_with("from 127.0.0.1:30053"), "{answer}");
    }
    // No other address has the port.
    ensure!(network.curl("http://192.0.2.1:30080/").is_err(), "open on the node's address");
    drop(agent);
    Ok(())
}

#[test]
fn a_node_port_is_not_open_on_loopback() -> Result<()> {
    let case = Case::new(1, ONE)?;
    for end in ["127.0.0.1:30080", "0.0.0.0:30080", "[::1]:30080", "[::]:30080"] {
        let came = case.socket("tcp", ANY4, &[&format!("connect={end}")])?;
        assert_eq!(came, ["Connection refused (os error 111)"], "{end}");
    }
    assert!(case.entries("CONNECTED4")?.is_empty());
    assert_eq!(case.counted("no_backend")?, 0, "refused by the kernel, not by Millrace");
    Ok(())
}

#[test]
fn datagrams_of_a_process_reach_a_service_and_replies_come_from_it() -> Result<()> {
    let case = Case::new(1, ONE)?;
    for (bind, end) in [
        (ANY4, "10.96.0.53:53"),
        (ANY6, "[fd00:10:96::53]:53"),
        (ANY4, "192.0.2.1:30053"),
        (ANY6, "[2001:db8::1]:30053"),
        (ANY6, "[::ffff:10.96.0.53]:53"),
    ] {
        let connect = format!("connect={end}");
        let connected = case.socket("udp", bind, &[&connect, "peer", "ask=hello", "ask=again"])?;
        assert_eq!(connected[..2], ["done", end], "{end}");
        for (answer, asked) in connected[2..].iter().zip(["hello", "again"]) {
            let is_as_expected =
                answer.starts_with("pod-0 ") && answer.ends_with(&format!("{asked} from {end}"));
            assert!(is_as_expected, "{end}, connected: {answer}");
        }

        let ask = format!("ask=hello@{end}");
        for answer in case.socket("udp", bind, &[&ask, &ask])? {
            let is_as_expected =
                answer.starts_with("pod-0 ") && answer.ends_with(&format!("hello from {end}"));
            assert!(is_as_expected, "{end}, unconnected: {answer}");
        }
    }
    Ok(())
}

/// As NodeLocal DNSCache does it: a server of the node takes the ClusterIP of a DNS Service, on an interface of its own,
/// and forwards to the pods by another Service.
#[test]
fn a_cache_on_the_node_that_takes_a_cluster_ip_serves_processes_and_pods() -> Result<()> {
    let network = OneNode::warm(2)?;
    let _server = network.pods[0].host.udp_echo("10.244.1.10:5300", "pod-0")?;
    let manifests = ONE.manifests()
        + &ONE.service("upstream", "10.96.0.54", "fd00:10:96::54", "UDP", 53, 5300, 30054);
    let pods = ["--workload-device", "pod-*"];
    let mut agent = network.agent_with(&manifests, &pods)?;
    let node = &network.node;
    let answer_of = |client: &Host, server: &str| {
        let came = came_of(client, "udp", ANY4, &[&format!("ask=hello@{server}:53")])?.remove(0);
        anyhow::Ok(came.split(' ').next().unwrap_or_default().to_owned())
    };
    let dns_is_served_by = |name: &str| {
        for client in [node, &network.pods[1].host] {
            let what = format!("{} is answered by {name}", client.name());
            wait_until(&what, SOON, || {
                answer_of(client, "10.96.0.53").is_ok_and(|answer| answer == name)
            })?;
            ensure!(answer_of(client, "10.96.0.54")? == "pod-0", "another Service is translated");
        }
        Ok(())
    };
    dns_is_served_by("pod-0")?;
    node.ip("link add nodelocaldns type bridge")?;
    node.ip("link set nodelocaldns up")?;
    for address in ["169.254.20.10/32", "10.96.0.53/32"] {
        node.address("nodelocaldns", address)?;
    }
    let cache = node.udp_echo("10.96.0.53:53", "cache")?;
    dns_is_served_by("cache")?;
    let got = "interfaces of this node got or lost ClusterIPs of Services";
    agent.wait_for_output(got)?;
    agent.kill();
    let mut agent = network.start_agent(&pods)?;
    dns_is_served_by("cache")?;
    let left = "ClusterIPs of Services are left to interfaces of this node";
    agent.wait_for_output(left)?;
    let line = agent.log().lines().find(|line| line.contains(left)).map(str::to_owned);
    let is_named = |line: String| line.contains("count=1") && line.contains("default/dns");
    ensure!(line.is_some_and(is_named), "{}", agent.log());
    drop(cache);
    node.ip("link delete nodelocaldns")?;
    dns_is_served_by("pod-0")
}

#[test]
fn one_socket_can_use_a_service_and_its_backend_directly() -> Result<()> {
    let case = Case::new(1, ONE)?;
    // Under its own address the backend replies as itself, even after the socket has reached it
    // through the Service.
    let (service, itself) = ("10.96.0.53:53", "10.244.1.10:5300");
    let actions = [service, itself, service].map(|end| format!("ask=hello@{end}"));
    let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
    let came = case.socket("udp", ANY4, &actions)?;
    for (answer, end) in came.iter().zip([service, itself, service]) {
        assert!(answer.ends_with(&format!("hello from {end}")), "{answer}");
    }
    let connects = [service, itself].map(|end| format!("connect={end}"));
    let came = case.socket("udp", ANY4, &[&connects[0], "peer", &connects[1], "peer"])?;
    assert_eq!(came, ["done", service, "done", itself]);
    Ok(())
}

#[test]
fn without_backends_a_process_is_refused_at_once() -> Result<()> {
    let case = Case::new(1, NONE)?;
    let refused = "Connection refused (os error 111)";
    for (protocol, bind, action) in [
        ("tcp", ANY4, "connect=10.96.0.10:80"),
        ("tcp", ANY6, "connect=[fd00:10:96::a]:80"),
        ("tcp", ANY6, "connect=[::ffff:10.96.0.10]:80"),
        ("tcp", ANY4, "connect=192.0.2.1:30080"),
        ("udp", ANY4, "connect=10.96.0.53:53"),
        ("udp", ANY4, "ask=hello@10.96.0.53:53"),
        ("udp", ANY6, "ask=hello@[fd00:10:96::53]:53"),
        ("udp", ANY6, "ask=hello@[::ffff:10.96.0.53]:53"),
    ] {
        let before = case.counted("no_backend")?;
        assert_eq!(case.socket(protocol, bind, &[action])?, [refused], "{protocol} {action}");
        assert_eq!(case.counted("no_backend")?, before + 1, "{protocol} {action}");
    }
    Ok(())
}

#[test]
fn internal_policy_local_selects_only_local_backends() -> Result<()> {
    let local = "  internalTrafficPolicy: Local\n";
    let elsewhere = Services { endpoints: &[(0, "elsewhere")], more: local };
    let case = Case::new(2, elsewhere)?;
    let connect = "connect=10.96.0.10:80";
    assert_eq!(case.socket("tcp", ANY4, &[connect])?, ["No route to host (os error 113)"]);
    assert_eq!(case.counted("no_local_backend")?, 1);

    case.change(Services { endpoints: &[(0, "elsewhere"), (1, "node")], more: local })?;
    let connected = || case.socket("tcp", ANY4, &[connect]).is_ok_and(|came| came == ["done"]);
    wait_until("the node connects to the local pod", SOON, connected)?;
    for _ in 0..10 {
        let ask = ["ask=hello@10.96.0.53:53"];
        let came = case.socket("udp", ANY4, &ask)?;
        assert!(came[0].starts_with("pod-1 "), "{came:?}");
    }
    Ok(())
}

#[test]
fn external_policy_local_does_not_apply_to_the_node_itself() -> Result<()> {
    let local = "  externalTrafficPolicy: Local\n";
    let case = Case::new(1, Services { endpoints: &[(0, "elsewhere")], more: local })?;
    let came = case.socket("udp", ANY4, &["ask=hello@192.0.2.1:30053"])?;
    assert!(came[0].starts_with("pod-0 "), "{came:?}");
    Ok(())
}

#[test]
fn sockets_of_other_namespaces_are_left_alone() -> Result<()> {
    let case = Case::new(1, NONE)?;
    // The pod's process is in the same cgroup. Its sockets are not translated.
    let pod = &case.network.pods[0].host;
    let connect = ["connect=10.96.0.53:53"];
    assert_eq!(case.socket("udp", ANY4, &connect)?, ["Connection refused (os error 111)"]);
    assert_eq!(came_of(pod, "udp", ANY4, &connect)?, ["done"]);
    assert_eq!(case.counted("no_backend")?, 1);

    case.change(ONE)?;
    let connected = || case.socket("udp", ANY4, &connect).is_ok_and(|came| came == ["done"]);
    wait_until("the node's socket is connected", SOON, connected)?;
    assert_eq!(came_of(pod, "udp", ANY4, &connect)?, ["done"]);
    assert!(case.entries("CONNECTED4")?.is_empty(), "entries of closed sockets are removed");
    Ok(())
}

#[test]
fn connected_sockets_are_closed_when_their_backend_is_removed() -> Result<()> {
    let case = Case::new(2, ONE)?;
    let ends = ["10.96.0.10:80", "[fd00:10:96::a]:80", "[::ffff:10.96.0.10]:80"];
    let datagram_ends = ["10.96.0.53:53", "[fd00:10:96::53]:53", "[::ffff:10.96.0.53]:53"];
    let mut sockets = Vec::new();
    for (protocol, end) in
        ends.map(|end| ("tcp", end)).into_iter().chain(datagram_ends.map(|end| ("udp", end)))
    {
        let bind = if end.starts_with('[') { ANY6 } else { ANY4 };
        let mut socket =
            case.start(protocol, bind, &[&format!("connect={end}"), "peer", "hold"])?;
        socket.wait_for_output(&format!("peer: {end}"), SOON)?;
        sockets.push(socket);
    }
    // Connected to the same pod directly, without a Service.
    let mut direct = case.start("udp", ANY4, &["connect=10.244.1.10:5300", "peer", "hold"])?;
    direct.wait_for_output("peer: 10.244.1.10:5300", SOON)?;

    case.change(Services { endpoints: &[(0, "node"), (1, "node")], more: "" })?;
    let other = || {
        let came = case.socket("udp", ANY4, &["ask=hello@10.96.0.53:53"]);
        came.is_ok_and(|came| came[0].starts_with("pod-1 "))
    };
    wait_until("the new pod gets flows", SOON, other)?;
    for socket in &mut sockets {
        assert!(!socket.has_ended(), "closed, but its backend exists: {}", socket.output());
    }

    case.change(Services { endpoints: &[(1, "node")], more: "" })?;
    for socket in &mut sockets {
        socket.wait_for_output("hold: Software caused connection abort (os error 103)", SOON)?;
    }
    assert!(!direct.has_ended(), "closed, but it does not use a Service: {}", direct.output());
    Ok(())
}

#[test]
fn connections_to_a_terminating_backend_continue() -> Result<()> {
    let case = Case::new(1, ONE)?;
    let mut sockets = Vec::new();
    for (protocol, end) in [("tcp", "10.96.0.10:80"), ("udp", "10.96.0.53:53")] {
        let connect = format!("connect={end}");
        let mut socket = case.start(protocol, ANY4, &[&connect, "peer", "hold"])?;
        socket.wait_for_output(&format!("peer: {end}"), SOON)?;
        sockets.push(socket);
    }
    // The only endpoint, so new connections go to it, too. A second Service shows when the change
    // is programmed.
    let terminating = "node, conditions: {ready: false, serving: true, terminating: true}";
    let services = Services { endpoints: &[(0, terminating)], more: "" };
    let beside = services.service("beside", "10.96.0.99", "fd00:10:96::99", "TCP", 80, 8080, 30099);
    fs::write(&case.manifests, services.manifests() + &beside)?;
    let programmed =
        || case.socket("tcp", ANY4, &["connect=10.96.0.99:80"]).is_ok_and(|came| came == ["done"]);
    wait_until("the change is programmed", SOON, programmed)?;
    for socket in &mut sockets {
        assert!(!socket.has_ended(), "closed: {}", socket.output());
    }

    // Once the endpoint is removed, they are closed: so the check above can fail.
    case.change(NONE)?;
    for socket in &mut sockets {
        socket.wait_for_output("hold: Software caused connection abort (os error 103)", SOON)?;
    }
    Ok(())
}

#[test]
fn an_unconnected_socket_keeps_its_backend_until_it_is_removed() -> Result<()> {
    let case = Case::new(2, ONE)?;
    let mut sockets = Vec::new();
    for (bind, end) in [(ANY4, "10.96.0.53:53"), (ANY6, "[fd00:10:96::53]:53")] {
        for _ in 0..6 {
            let mut socket = case.start("udp", bind, &[&format!("keep-asking={end}")])?;
            socket.wait_for_output("pod-0 ", SOON)?;
            sockets.push((socket, end));
        }
    }
    case.change(Services { endpoints: &[(0, "node"), (1, "node")], more: "" })?;
    let other = || {
        let came = case.socket("udp", ANY4, &["ask=hello@10.96.0.53:53"]);
        came.is_ok_and(|came| came[0].starts_with("pod-1 "))
    };
    wait_until("the new pod gets flows", SOON, other)?;
    for (socket, _) in &sockets {
        assert!(!socket.output().contains("pod-1 "), "moved: {}", socket.output());
    }
    case.change(Services { endpoints: &[(1, "node")], more: "" })?;
    for (socket, end) in &mut sockets {
        socket.wait_for_output("pod-1 ", SOON)?;
        let output = socket.output();
        let from = format!(" from {end}");
        assert!(output.lines().all(|line| line.ends_with(&from)), "from another address: {output}");
    }
    Ok(())
}

/// Another Service keeps the backend, so that it is not removed.
#[test]
fn sockets_of_datagrams_leave_a_backend_that_leaves_their_service() -> Result<()> {
    let case = Case::new(2, ONE)?;
    let other = ONE.service("other", "10.96.0.54", "fd00:10:96::54", "UDP", 54, 5300, 30054);
    let set = |services: Services| fs::write(&case.manifests, services.manifests() + &other);
    set(ONE)?;
    let is_served = || {
        let came = case.socket("udp", ANY4, &["ask=hello@10.96.0.54:54"]);
        came.is_ok_and(|came| came[0].starts_with("pod-0 "))
    };
    wait_until("the other Service is served", SOON, is_served)?;
    let connected = |bind, end| -> Result<Process> {
        let mut socket = case.start("udp", bind, &[&format!("connect={end}"), "peer", "hold"])?;
        socket.wait_for_output(&format!("peer: {end}"), SOON)?;
        Ok(socket)
    };
    let mut sockets = Vec::new();
    for (bind, end) in [(ANY4, "10.96.0.53:53"), (ANY6, "[fd00:10:96::53]:53")] {
        let mut asking = case.start("udp", bind, &[&format!("keep-asking={end}")])?;
        asking.wait_for_output("pod-0 ", SOON)?;
        sockets.push((asking, connected(bind, end)?));
    }
    let mut of_the_other = connected(ANY4, "10.96.0.54:54")?;

    set(Services { endpoints: &[(1, "node")], more: "" })?;
    for (asking, connected) in &mut sockets {
        asking.wait_for_output("pod-1 ", SOON)?;
        connected.wait_for_output("hold: Software caused connection abort (os error 103)", SOON)?;
    }
    assert!(!of_the_other.has_ended(), "{}", of_the_other.output());
    assert!(is_served());
    Ok(())
}

#[test]
fn processes_reach_services_without_an_agent_and_after_its_restart() -> Result<()> {
    let Case { agent, manifests, network, _servers } = Case::new(1, ONE)?;
    let is_served = || {
        let ask = ["ask=hello@10.96.0.53:53", "connect=10.96.0.53:53", "peer"];
        let came = came_of(&network.node, "udp", ANY4, &ask)?;
        ensure!(came[0].starts_with("pod-0 ") && came[2] == "10.96.0.53:53", "{came:?}");
        Ok(())
    };
    is_served()?;
    let links = attached(&network)?;
    assert_eq!(links.len(), 9, "{links:?}");

    agent.kill();
    is_served().context("the kernel keeps translating without an agent")?;

    network.forget_programs()?;
    let _agent = network.agent(&manifests)?;
    is_served().context("with the next agent")?;
    let replaced = attached(&network)?;
    assert_eq!(replaced.len(), 9, "new programs attached next to old ones: {replaced:?}");
    assert!(replaced.iter().all(|id| !links.contains(id)), "old programs are still attached");
    Ok(())
}

#[test]
fn an_agent_closes_sockets_whose_backends_were_removed_before_it_started() -> Result<()> {
    let Case { agent, manifests, network, _servers } = Case::new(2, ONE)?;
    let mut command = network.node.command(SOCKET);
    let actions = ["udp", ANY4, "connect=10.96.0.53:53", "peer", "hold"];
    let mut held = network.node.spawn(command.args(actions))?;
    held.wait_for_output("peer: 10.96.0.53:53", SOON)?;
    agent.kill();
    fs::write(&manifests, Services { endpoints: &[(1, "node")], more: "" }.manifests())?;
    let _agent = network.agent(&manifests)?;
    held.wait_for_output("hold: Software caused connection abort (os error 103)", SOON)
}

#[test]
fn an_agent_with_another_cgroup_detaches_from_the_old_one() -> Result<()> {
    let Case { agent, network, manifests, _servers } = Case::new(1, ONE)?;
    agent.kill();
    let inner = network.topology.cgroup().join("inner");
    fs::create_dir(&inner)?;
    let more = ["--cgroup", &inner.to_string_lossy()];
    let agent = Agent::start(&network.node, &network.pin_path(), &manifests, DEVICE, &more)?;
    let is_empty = || attached(&network).is_ok_and(|programs| programs.is_empty());
    wait_until("no program is attached to the old cgroup", SOON, is_empty)?;
    assert_eq!(attached_to(&network, &inner)?.len(), 9);

    agent.kill();
    fs::remove_dir(&inner)?;
    // The pinned links still exist, but their cgroup does not.
    let _agent = network.agent(&manifests)?;
    assert_eq!(attached(&network)?.len(), 9);
    let came = came_of(&network.node, "udp", ANY4, &["ask=hello@10.96.0.53:53"])?;
    assert!(came[0].starts_with("pod-0 "), "{came:?}");
    Ok(())
}

#[test]
fn cleanup_detaches_all_cgroup_programs() -> Result<()> {
    let Case { agent, network, .. } = Case::new(1, ONE)?;
    assert_eq!(attached(&network)?.len(), 9);
    assert!(agent.terminate()?.success());
    assert_eq!(attached(&network)?.len(), 9, "on shutdown the agent leaves its programs attached");
    let program = program()?;
    let pins = network.pin_path();
    let words = ["cleanup", "--pin-path"].map(OsStr::new);
    network.node.run([program.as_os_str(), words[0], words[1], pins.as_os_str()])?;
    // The kernel releases links asynchronously.
    let is_empty = || attached(&network).is_ok_and(|programs| programs.is_empty());
    wait_until("no program is attached", SOON, is_empty)
}

/// The ids of the programs attached to the test's cgroup.
fn attached(network: &OneNode) -> Result<Vec<u64>> {
    attached_to(network, network.topology.cgroup())
}

fn attached_to(network: &OneNode, group: &Path) -> Result<Vec<u64>> {
    let group = group.to_string_lossy();
    let shown = network.node.run(["bpftool", "-j", "cgroup", "show", &group])?;
    // bpftool prints nothing for a cgroup without programs.
    let shown: Vec<serde_json::Value> =
        if shown.trim().is_empty() { Vec::new() } else { serde_json::from_str(&shown)? };
    Ok(shown.iter().filter_map(|program| program["id"].as_u64()).collect())
}
