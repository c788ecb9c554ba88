//! Everything of a world on one processor.
//!
//! One client that waits for each answer leaves it to the scheduler whether client and server share
//! a processor; and that decides more about how long an answer takes than anything between them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Undone when it is dropped.
pub struct Pinned {
    threads: Vec<Pid>,
    before: CpuSet,
}

impl Pinned {
    /// The programs of a control group and this one, whose new threads stay there, too.
    pub fn new(cgroup: &Path) -> Result<Self> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        let is_ours = |processor: &usize| before.is_set(*processor).unwrap_or(false);
        // The last one: interrupts come to the first as a rule.
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
            // It may have ended since.
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
