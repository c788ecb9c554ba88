//! A node: the namespaces in which containerd and kubelet run.
//!
//! Three processes start each other: `node` enters the node's control groups; unshare(1) makes the namespaces, of processes
//! too; `node-init` is their first process, so that everything on the node ends with it, and its mounts with it.

mod cgroups;
mod init;
mod root;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tests::worlds::topology::{Host, Process};

use crate::network::{Cni, NodeAddresses};

/// What a node needs to know, as a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeSpecification {
    pub addresses: NodeAddresses,
    pub cni: Cni,
    /// The name of the node's control groups.
    pub cgroup: String,
    /// Folders of the machine; on the node they are `/cluster/programs` and so on.
    pub programs: PathBuf,
    pub images: PathBuf,
    /// With the node's files: `kubelet.yaml`, `kubeconfig`, ...; its logs go here.
    pub files: PathBuf,
    /// The archives to import, by their names in `images`.
    pub archives: Vec<String>,
    pub cluster_dns: Vec<String>,
}

/// The file, in a node's folder, for which its kubelet waits: the API server knows the node.
pub(crate) const API_IS_READY: &str = "api-is-ready";
/// The file that the node writes when containerd has all images.
pub(crate) const IMAGES_ARE_READY: &str = "images-are-ready";

const SPECIFICATION: &str = "node.json";

impl NodeSpecification {
    /// Starts the node in the network namespace of a host.
    pub fn start(&self, host: &Host) -> Result<Process> {
        let file = self.files.join(SPECIFICATION);
        fs::write(&file, serde_json::to_vec_pretty(self)?)?;
        let program = std::env::current_exe()?;
        host.spawn(host.command(program).arg("node").arg(&file))
    }

    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read(file).with_context(|| file.display().to_string())?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// Enters the node's control groups, and replaces this process with unshare(1).
pub fn enter_node(file: &Path) -> Result<()> {
    let node = NodeSpecification::read(file)?;
    cgroups::enter_groups(&node.cgroup)?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--cgroup", "--ipc", "--mount", "--pid", "--uts", "--fork", "--kill-child"]);
    let error = unshare.arg(std::env::current_exe()?).arg("node-init").arg(file).exec();
    bail!("unshare can't be started: {error}")
}

pub use init::run_init;
