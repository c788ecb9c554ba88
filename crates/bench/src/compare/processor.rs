//! CPU time of requests: of clients, servers, and everything between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::machine::machine_now;
use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};

/// Reads the CPU times of a world.
pub(crate) struct Meter {
    cgroup: PathBuf,
    /// The ksoftirqd threads, which run softirqs under load.
    softirq_threads: Vec<PathBuf>,
}

/// CPU times since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// The time of a world's processes, of this process with its clients, and of ksoftirqd. A softirq that
    /// interrupts a process counts as that process's time. Most do here: a veth delivers a packet on the CPU
    /// that sends it.
    pub measured: Duration,
    /// The time that the whole machine spent in softirqs, as sampled by the kernel's tick.
    pub softirq: Duration,
    /// Busy time of the machine.
    pub machine: Duration,
}

impl Meter {
    pub fn of(cgroup: &Path) -> Result<Self> {
        let mut softirq_threads = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if name.starts_with("ksoftirqd/") {
                softirq_threads.push(entry.path().join("schedstat"));
            }
        }
        Ok(Self { cgroup: cgroup.join("cpu.stat"), softirq_threads })
    }

    pub fn read(&self) -> Result<Used> {
        let text =
            fs::read_to_string(&self.cgroup).with_context(|| self.cgroup.display().to_string())?;
        let programs = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        let programs = programs.context("a control group reports no CPU time")?.parse()?;
        let mut measured = Duration::from_micros(programs) + own_cpu_time()?;
        for thread in &self.softirq_threads {
            let text = fs::read_to_string(thread)?;
            let nanoseconds = text.split_whitespace().next().context("no time of a thread")?;
            measured += Duration::from_nanos(nanoseconds.parse()?);
        }
        let (machine, softirq) = machine_now()?;
        Ok(Used { measured, softirq, machine })
    }
}

impl Used {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            measured: self.measured.saturating_sub(earlier.measured),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            machine: self.machine.saturating_sub(earlier.machine),
        }
    }
}

fn own_cpu_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let microseconds = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64);
    Ok(Duration::from_micros(microseconds.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_ours() -> Result<()> {
        let before = own_cpu_time()?;
        let mut sum = 0u64;
        while own_cpu_time()? == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        Ok(())
    }
}
