//! Memory of this process and of maps.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::layout::map;
use lb_kernel::Pins;

/// Interval between two readings of this process's memory.
const PERIOD: Duration = Duration::from_millis(5);

/// Records the maximum memory of this process.
pub(crate) struct Peak {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<f64>>,
}

impl Peak {
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut most = own_memory()?;
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(PERIOD);
                most = most.max(own_memory()?);
            }
            Ok(most)
        });
        Self { stop, thread }
    }

    /// In MiB.
    pub fn end(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the memory was not measured"))?
    }
}

/// Anonymous memory of this process, in MiB.
pub fn own_memory() -> Result<f64> {
    let kib = field(&fs::read_to_string("/proc/self/status")?, "RssAnon:");
    Ok(kib.context("no RssAnon")? / 1024.0)
}

/// Memory of all maps, in MiB.
pub(crate) fn of_maps(pins: &Pins) -> Result<f64> {
    let mut total = 0.0;
    for name in map::ALL {
        let map = MapData::from_pin(pins.map(name))?;
        let descriptor = map.fd().as_fd().as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?;
        let bytes = field(&text, "memlock:").context("no memlock")?;
        total += bytes / f64::from(1 << 20);
    }
    Ok(total)
}

fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
