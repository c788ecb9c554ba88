//! The topology of the demonstration, the benchmark and most tests: a client connected to a node,
//! and pods on the node with a web server each.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::programs::agent::{Agent, AgentSource, program};
use crate::worlds::topology::{Certificate, Host, Process, SOON, Topology, wait_until};

pub const CLIENT: &str = "192.0.2.2";
pub const NODE: &str = "192.0.2.1";
pub const NODE6: &str = "2001:db8::1";
/// The node's device to the client.
pub const DEVICE: &str = "ext0";

/// A Service of the first pod's web server.
pub const WEB: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  externalIPs: [203.0.113.10]
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: node}]
";

/// A Service whose address is in a pool.
const ANNOUNCED: &str = "---
apiVersion: v1
kind: Service
metadata: {name: announced}
spec: {type: LoadBalancer, clusterIP: 10.96.0.250, ports: [{port: 80}]}
";

/// Services that reject a client: `nobody` has no endpoints, `private` excludes the client.
pub const REFUSED: &str = "
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec:
  clusterIP: 10.96.0.12
  externalIPs: [203.0.113.10]
  ports: [{name: http, port: 82}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: private}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.13
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: dns, port: 53, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.11}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: private-4, labels: {kubernetes.io/service-name: private}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}]
endpoints:
- {addresses: [10.244.1.10], nodeName: node}
";

pub struct OneNode {
    pub client: Host,
    pub node: Host,
    pub pods: Vec<Pod>,
    pub topology: Topology,
}

pub struct Pod {
    pub host: Host,
    pub name: String,
    _server: Process,
}

impl OneNode {
    /// Creates the topology with pods from 10.244.1.10 and fd00:10:244:1::10 on.
    pub fn with_pods(count: usize) -> Result<Self> {
        let topology = Topology::new("one-node")?;
        let client = topology.host("client")?;
        let node = topology.router("node")?;
        topology.link(
            client.port("eth0").addresses(&["192.0.2.2/24", "2001:db8::2/64"]).wire(),
            node.port(DEVICE).addresses(&["192.0.2.1/24", "2001:db8::1/64"]),
        )?;
        client.default_routes(&[NODE, NODE6])?;
        let pods = (0..count).map(|number| Pod::new(&node, number)).collect::<Result<_>>()?;
        Ok(Self { client, node, pods, topology })
    }

    /// A node with pods, for tests to which it does not matter whether the agent loads its programs
    /// ([`Topology::warm_agent_pins`]).
    pub fn warm(pods: usize) -> Result<Self> {
        let network = Self::with_pods(pods)?;
        network.topology.warm_agent_pins();
        Ok(network)
    }

    /// Adds another node behind a second device, `in0`: 10.0.0.2 and fd00:a::2. Its routes to the
    /// client and the pods lead through this node.
    pub fn other_node(&self) -> Result<Host> {
        let other = self.topology.host("other")?;
        self.topology.link(
            other.port("eth0").addresses(&["10.0.0.2/24", "fd00:a::2/64"]).wire(),
            self.node.port("in0").addresses(&["10.0.0.1/24", "fd00:a::1/64"]),
        )?;
        other.default_routes(&["10.0.0.1", "fd00:a::1"])?;
        Ok(other)
    }

    /// The agent's pin path, which does not exist before the agent starts.
    pub fn pin_path(&self) -> PathBuf {
        self.topology.agent_pins()
    }

    /// Starts the agent with a file or directory of manifests.
    pub fn agent(&self, manifests: &Path) -> Result<Agent> {
        Agent::start(&self.node, &self.pin_path(), manifests, DEVICE, &[])
    }

    /// Starts the agent with the text of manifests; also returns their file, which can be changed.
    pub fn agent_on(&self, text: &str) -> Result<(Agent, PathBuf)> {
        let file = self.write_manifests(text)?;
        Ok((self.agent(&file)?, file))
    }

    /// Starts the agent with the text of manifests and more arguments.
    pub fn agent_with(&self, text: &str, more: &[&str]) -> Result<Agent> {
        let file = self.write_manifests(text)?;
        Agent::start(&self.node, &self.pin_path(), &file, DEVICE, more)
    }

    /// Starts the agent with the text of manifests and one more Service, whose address the node announces.
    pub fn agent_that_announces(&self, text: &str) -> Result<Agent> {
        let text = format!("{text}{ANNOUNCED}");
        self.agent_with(&text, &["--load-balancer-addresses", "192.0.2.200"])
    }

    /// Starts an agent with the manifests that have been written last.
    pub fn start_agent(&self, more: &[&str]) -> Result<Agent> {
        Agent::start(&self.node, &self.pin_path(), &self.topology.manifests(), DEVICE, more)
    }

    pub fn write_manifests(&self, text: &str) -> Result<PathBuf> {
        self.topology.write_manifests(text)
    }

    /// A command of `millrace` on the node, with the agent's pin path.
    pub fn millrace(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.node.command(program()?);
        command.args(arguments).arg("--pin-path").arg(self.pin_path());
        Ok(command)
    }

    /// Starts an agent whose API server does not respond: it has adopted its maps, and waits.
    pub fn agent_that_waits(&self) -> Result<Agent> {
        let mut agent = self.agent_of_api_server("http://127.0.0.1:9")?;
        agent.wait_for_output("retrying kind=EndpointSlice ")?;
        agent.wait_for_output("retrying kind=Service ")?;
        // The health port is open as soon as the agent has its maps.
        let health = ["curl", "--silent", "--fail", "http://127.0.0.1:10256/livez"];
        wait_until("the agent has its maps", SOON, || self.node.run(health).is_ok())?;
        Ok(agent)
    }

    /// Starts an agent whose API server has this address, without waiting.
    pub fn agent_of_api_server(&self, address: &str) -> Result<Agent> {
        let kubeconfig = self.topology.directory().join("kubeconfig");
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: default
contexts: [{{name: default, context: {{cluster: default, user: nobody}}}}]
clusters: [{{name: default, cluster: {{server: '{address}'}}}}]
users: [{{name: nobody, user: {{}}}}]
"
        );
        std::fs::write(&kubeconfig, text)?;
        Agent::launch(&self.node, &self.pin_path(), AgentSource::Cluster(&kubeconfig), DEVICE, &[])
    }

    /// Makes the next agent load its programs, like one of another build.
    pub fn forget_programs(&self) -> Result<()> {
        let programs = self.pin_path().join("programs");
        std::fs::remove_dir_all(&programs).with_context(|| programs.display().to_string())
    }

    /// Runs `millrace cleanup`.
    pub fn cleanup(&self) -> Result<()> {
        let output = self.millrace(&["cleanup"])?.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Starts the agent with the embedded API, for `kubectl`.
    pub fn standalone(&self) -> Result<Agent> {
        self.standalone_with(&[])
    }

    /// Starts the agent with the embedded API and more arguments.
    pub fn standalone_with(&self, more: &[&str]) -> Result<Agent> {
        Agent::standalone(&self.node, &self.pin_path(), &self.data_directory(), DEVICE, more)
    }

    /// Creates a self-signed certificate for a host.
    pub fn certificate(&self, host: &str, name: &str) -> Result<Certificate> {
        self.node.certificate(self.topology.directory(), name, &[host])
    }

    /// Creates or replaces a TLS Secret.
    pub fn tls_secret(&self, name: &str, pair: &Certificate) -> Result<()> {
        let [certificate, key] = [("cert", &pair.certificate), ("key", &pair.key)]
            .map(|(name, path)| format!("--{name}={}", path.display()));
        let create = ["create", "secret", "tls", name, &certificate, &key];
        let text = self.kubectl(&[&create[..], &["--dry-run=client", "-o", "yaml"]].concat())?;
        let file = self.topology.directory().join(format!("{name}.yaml"));
        std::fs::write(&file, text)?;
        self.kubectl(&["apply", "-f", &file.to_string_lossy()])?;
        Ok(())
    }

    /// Gets a page over TLS as the client, from the node. `authority`: whose certificates are accepted.
    pub fn curl_tls(&self, host: &str, authority: &Path, headers: &[&str]) -> Result<String> {
        let (resolve, authority) = (format!("{host}:443:{NODE}"), authority.to_string_lossy());
        let mut words = vec!["--resolve", &resolve, "--cacert", &authority];
        words.extend(headers.iter().flat_map(|header| ["--header", header]));
        let page = self.client.curl_with(&words, &format!("https://{host}/"))?;
        Ok(page.trim().to_owned())
    }

    fn data_directory(&self) -> PathBuf {
        self.topology.directory().join("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_directory().join("kubeconfig")
    }

    /// Runs kubectl on the node with the API of `standalone`.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let (kubeconfig, cache) = (self.kubeconfig(), self.data_directory().join("cache"));
        let own = [
            OsStr::new("kubectl"),
            OsStr::new("--kubeconfig"),
            kubeconfig.as_os_str(),
            OsStr::new("--cache-dir"),
            cache.as_os_str(),
        ];
        self.node.run(own.into_iter().chain(arguments.iter().map(OsStr::new)))
    }

    /// Gets a page as the client.
    pub fn curl(&self, url: &str) -> Result<String> {
        self.client.curl(url)
    }

    /// Waits until the client gets a page from this pod.
    pub fn wait_for_pod(&self, url: &str, pod: &str) -> Result<()> {
        let is_there = || self.curl(url).is_ok_and(|page| page.trim() == pod);
        wait_until(&format!("{url} is served by {pod}"), SOON, is_there)
    }
}

/// Whether kubectl exists: the tests do not install it.
pub fn has_kubectl() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join("kubectl").exists())
}

impl Pod {
    fn new(node: &Host, number: usize) -> Result<Self> {
        let name = format!("pod-{number}");
        let address = format!("10.244.1.{}", 10 + number);
        let address6 = format!("fd00:10:244:1::{}", 10 + number);
        let host = node.pod(&name, &[&address, &address6])?;
        let listen = [format!("{address}:8080"), format!("[{address6}]:8080")];
        let server = host.http_server(&[&listen[0], &listen[1]], &name)?;
        Ok(Self { host, name, _server: server })
    }
}
