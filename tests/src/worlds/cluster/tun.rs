//! Two tun devices, and a thread that carries packets from each to the other: a tunnel for kernels without
//! ipip and wireguard. Its packets have no link-layer header either.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::worlds::topology::Host;

/// How soon the thread notices that it is to stop, in milliseconds.
const TICK: u16 = 50;

/// Runs until it is dropped.
#[must_use = "it stops when dropped"]
pub struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Adds a device of this name to both hosts, and connects the two.
    pub fn start(hosts: [&Host; 2], device: &str) -> Result<Self> {
        let [one, other] = hosts.map(|host| host.enter(|| open(device)));
        let ends = [one?, other?];
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = stop.clone();
            move || relay(&ends, &stop)
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A packet that cannot be delivered is lost, as on a wire.
fn relay(ends: &[File; 2], stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let mut ready = ends.each_ref().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
        if !poll(&mut ready, PollTimeout::from(TICK)).is_ok_and(|count| count > 0) {
            continue;
        }
        for (from, to) in [(0, 1), (1, 0)] {
            if ready[from].any() == Some(true)
                && let Ok(length) = (&ends[from]).read(&mut buffer)
            {
                let _ = (&ends[to]).write(&buffer[..length]);
            }
        }
    }
}

/// A tun device in this thread's network namespace. It lives as long as the file is open.
fn open(device: &str) -> Result<File> {
    let path = "/dev/net/tun";
    let file = OpenOptions::new().read(true).write(true).open(path).context(path)?;
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the file is open, and the request a complete `ifreq`.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(result).with_context(|| format!("tun device {device}"))?;
    Ok(file)
}
