//! Runs all processes of a world on one CPU.
//!
//! If a single client waits for each reply, the scheduler decides whether client and server share a
//! CPU. That affects the response time more than anything between them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Restores the CPU affinity when it is dropped.
pub struct Pinned {
    threads: Vec<Pid>,
    before: CpuSet,
}

impl Pinned {
    /// Pins the processes of a control group and this process, including its later threads.
    pub fn new(cgroup: &Path) -> Result<Self> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        let is_ours = |processor: &usize| before.is_set(*processor).unwrap_or(false);
        // The last one: most interrupts go to the first.
        let last = (0..CpuSet::count()).rev().find(is_ours).context("there is no processor")?;
        let mut processor = CpuSet::new();
        processor.set(last)?;
        let list = fs::read_to_string(cgroup.join("cgroup.procs"))?;
        let own = std::process::id().to_string();
        let threads = list.lines().chain([&*own]).flat_map(threads_of).collect();
        let pinned = Self { threads, before };
        pinned.allow(&processor);
        Ok(pinned)
    }

    fn allow(&self, processors: &CpuSet) {
        for &thread in &self.threads {
            // It may have ended meanwhile.
            let _ = sched_setaffinity(thread, processors);
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.allow(&self.before);
    }
}

fn threads_of(process: &str) -> Vec<Pid> {
    let Ok(directory) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let names = directory.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_are_found() {
        let own = threads_of(&std::process::id().to_string());
        assert!(own.contains(&nix::unistd::gettid()));
        assert!(threads_of("0").is_empty());
    }
}
