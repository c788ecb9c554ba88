//! A host: a network namespace, and programs in it.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use super::command::{Process, output, run};

#[derive(Clone)]
pub struct Host {
    namespace: String,
    files: PathBuf,
    processes: Arc<AtomicU32>,
}

/// A device of a host, to be wired to another.
pub struct Port<'a> {
    pub(super) host: &'a Host,
    pub(super) device: String,
    addresses: Vec<String>,
    whole_checksums: bool,
}

impl Host {
    pub(super) fn new(namespace: &str, files: &Path) -> Result<Self> {
        run("ip", &["netns", "add", namespace])?;
        run("ip", &["-n", namespace, "link", "set", "lo", "up"])?;
        Ok(Self {
            namespace: namespace.to_owned(),
            files: files.to_owned(),
            processes: Arc::default(),
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn port(&self, device: &str) -> Port<'_> {
        Port {
            host: self,
            device: device.to_owned(),
            addresses: Vec::new(),
            whole_checksums: false,
        }
    }

    pub(super) fn ip(&self, arguments: &[&str], v6: bool) -> Result<String> {
        let family = if v6 { "-6" } else { "-4" };
        let mut all = vec!["-n", &self.namespace, family];
        all.extend(arguments);
        // An IPv6 address would be of no use for a second, while duplicates are looked for.
        if v6 && arguments.first() == Some(&"address") {
            all.push("nodad");
        }
        run("ip", &all)
    }

    pub fn route(&self, to: &str, via: &str) -> Result<()> {
        self.ip(&["route", "add", to, "via", via], via.contains(':')).map(drop)
    }

    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.run("sysctl", &["-qw", &format!("{name}={value}")]).map(drop)
    }

    /// A command that will run here. By nsenter: `ip netns exec` would hide the BPF filesystem.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg("--").arg(program);
        command
    }

    /// Runs a program here to its end; returns what it printed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        output(self.command(program).args(arguments))
    }

    /// Fetches a page by curl, or fails after a while.
    pub fn curl(&self, url: &str) -> Result<String> {
        self.run(
            "curl",
            &["--silent", "--show-error", "--fail", "--max-time", "5", "--globoff", url],
        )
    }

    /// Starts a program here in the background.
    pub fn start(&self, command: Command) -> Result<Process> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        Process::start(command, &self.files.join(format!("{}-{number}.log", self.namespace)))
    }

    /// Runs a function whose sockets are this host's, in a thread of its own.
    pub fn enter<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = format!("/run/netns/{}", self.namespace);
        let namespace = File::open(&path).with_context(|| path)?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
                function()
            });
            inside.join().map_err(|_| anyhow!("the function panicked"))?
        })
    }

    pub(super) fn files(&self) -> &Path {
        &self.files
    }
}

impl Port<'_> {
    /// With its prefix length.
    pub fn address(mut self, address: &str) -> Self {
        self.addresses.push(address.to_owned());
        self
    }

    /// As on a real wire: frames that leave here carry complete checksums. A veth leaves them
    /// to be completed by hardware that is not there, which XDP on the other end would see.
    pub fn whole_checksums(mut self) -> Self {
        self.whole_checksums = true;
        self
    }

    pub(super) fn configure(&self) -> Result<()> {
        for address in &self.addresses {
            let v6 = address.contains(':');
            self.host.ip(&["address", "add", address, "dev", &self.device], v6)?;
        }
        if self.whole_checksums {
            self.host.run("ethtool", &["-K", &self.device, "tx", "off"])?;
        }
        run("ip", &["-n", &self.host.namespace, "link", "set", &self.device, "up"]).map(drop)
    }
}
