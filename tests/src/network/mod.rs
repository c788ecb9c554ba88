//! Networks to test in: hosts that are network namespaces, wires that are veth pairs, real
//! servers and clients.
//!
//! Everything has a name of its own (`mr<pid>-<number>-<host>`), so networks with the same
//! addresses live side by side. Dropping a [`Network`] takes everything away, also when a test
//! panics; what a killed run left is swept when the next one starts. The machine's own devices
//! and namespace are never touched: wires are made inside the namespaces they join.

mod agent;
mod command;
mod host;
pub mod one_node;
mod server;
pub mod sweep;

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

pub use agent::{Agent, program};
pub use command::{Process, run, wait_until};
pub use host::{Host, Port};
pub use one_node::OneNode;

pub struct Network {
    /// `mr<pid>-<number>`.
    id: String,
    hosts: Vec<Host>,
    files: tempfile::TempDir,
}

impl Network {
    pub fn new() -> Result<Self> {
        static SWEEP: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(sweep::leftovers);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            id: format!("mr{}-{number}", std::process::id()),
            hosts: Vec::new(),
            files: tempfile::tempdir()?,
        })
    }

    /// A host of its own.
    pub fn host(&mut self, name: &str) -> Result<Host> {
        let host = Host::new(&format!("{}-{name}", self.id), self.files.path())?;
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// A host that forwards.
    pub fn router(&mut self, name: &str) -> Result<Host> {
        let router = self.host(name)?;
        router.sysctl("net.ipv4.ip_forward", "1")?;
        router.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        Ok(router)
    }

    /// A host that is a pod on `node`: its device there is `name`, its routes lead through the
    /// node, and the node has a route to each of its addresses.
    pub fn pod(&mut self, node: &Host, name: &str, addresses: &[&str]) -> Result<Host> {
        let pod = self.host(name)?;
        wire(pod.port("eth0"), node.port(name))?;
        for address in addresses {
            let v6 = address.contains(':');
            // The gateway is the same address for all pods, on each of their devices.
            let (length, gateway) = if v6 { (128, "fe80::1") } else { (32, "169.254.1.1") };
            pod.ip(&["address", "add", &format!("{address}/{length}"), "dev", "eth0"], v6)?;
            node.ip(
                &[
                    "address",
                    "replace",
                    &format!("{gateway}/{}", if v6 { 64 } else { 32 }),
                    "dev",
                    name,
                ],
                v6,
            )?;
            node.ip(&["route", "add", &format!("{address}/{length}"), "dev", name], v6)?;
            if !v6 {
                pod.ip(&["route", "add", gateway, "dev", "eth0", "scope", "link"], v6)?;
            }
            pod.ip(&["route", "add", "default", "via", gateway, "dev", "eth0"], v6)?;
        }
        Ok(pod)
    }

    /// A directory in the BPF filesystem for this network's data plane; it is made by whoever
    /// uses it, and removed with the network.
    pub fn pin_path(&self) -> PathBuf {
        sweep::pin_root().join(&self.id)
    }

    /// Where files of this network may be put.
    pub fn files(&self) -> &Path {
        self.files.path()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Links and programs first: they would keep the devices' namespaces alive.
        sweep::remove_pins(&self.pin_path());
        for host in &self.hosts {
            sweep::remove_host(host.namespace());
        }
    }
}

/// Joins two ports. Both devices are up; addresses are there at once.
pub fn wire(one: Port<'_>, other: Port<'_>) -> Result<()> {
    let (a, b) = (one.host.namespace(), other.host.namespace());
    run(
        "ip",
        &[
            "-n",
            a,
            "link",
            "add",
            &one.device,
            "type",
            "veth",
            "peer",
            "name",
            &other.device,
            "netns",
            b,
        ],
    )
    .with_context(|| format!("{} and {} can't be wired", one.device, other.device))?;
    one.configure()?;
    other.configure()
}
