//! The network that the demonstration, the benchmark and most tests use: a client, wired to a
//! node, and pods on that node with a web server each.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Agent, Host, Network, Process, wire};

pub const CLIENT: &str = "192.0.2.2";
pub const NODE: &str = "192.0.2.1";
pub const NODE6: &str = "2001:db8::1";
/// The node's device towards the client.
pub const DEVICE: &str = "ext0";

pub struct OneNode {
    pub client: Host,
    pub node: Host,
    pub pods: Vec<Pod>,
    pub network: Network,
}

pub struct Pod {
    pub host: Host,
    pub name: String,
    pub address: String,
    pub address6: String,
    server: Option<Process>,
}

impl OneNode {
    /// With so many pods, at 10.244.1.10 and following, and fd00:10:244:1::10 and following.
    pub fn with_pods(count: usize) -> Result<Self> {
        let mut network = Network::new()?;
        let client = network.host("client")?;
        let node = network.router("node")?;
        wire(
            client.port("eth0").address("192.0.2.2/24").address("2001:db8::2/64").whole_checksums(),
            node.port(DEVICE).address("192.0.2.1/24").address("2001:db8::1/64"),
        )?;
        client.route("default", NODE)?;
        client.route("default", NODE6)?;
        let pods = (0..count)
            .map(|number| {
                let name = format!("pod-{number}");
                let address = format!("10.244.1.{}", 10 + number);
                let address6 = format!("fd00:10:244:1::{}", 10 + number);
                let host = network.pod(&node, &name, &[&address, &address6])?;
                let listen = [format!("{address}:8080"), format!("[{address6}]:8080")];
                let listen = [listen[0].as_str(), listen[1].as_str()];
                let server = Some(host.http_server(&listen, &name)?);
                Ok(Pod { host, name, address, address6, server })
            })
            .collect::<Result<_>>()?;
        Ok(Self { client, node, pods, network })
    }

    /// Starts the agent on a file or directory of manifests.
    pub fn agent(&self, manifests: &Path) -> Result<Agent> {
        Agent::start(&self.node, &self.network.pin_path(), manifests, DEVICE)
    }

    /// Starts the agent on the text of manifests; returns the file, too, for changing it.
    pub fn agent_on(&self, text: &str) -> Result<(Agent, PathBuf)> {
        let file = self.network.files().join("manifests.yaml");
        std::fs::write(&file, text)?;
        Ok((self.agent(&file)?, file))
    }
}

impl Pod {
    pub fn stop_server(&mut self) {
        self.server = None;
    }
}
