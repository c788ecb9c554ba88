//! Probes: datagrams to a Service until the intended endpoint replies. So what is measured is in the kernel, whatever a
//! program believes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::interrupt::check_interrupt;

/// Time limit of a reply, which takes less than a tenth of a millisecond on an idle machine.
const REPLY_LIMIT: Duration = Duration::from_millis(10);
const FIRST_PORT: u16 = 1_024;
/// Pauses are this share of the time that has passed, so that the result is as exact as it has to be, and probes leave
/// the processors to what is measured.
const PAUSE_SHARE: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// A port that no probe has had for minutes. Connection tracking sends what comes from a known one where it sent the
/// first: the kernel's choices, at random, would meet such entries, and the endpoint before last would reply.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    FIRST_PORT + NEXT.fetch_add(1, Ordering::Relaxed) % (u16::MAX - FIRST_PORT)
}

/// The result of one probe.
fn send_probe(address: SocketAddr) -> std::io::Result<String> {
    let socket = UdpSocket::bind(("0.0.0.0", next_port()))?;
    socket.set_read_timeout(Some(REPLY_LIMIT))?;
    socket.connect(address)?;
    socket.send(b"probe")?;
    let mut reply = [0; 256];
    let length = socket.recv(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
    Ok(reply.split(' ').next().unwrap_or_default().to_owned())
}

/// Probes from this thread's network namespace until this endpoint has replied; returns when it did.
pub fn wait_for_endpoint(
    address: SocketAddr,
    endpoint: &str,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Instant> {
    let began = Instant::now();
    loop {
        // Before a Service is programmed, errors of many kinds are usual.
        if send_probe(address).is_ok_and(|from| from == endpoint) {
            return Ok(Instant::now());
        }
        let passed = began.elapsed();
        ensure!(passed < limit, "{endpoint} did not reply at {address} within {limit:?}");
        ensure!(!stop.load(Ordering::Relaxed), "waiting for {endpoint} at {address} was ended");
        check_interrupt()?;
        thread::sleep((passed / PAUSE_SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}
