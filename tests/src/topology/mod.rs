//! Networks to test in: hosts that are network namespaces, wires that are veth pairs, real
//! servers and clients.
//!
//! Invariants:
//! - The machine's own devices and namespace are never touched: every device is made inside the
//!   namespace it belongs to.
//! - Names are unique, so topologies with the same addresses live side by side.
//! - A dropped [`Topology`] leaves nothing behind, also when a test panics. What a killed run left
//!   is swept when the next one starts.
//!
//! Its tests: `tests/tests/topology.rs`.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use tests::topology::Topology;
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
//! assert_eq!(client.run(["curl", "--silent", "http://10.244.1.10:8080"])?, "pod-a\n");
//! # Ok(())
//! # }
//! ```

mod bpffs;
mod capture;
mod cgroup;
mod command;
mod echo;
mod host;
mod id;
mod pod;
mod port;
mod process;
mod raw;
mod server;
mod socket;
mod sweep;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Once};

use anyhow::{Context, Result, ensure};

pub use bpffs::bpffs;
pub use capture::Capture;
pub use command::{SOON, wait_until};
pub use echo::{Echo, who_answers};
pub use host::Host;
pub use id::Id;
pub use port::Port;
pub use process::Process;
pub use raw::RawSocket;
pub use server::LARGE;
pub use sweep::sweep;

/// Hosts and wires. Keep it as long as they are needed: it takes them away when it is dropped.
#[must_use = "it is taken away when dropped"]
pub struct Topology {
    shared: Arc<Shared>,
}

/// What hosts and processes need of their topology.
struct Shared {
    id: Id,
    name: String,
    directory: PathBuf,
    cgroup: PathBuf,
    /// Numbers the log files.
    logs: AtomicU32,
    /// Something failed: logs are worth printing.
    trouble: AtomicBool,
}

impl Topology {
    /// An empty one. Its name is part of the names of its namespaces, for whoever looks at them.
    pub fn new(name: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        ensure!(
            fs::metadata("/proc/self")?.uid() == 0,
            "topologies are made of network namespaces, which needs root: run this with sudo"
        );
        check_name(name)?;
        SWEEP.call_once(sweep);

        let id = Id::next()?;
        let shared = Shared {
            id,
            name: name.to_owned(),
            directory: sweep::directory(id),
            cgroup: cgroup::path(id)?,
            logs: AtomicU32::new(0),
            trouble: AtomicBool::new(false),
        };
        // From here on, drop takes away what was made.
        let topology = Self { shared: Arc::new(shared) };
        make_directory(topology.directory())?;
        cgroup::make(id)?;
        bpffs()?;
        fs::create_dir_all(bpffs::test_pins())?;
        make_directory(&topology.pins())?;
        Ok(topology)
    }

    /// A host: a namespace with nothing but `lo`.
    pub fn host(&self, name: &str) -> Result<Host> {
        Host::new(&self.shared, name)
    }

    /// A host that forwards.
    pub fn router(&self, name: &str) -> Result<Host> {
        let router = self.host(name)?;
        router.sysctl(&["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        Ok(router)
    }

    /// Joins two ports by a veth pair. Both are up and have their addresses then.
    pub fn link(&self, one: Port<'_>, other: Port<'_>) -> Result<()> {
        port::link(one, other)
    }

    /// What the names of everything here begin with.
    pub fn id(&self) -> Id {
        self.shared.id
    }

    /// A directory of the BPF filesystem, removed with the topology.
    pub fn pins(&self) -> PathBuf {
        bpffs::pins(self.shared.id)
    }

    /// The control group that the hosts' programs are in, removed with the topology.
    pub fn cgroup(&self) -> &Path {
        &self.shared.cgroup
    }

    /// A directory for files, removed with the topology. Logs are here.
    pub fn directory(&self) -> &Path {
        &self.shared.directory
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        sweep::remove(self.shared.id);
    }
}

/// Names end up in those of namespaces, files and devices.
fn check_name(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    ensure!(
        !name.is_empty() && name.bytes().all(fits) && name.len() <= 60,
        "{name:?} is no name for a topology or host: use up to 60 letters, digits, - and _"
    );
    Ok(())
}

/// Fails if it is there already: then it is somebody else's.
fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("the directory {} can't be made", path.display()))
}
