//! What a running process has used of the processors and of memory, from /proc.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// CPU time of a process so far, in its own code and in the kernel.
pub fn processor_time(pid: u32) -> Result<Duration> {
    ticks_to_duration(stat_ticks(pid)?.into_iter().take(2).sum())
}

/// CPU time of a process so far, with that of its children that have ended and were waited for.
pub fn processor_time_with_children(pid: u32) -> Result<Duration> {
    ticks_to_duration(stat_ticks(pid)?.into_iter().sum())
}

/// Anonymous memory of a process now, in MiB.
pub fn anonymous_memory(pid: u32) -> Result<f64> {
    status_mebibytes(pid, "RssAnon:")
}

/// The most memory of all kinds that a process has had, in MiB: also of its program's file and mapped BPF maps.
pub fn peak_memory(pid: u32) -> Result<f64> {
    status_mebibytes(pid, "VmHWM:")
}

/// Follows a process's anonymous memory in a thread: the kernel keeps the peak of all memory only.
pub struct AnonymousPeak {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
}

/// Interval between two readings.
const PERIOD: Duration = Duration::from_millis(10);

impl AnonymousPeak {
    pub fn follow(pid: u32) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = thread::spawn(move || {
            let mut peak = 0.0;
            while !ended.load(Ordering::Relaxed) {
                peak = anonymous_memory(pid).unwrap_or_default().max(peak);
                thread::sleep(PERIOD);
            }
            peak
        });
        Self { ends, thread }
    }

    /// The most until now, in MiB.
    pub fn end(self) -> f64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// `utime`, `stime`, `cutime` and `cstime` of proc_pid_stat(5).
fn stat_ticks(pid: u32) -> Result<Vec<u64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may contain spaces.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let ticks = fields.split_whitespace().skip(11).take(4).map(str::parse);
    Ok(ticks.collect::<Result<_, _>>()?)
}

fn ticks_to_duration(ticks: u64) -> Result<Duration> {
    let a_second = sysconf(SysconfVar::CLK_TCK)?.context("no length of ticks")? as f64;
    Ok(Duration::from_secs_f64(ticks as f64 / a_second))
}

fn status_mebibytes(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no such line")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn a_process_has_used_at_most_its_peak() -> Result<()> {
        let pid = process::id();
        let (now, peak) = (anonymous_memory(pid)?, peak_memory(pid)?);
        assert!(0.0 < now && now <= peak, "{now} {peak}");
        assert!(processor_time(pid)? <= processor_time_with_children(pid)?);
        Ok(())
    }
}
