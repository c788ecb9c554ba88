//! Ports for servers that a test starts. Tests of several crates share this.
//!
//! A port that the kernel chooses (0), and that is closed again, may be another process's before the server opens it: of
//! a server, or of a client's connection.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// A port that nothing listens on. No other test gets it: neither from here, nor from the kernel, which chooses higher
/// ones.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let of_process = std::process::id() % 180 * 100;
    loop {
        let next = of_process + u32::from(TAKEN.fetch_add(1, Relaxed));
        let port = 10_000 + (next % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
