//! Probes: datagrams to a Service until the intended endpoint replies. So what is measured is in the kernel, whatever a
//! program believes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::interrupt::check_interrupt;

/// Time limit of a reply. Replies of an endpoint in another namespace take less than a tenth of it.
const REPLY_LIMIT: Duration = Duration::from_millis(2);
/// Pauses are this share of the time that has passed, so that the result is as exact as it has to be, and probes leave
/// the processors to what is measured.
const PAUSE_SHARE: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// The result of one probe, by a port of its own: it belongs to no earlier flow.
fn send_probe(address: SocketAddr) -> std::io::Result<String> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
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
