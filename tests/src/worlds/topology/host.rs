//! A host: a network namespace and its programs.

use std::ffi::OsStr;
use std::fs::File;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::cgroup;
use super::command::{ip_batch, run_ip, run_to_end};
use super::shared::{SharedTopology, check_name};
use super::{Process, SOON};

/// A host. A clone is the same host, which exists until its topology is dropped.
#[derive(Clone)]
pub struct Host {
    name: String,
    namespace: String,
    pub(super) shared: Arc<SharedTopology>,
}

/// Sysctls of every namespace, set before it has devices.
const SETTINGS: [&str; 9] = [
    // New namespaces may inherit the machine's defaults.
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv6.conf.all.disable_ipv6=0",
    "net.ipv6.conf.default.disable_ipv6=0",
    // Addresses can't be used during duplicate address detection.
    "net.ipv6.conf.all.accept_dad=0",
    "net.ipv6.conf.default.accept_dad=0",
    "net.ipv6.conf.default.router_solicitations=0",
    // Tests need each ICMP error.
    "net.ipv4.icmp_ratelimit=0",
    "net.ipv6.icmp.ratelimit=0",
];

/// Makes this thread as urgent as [`Host::urgent_command`] makes a program.
pub fn make_thread_urgent() -> Result<()> {
    // SAFETY: it changes the calling thread only.
    let changed = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    Errno::result(changed).map(drop).context("the thread's priority can't be raised")
}

impl Host {
    pub(super) fn new(shared: &Arc<SharedTopology>, name: &str) -> Result<Self> {
        check_name(name)?;
        let namespace = format!("{}-{}-{name}", shared.id, shared.name);
        let host = Self { name: name.to_owned(), namespace, shared: shared.clone() };
        run_ip(&format!("netns add {}", host.namespace))?;
        host.sysctl(&SETTINGS)?;
        host.ip("link set lo up")?;
        Ok(host)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name in `ip netns`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The namespace's path, for `nsenter --net=` and setns.
    pub fn namespace_path(&self) -> PathBuf {
        PathBuf::from(format!("/run/netns/{}", self.namespace))
    }

    /// Runs `ip` on this host with arguments as typed in a shell.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        run_ip(&format!("-n {} {arguments}", self.namespace))
    }

    /// Runs several commands of `ip` on this host in one process, which stops at the first that fails.
    pub fn ip_batch(&self, commands: &[String]) -> Result<()> {
        ip_batch(&self.namespace, commands)
    }

    /// Adds an address with its prefix length, which can be used at once.
    pub fn address(&self, device: &str, address: &str) -> Result<()> {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.ip(&format!("address add {address} dev {device} {nodad}")).map(drop)
    }

    pub fn route(&self, to: &str, via: &str) -> Result<()> {
        self.ip(&format!("route add {to} via {via}")).map(drop)
    }

    /// Adds a default route; one per family.
    pub fn default_route(&self, via: &str) -> Result<()> {
        self.route("default", via)
    }

    /// Adds a default route for each family.
    pub fn default_routes(&self, via: &[&str]) -> Result<()> {
        via.iter().try_for_each(|via| self.default_route(via))
    }

    /// Sets sysctls, each as `name=value`.
    pub fn sysctl(&self, settings: &[&str]) -> Result<()> {
        run_to_end(self.command("sysctl").arg("-qw").args(settings)).map(drop)
    }

    /// Packets sent through a device that the peer has dropped because its queue was full.
    pub fn count_lost_packets(&self, device: &str) -> Result<u64> {
        let shown = self.ip(&format!("-statistics -json link show dev {device}"))?;
        let parsed: Value = serde_json::from_str(&shown)?;
        parsed[0]["stats64"]["tx"]["dropped"].as_u64().context(shown)
    }

    /// Packets of a device that its XDP program has redirected.
    pub fn redirected_by_xdp(&self, device: &str) -> Result<u64> {
        let counters = self.run(["ethtool", "-S", device])?;
        let mut total = 0;
        for line in counters.lines().filter(|line| line.contains("_xdp_redirect:")) {
            let count = line.rsplit(' ').next().context("a name and a number")?;
            total += count.parse::<u64>()?;
        }
        Ok(total)
    }

    /// Adds a bridge for ports ([`Port::bridge`]) and addresses.
    pub fn bridge(&self, device: &str) -> Result<()> {
        // Without multicast snooping, which would drop the first packets of neighbour
        // discovery.
        self.ip(&format!("link add {device} type bridge mcast_snooping 0"))?;
        self.ip(&format!("link set {device} up")).map(drop)
    }

    /// A command on this host. By nsenter: `ip netns exec` would hide the BPF file system.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.inside(Command::new("nsenter"), program)
    }

    /// A command on this host that must not wait for other processes of this machine, such as a
    /// router with timeouts of its own.
    pub fn urgent_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command("nice");
        command.args(["-n", "-20"]).arg(program);
        command
    }

    /// Runs a program with arguments to its end; returns its output.
    pub fn run<T: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = T>) -> Result<String> {
        self.run_within(SOON, words)
    }

    pub fn run_within<T: AsRef<OsStr>>(
        &self,
        limit: Duration,
        words: impl IntoIterator<Item = T>,
    ) -> Result<String> {
        let mut words = words.into_iter();
        let program = words.next().context("there is no program to run")?;
        let mut timeout = Command::new("timeout");
        timeout.arg("--kill-after=20").arg(limit.as_secs_f32().to_string()).arg("nsenter");
        let mut command = self.inside(timeout, program);
        run_to_end(command.args(words)).map_err(|error| {
            self.shared.trouble.store(true, Ordering::Relaxed);
            // The exit status of timeout(1).
            let late = error.to_string().contains("exit status: 124");
            if late { error.context(format!("did not end within {limit:?}")) } else { error }
        })
    }

    /// What `ip` shows of an interface.
    pub fn interface(&self, device: &str) -> Result<Value> {
        let shown = self.ip(&format!("-json link show dev {device}"))?;
        let shown: Value = serde_json::from_str(&shown)?;
        Ok(shown[0].clone())
    }

    /// The kernel's number of an interface.
    pub fn interface_index(&self, device: &str) -> Result<u32> {
        let index = self.interface(device)?["ifindex"].as_u64();
        index.context("an index")?.try_into().context("an index")
    }

    /// Starts a program in the background: `host.spawn(host.command("sleep").arg("60"))`.
    pub fn spawn(&self, command: &mut Command) -> Result<Process> {
        // nsenter's own arguments are before `--`.
        let mut words = command.get_args().skip_while(|word| *word != "--").skip(1);
        let program = Path::new(words.next().unwrap_or(command.get_program()));
        let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Process::start(&self.shared, &self.name, &program, command)
    }

    /// Runs a function in this host's namespace. Its sockets stay in the namespace, and may be
    /// returned.
    pub fn enter<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = self.namespace_path();
        let namespace = File::open(&path).with_context(|| {
            format!("{} can't be opened; is the topology gone?", path.display())
        })?;
        // In a new thread, which need not return to the old namespace.
        let inside = || {
            setns(namespace, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("{} can't be entered", path.display()))?;
            function()
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The control group of the programs on all hosts of the topology.
    pub fn cgroup(&self) -> &Path {
        &self.shared.cgroup
    }

    fn inside(&self, mut command: Command, program: impl AsRef<OsStr>) -> Command {
        cgroup::join_cgroup(&mut command, self.cgroup());
        command.arg(format!("--net={}", self.namespace_path().display())).arg("--").arg(program);
        command
    }
}
