//! One TCP connection with a peer: what waits to be written, and what has arrived.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::io::shut_down_writes;

/// What one call of [`BgpConnection::read`] takes: more than a peer sends in a burst, and bounded for one that never stops.
const MAX_OCTETS_AT_ONCE: usize = 64 << 10;

/// Closed connections whose last octets may still be on the way; more are cut off.
const MAX_LINGERING_CONNECTIONS: usize = 32;
/// How long the kernel tries to send what was written before it gives up a connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct BgpConnection {
    stream: TcpStream,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// What the kernel has not accepted; the session bounds it.
    waiting: Vec<u8>,
}

/// What has arrived.
#[derive(Debug, Default)]
pub(crate) struct ReceivedOctets {
    pub octets: Vec<u8>,
    /// By the peer, or with an error.
    pub is_closed: bool,
}

impl BgpConnection {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        Ok(Self { stream, local, peer, waiting: Vec::new() })
    }

    /// Returns when there is something to read or, if anything waits, to write.
    pub async fn ready(&self) {
        let interest = match self.waiting.is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        // Errors are found when reading.
        let _ = self.stream.ready(interest).await;
    }

    pub fn read(&self) -> ReceivedOctets {
        let mut arrived = ReceivedOctets::default();
        let mut buffer = [0; 8 << 10];
        while arrived.octets.len() < MAX_OCTETS_AT_ONCE {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => arrived.is_closed = true,
                Ok(length) => {
                    arrived.octets.extend(&buffer[..length]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => arrived.is_closed = true,
            }
            break;
        }
        arrived
    }

    pub fn queue(&mut self, octets: &[u8]) {
        self.waiting.extend(octets);
    }

    /// How many octets the kernel has accepted. Errors are found when reading.
    pub fn write(&mut self) -> usize {
        let mut written = 0;
        while written < self.waiting.len() {
            match self.stream.try_write(&self.waiting[written..]) {
                Ok(length) if length > 0 => written += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.waiting.drain(..written);
        written
    }

    /// Sends what is possible, and the end, unless the peer closes the connection by itself.
    pub fn finish(mut self, is_closed_by_peer: bool) -> Self {
        self.write();
        self.waiting.clear();
        if !is_closed_by_peer {
            shut_down_writes(&self.stream);
        }
        self
    }

    /// Reads what a finished connection still gets, so that the peer gets no reset before it has read the last message.
    /// Returns whether the peer has closed it, too.
    pub fn drain(&self) -> bool {
        self.read().is_closed
    }
}

/// Finished connections, until the peer has closed them too, or a time.
#[derive(Default)]
pub(crate) struct LingeringConnections(VecDeque<(BgpConnection, Duration)>);

impl LingeringConnections {
    pub fn add(&mut self, wire: BgpConnection, now: Duration) {
        if self.0.len() >= MAX_LINGERING_CONNECTIONS {
            self.0.pop_front();
        }
        self.0.push_back((wire, now + LINGER_TIMEOUT));
    }

    pub(crate) fn drop_finished(&mut self, now: Duration) {
        self.0.retain(|(wire, until)| *until > now && !wire.drain());
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn next_linger_timeout(&self) -> Option<Duration> {
        self.0.front().map(|(_, until)| *until)
    }

    pub(crate) fn lingering_connections(&self) -> impl Iterator<Item = &BgpConnection> {
        self.0.iter().map(|(wire, _)| wire)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// What a peer reads of a finished connection, and then the kind of its end or error.
    async fn read_from_finished(is_closed_by_peer: bool) -> (Vec<u8>, Option<ErrorKind>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut wire = BgpConnection::new(stream).unwrap();
        wire.queue(b"the last message");
        let mut lingering = LingeringConnections::default();
        lingering.add(wire.finish(is_closed_by_peer), Duration::ZERO);
        peer.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (mut octets, mut buffer) = (Vec::new(), [0; 64]);
        let end = loop {
            match peer.read(&mut buffer) {
                Ok(0) => break None,
                Ok(length) => octets.extend(&buffer[..length]),
                Err(error) => break Some(error.kind()),
            }
        };
        drop(peer);
        let closed = lingering.lingering_connections().next().unwrap();
        closed.stream.readable().await.unwrap();
        lingering.drop_finished(Duration::ZERO);
        assert!(lingering.is_empty(), "the peer has closed it");
        (octets, end)
    }

    /// FRR forgets a NOTIFICATION that it has not handled when the connection ends, and then keeps the routes.
    #[tokio::test]
    async fn a_peer_that_closes_by_itself_sees_no_end_before() {
        let told = read_from_finished(true).await;
        assert_eq!(told, (b"the last message".to_vec(), Some(ErrorKind::WouldBlock)));
        let untold = read_from_finished(false).await;
        assert_eq!(untold, (b"the last message".to_vec(), None));
    }
}
