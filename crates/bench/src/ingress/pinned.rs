//! One CPU for the proxy, and another for clients and servers.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use ::tests::worlds::topology::Host;
use anyhow::Result;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Time limit of a program that ends.
const LIMIT: Duration = Duration::from_secs(300);
/// Sets the limit of open files to the highest that is allowed.
const FILES: &str = "ulimit -n $(ulimit -Hn) && exec \"$0\" \"$@\"";

/// First and last CPU of this process.
static ENDS: LazyLock<(usize, usize)> = LazyLock::new(|| {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let is_allowed = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    let first = (0..CpuSet::count()).find(is_allowed).unwrap_or(0);
    (first, (0..CpuSet::count()).rev().find(is_allowed).unwrap_or(first))
});

/// Keeps this process and its later threads off the proxy's CPU.
pub(crate) fn pin_clients() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(ENDS.0)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

/// Runs a client to its end; returns its output.
pub(crate) fn run_client(host: &Host, program: &str, arguments: &[String]) -> Result<String> {
    let cpu = ENDS.0.to_string();
    let words = ["taskset", "--cpu-list", &cpu, "sh", "-c", FILES, program];
    host.run_within(LIMIT, words.into_iter().chain(arguments.iter().map(String::as_str)))
}

pub fn pinned_server(host: &Host, program: &str) -> Command {
    on(host, ENDS.0, program)
}

pub fn pinned_proxy(host: &Host, program: &str) -> Command {
    on(host, ENDS.1, program)
}

fn on(host: &Host, cpu: usize, program: &str) -> Command {
    let mut command = host.command("taskset");
    command.args(["--cpu-list", &cpu.to_string(), "sh", "-c", FILES, program]);
    command
}
