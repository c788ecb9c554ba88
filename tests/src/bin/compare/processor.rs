//! Time of processors that requests cost: of clients, of servers, and of what is between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};

/// What it can be asked of.
pub struct Meter {
    cgroup: PathBuf,
    /// Where softirqs run that would keep everything else waiting.
    softirq_threads: Vec<PathBuf>,
}

/// Time until now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// By the programs of a world, by this one with its clients, and by the kernel's threads for
    /// softirqs. Softirqs that run on top of a program count as its own: most do here, for a
    /// packet is received where it is sent, on the other end of a veth.
    pub ours: Duration,
    /// Of that and of anything else on this machine, in softirqs, as far as the clock's ticks met it.
    pub softirq: Duration,
    /// All that is not idle on this machine.
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
        let mut ours = Duration::from_micros(programs) + own()?;
        for thread in &self.softirq_threads {
            let text = fs::read_to_string(thread)?;
            let nanoseconds = text.split_whitespace().next().context("no time of a thread")?;
            ours += Duration::from_nanos(nanoseconds.parse()?);
        }
        let (machine, softirq) = machine_now()?;
        Ok(Used { ours, softirq, machine })
    }
}

impl Used {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            ours: self.ours.saturating_sub(earlier.ours),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            machine: self.machine.saturating_sub(earlier.machine),
        }
    }
}

fn own() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let microseconds = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64);
    Ok(Duration::from_micros(microseconds.iter().sum()))
}

/// Busy time of all processors, and that of softirqs.
pub fn machine_now() -> Result<(Duration, Duration)> {
    machine(&fs::read_to_string("/proc/stat")?)
}

/// Busy time and that of softirqs, over all processors, of /proc/stat.
fn machine(stat: &str) -> Result<(Duration, Duration)> {
    /// Of a tick as it is told there, on all architectures.
    const MILLISECONDS: u64 = 10;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let fields: Vec<u64> = line
        .context("/proc/stat begins with another line")?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [user, nice, system, _idle, _waiting, irq, softirq, stolen, ..] = fields[..] else {
        anyhow::bail!("/proc/stat has only {} fields", fields.len());
    };
    let busy = user + nice + system + irq + softirq + stolen;
    let time = |ticks: u64| Duration::from_millis(ticks * MILLISECONDS);
    Ok((time(busy), time(irq + softirq)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() -> Result<()> {
        let (busy, softirq) = machine("cpu  1 2 3 400 500 6 7 8 0 0\ncpu0 1 2 3")?;
        assert_eq!(busy, Duration::from_millis(10 * (1 + 2 + 3 + 6 + 7 + 8)));
        assert_eq!(softirq, Duration::from_millis(130));
        Ok(())
    }

    #[test]
    fn what_is_done_is_ours() -> Result<()> {
        let before = own()?;
        let mut sum = 0u64;
        while own()? == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        Ok(())
    }
}
