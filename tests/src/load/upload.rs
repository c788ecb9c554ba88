//! Large requests through a load balancer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::thread;

use anyhow::{Result, anyhow, ensure};

use crate::worlds::topology::{Host, SOON};

/// Size of a request in bytes: many full-sized segments.
const SIZE: usize = 2_000_000;

/// Sends a large request from a client to a frontend, and checks that all of it arrives at the backend, which listens
/// at `sink` on the server.
pub fn upload_file(client: &Host, frontend: &str, server: &Host, sink: &str) -> Result<()> {
    let listener = server.enter(|| Ok(TcpListener::bind(sink)?))?;
    let received = thread::spawn(move || count_all(&listener));
    let mut stream = client.tcp_connect(frontend)?;
    stream.write_all(&vec![7; SIZE])?;
    stream.shutdown(Shutdown::Write)?;
    // The sink closes once it has read everything.
    let ended = stream.read(&mut [0; 1]);
    ensure!(matches!(ended, Ok(0)), "{frontend}: {ended:?}");
    let received = received.join().map_err(|_| anyhow!("the sink failed"))??;
    ensure!(received == SIZE as u64, "{frontend}: {received} of {SIZE} bytes arrived");
    Ok(())
}

fn count_all(listener: &TcpListener) -> Result<u64> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(SOON))?;
    Ok(io::copy(&mut stream, &mut io::sink())?)
}
