//! A proxy that another process started, as `millrace standalone` does: sockets, addresses and the kubeconfig come
//! over its standard input, so it needs neither the right to open ports nor to read the parent's files.
//!
//! The parent keeps the sockets. If the proxy dies, connections wait in their queues for the next one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::handover;
use super::listeners::ListenAddresses;

const PARENT_TIMEOUT: Duration = Duration::from_secs(30);

/// What comes with the sockets.
#[derive(Debug, Serialize, Deserialize)]
struct InheritanceMessage {
    http: Vec<SocketAddr>,
    https: Vec<SocketAddr>,
    kubeconfig: String,
}

/// What the parent gave to this process.
pub struct Inheritance {
    pub listeners: ListenAddresses,
    pub kubeconfig: String,
    /// Open as long as the parent lives.
    pub parent: StdStream,
}

/// Sends a child what it needs.
pub fn send_inheritance(
    stream: &StdStream,
    http: &[TcpListener],
    https: &[TcpListener],
    kubeconfig: &str,
) -> Result<()> {
    let addresses = |sockets: &[TcpListener]| {
        sockets.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()
    };
    let message = InheritanceMessage {
        http: addresses(http)?,
        https: addresses(https)?,
        kubeconfig: kubeconfig.to_owned(),
    };
    stream.set_write_timeout(Some(PARENT_TIMEOUT))?;
    let sockets: Vec<&TcpListener> = http.iter().chain(https).collect();
    handover::send_sockets(stream, &sockets, &serde_json::to_string(&message)?)
}

/// Receives from standard input what the parent sent.
pub fn receive_inheritance() -> Result<Inheritance> {
    let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.set_read_timeout(Some(PARENT_TIMEOUT)).context("standard input is not a Unix socket")?;
    let (inherited, text) =
        handover::receive_sockets(&stream).context("nothing received from the parent")?;
    let InheritanceMessage { http, https, kubeconfig } =
        serde_json::from_str(&text).context("not the message of a parent")?;
    let listeners = ListenAddresses { http, https, inherited };
    Ok(Inheritance { listeners, kubeconfig, parent: stream })
}

/// The connection to the parent, to wait for its end.
pub(crate) fn watch_parent(parent: &StdStream) -> Result<UnixStream> {
    let stream = parent.try_clone()?;
    stream.set_nonblocking(true)?;
    Ok(UnixStream::from_std(stream)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_addresses_and_kubeconfig() {
        let (near, far) = StdStream::pair().unwrap();
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (http, https) = ([bind()], [bind(), bind()]);
        send_inheritance(&near, &http, &https, "apiVersion: v1").unwrap();
        let (sockets, text) = handover::receive_sockets(&far).unwrap();
        let message: InheritanceMessage = serde_json::from_str(&text).unwrap();
        assert_eq!((sockets.len(), message.https.len()), (3, 2));
        assert_eq!(message.http[0], http[0].local_addr().unwrap());
        assert_eq!(message.kubeconfig, "apiVersion: v1");
    }
}
