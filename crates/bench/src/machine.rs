//! The machine that tests and benchmarks run on: its load, and its programs.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// The share of the machine that other processes use, from 0 to 1.
pub(crate) fn busy_without_us() -> Result<f64> {
    let time = Duration::from_millis(300);
    let before = machine_now()?.0;
    thread::sleep(time);
    let busy = machine_now()?.0.saturating_sub(before);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    Ok(busy.as_secs_f64() / time.as_secs_f64() / processors as f64)
}

/// Busy time of all CPUs, and that of softirqs.
pub(crate) fn machine_now() -> Result<(Duration, Duration)> {
    parse_cpu_times(&fs::read_to_string("/proc/stat")?)
}

/// Busy time and that of softirqs over all CPUs, from /proc/stat.
fn parse_cpu_times(stat: &str) -> Result<(Duration, Duration)> {
    /// The unit of /proc/stat on all architectures.
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

/// Whether a program is in the search path, or where administrators' programs are.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|directory| directory.join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() -> Result<()> {
        let (busy, softirq) = parse_cpu_times("cpu  1 2 3 400 500 6 7 8 0 0\ncpu0 1 2 3")?;
        assert_eq!(busy, Duration::from_millis(10 * (1 + 2 + 3 + 6 + 7 + 8)));
        assert_eq!(softirq, Duration::from_millis(130));
        Ok(())
    }
}
