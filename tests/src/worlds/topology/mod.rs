//! Networks for tests: hosts are network namespaces, wires are veth pairs, servers and clients are
//! real.
//!
//! Invariants:
//! - The machine's own devices and namespace are never touched: every device is created in its own
//!   namespace.
//! - Names are unique, so that topologies with the same addresses can exist at the same time.
//! - A dropped [`Topology`] leaves nothing, also after a panic. Remains of a killed run are removed
//!   by the next one.
//!
//! Its tests: `tests/tests/node/topology.rs`.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use tests::worlds::topology::Topology;
//!
//! let topology = Topology::new("hello")?;
//! let client = topology.host("client")?;
//! let node = topology.router("node")?;
//! topology.link(
//!     client.port("eth0").address("192.0.2.2/24").wire(),
//!     node.port("ext0").address("192.0.2.1/24"),
//! )?;
//! client.default_route("192.0.2.1")?;
//! let pod = node.pod("pod-a", &["10.244.1.10"])?;
//! let _server = pod.http_server(&["10.244.1.10:8080"], "pod-a")?;
//! assert_eq!(client.curl("http://10.244.1.10:8080")?, "pod-a\n");
//! # Ok(())
//! # }
//! ```

mod bpffs;
mod capture;
mod certificate;
mod cgroup;
mod command;
mod curl;
mod echo;
mod hierarchies;
mod host;
mod id;
mod pod;
mod port;
mod process;
mod raw;
mod sctp;
mod server;
mod shared;
mod socket;
mod sweep;
mod warm;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};

pub use bpffs::mount_bpffs;
pub use capture::Capture;
pub use certificate::Certificate;
pub use command::{SOON, copy_program, run_to_end, wait_until};
pub use echo::{Echo, name_of_server};
pub use hierarchies::Hierarchy;
pub use host::{Host, make_thread_urgent};
pub use id::Id;
pub use port::Port;
pub use process::Process;
pub use raw::RawSocket;
pub use sctp::{SctpReceiver, SctpStream, has_sctp};
pub use server::LARGE;
pub use sweep::remove_leftovers;

use shared::{SharedTopology, check_name};

/// The name of the pin path of a topology's only agent.
const AGENT: &str = "millrace";

/// Hosts and wires, which are removed when it is dropped.
#[must_use = "it is taken away when dropped"]
pub struct Topology {
    shared: Arc<SharedTopology>,
}

impl Topology {
    /// Creates an empty topology. Its name is part of its namespaces' names.
    pub fn new(name: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        ensure!(
            fs::metadata("/proc/self")?.uid() == 0,
            "topologies are made of network namespaces, which needs root: run this with sudo"
        );
        check_name(name)?;
        SWEEP.call_once(remove_leftovers);

        let id = Id::next()?;
        let shared = SharedTopology {
            id,
            name: name.to_owned(),
            directory: sweep::directory_of(id),
            cgroup: cgroup::cgroup_path(id)?,
            logs: AtomicU32::new(0),
            trouble: AtomicBool::new(false),
            warm: Mutex::default(),
        };
        // From here on, drop cleans up.
        let topology = Self { shared: Arc::new(shared) };
        make_directory(topology.directory())?;
        cgroup::create_cgroup(id)?;
        mount_bpffs()?;
        fs::create_dir_all(bpffs::test_pins())?;
        make_directory(&topology.pins())?;
        Ok(topology)
    }

    /// Adds a host: a namespace with only `lo`.
    pub fn host(&self, name: &str) -> Result<Host> {
        Host::new(&self.shared, name)
    }

    /// Adds a host that forwards packets.
    pub fn router(&self, name: &str) -> Result<Host> {
        let router = self.host(name)?;
        router.sysctl(&["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        Ok(router)
    }

    /// Connects two ports by a veth pair, and brings them up with their addresses.
    pub fn link(&self, one: Port<'_>, other: Port<'_>) -> Result<()> {
        port::link_ports(one, other)
    }

    /// The prefix of all names in this topology.
    pub fn id(&self) -> Id {
        self.shared.id
    }

    /// A directory of the BPF filesystem, removed with the topology.
    pub fn pins(&self) -> PathBuf {
        bpffs::pins_of(self.shared.id)
    }

    /// The agent's pin path, which does not exist before an agent starts.
    pub fn agent_pins(&self) -> PathBuf {
        self.pins().join(AGENT)
    }

    /// A pin path for tests to which it does not matter whether the agent loads its programs or
    /// adopts those of an earlier test. Only for agents with maps of the default sizes.
    pub fn warm_pins(&self, name: &str) -> PathBuf {
        let path = self.pins().join(name);
        let mut warm = self.shared.warm.lock().unwrap_or_else(PoisonError::into_inner);
        if warm.insert(path.clone()) {
            warm::take_warm_pins(&path);
        }
        path
    }

    pub fn warm_agent_pins(&self) -> PathBuf {
        self.warm_pins(AGENT)
    }

    /// The control group that the hosts' programs are in, removed with the topology.
    pub fn cgroup(&self) -> &Path {
        &self.shared.cgroup
    }

    /// A directory for files, removed with the topology. Logs are here.
    pub fn directory(&self) -> &Path {
        &self.shared.directory
    }

    /// The file that [`Self::write_manifests`] writes.
    pub fn manifests(&self) -> PathBuf {
        self.directory().join("manifests.yaml")
    }

    /// Writes the file of manifests; returns its path.
    pub fn write_manifests(&self, text: &str) -> Result<PathBuf> {
        let file = self.manifests();
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Replaces the file of manifests in one step: an agent that reads it sees no half of it.
    pub fn replace_manifests(&self, text: &str) -> Result<()> {
        let new = self.directory().join("manifests.new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.manifests())?)
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let SharedTopology { id, warm, trouble, .. } = &*self.shared;
        let mut warm = warm.lock().unwrap_or_else(PoisonError::into_inner);
        if !warm.is_empty() && !trouble.load(Ordering::Relaxed) && !thread::panicking() {
            sweep::end_processes(*id);
            for pins in std::mem::take(&mut *warm) {
                if let Err(error) = warm::keep_warm_pins(&pins) {
                    eprintln!("{} is not kept for later tests: {error:#}", pins.display());
                }
            }
        }
        sweep::remove_topology(*id);
    }
}

/// Fails if the directory exists: then another process owns it.
fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("the directory {} can't be made", path.display()))
}
