//! Echo servers: threads of this process with sockets in a host's namespace.
//!
//! A response is `<name> <peer> <message>`: the server's name, the client's address, the request.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use anyhow::{Context, Result, ensure};

use super::server::socket_address;
use super::{Host, SOON};

/// A server, which stops when dropped.
#[must_use = "it stops when dropped"]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Longest time until a server stops: the time limit of its accepts and reads.
pub(super) const TICK: Duration = Duration::from_millis(50);

impl Host {
    /// Starts a server that responds to each line of a connection.
    pub fn tcp_echo(&self, listen: &str, name: &str) -> Result<Echo> {
        let address = socket_address(listen)?;
        let listener = self
            .enter(|| Ok(TcpListener::bind(address)?))
            .with_context(|| format!("{} can't listen on {listen}", self.name()))?;
        // The timeout is a socket option, which accept uses, too; std has it only for streams.
        TcpStream::from(OwnedFd::from(listener.try_clone()?)).set_read_timeout(Some(TICK))?;
        Ok(Echo::to_lines(name, move || {
            let (stream, peer) = listener.accept()?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(SOON))?;
            stream.set_nodelay(true)?;
            Ok((stream, peer))
        }))
    }

    /// Starts a server that responds to each datagram. Bound to one address, the source of
    /// responses.
    pub fn udp_echo(&self, bind: &str, name: &str) -> Result<Echo> {
        let socket = self.udp_socket(bind)?;
        socket.set_read_timeout(Some(TICK))?;
        let name = name.to_owned();
        Ok(Echo::start(move |stop| reply_to_datagrams(&socket, &name, stop)))
    }
}

impl Echo {
    /// Responds to each line of the connections that are accepted.
    pub(super) fn to_lines<S>(
        name: &str,
        accept: impl Fn() -> io::Result<(S, SocketAddr)> + Send + 'static,
    ) -> Self
    where
        S: Send,
        for<'a> &'a S: Read + Write,
    {
        let name = name.to_owned();
        Self::start(move |stop| {
            thread::scope(|scope| {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((stream, peer)) = accept() {
                        let name = &name;
                        scope.spawn(move || reply_to_lines(&stream, peer, name, stop));
                    }
                }
            });
        })
    }

    fn start(serve: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = stop.clone();
            move || serve(&stop)
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Errors of the client end the connection, which the client notices.
fn reply_to_lines<S: Read + Write + Copy>(
    mut stream: S,
    peer: SocketAddr,
    name: &str,
    stop: &AtomicBool,
) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let replied = match reader.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => stream.write_all(&reply_to(&mem::take(&mut line), peer, name)),
            // A partial line stays in `line`.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        };
        if replied.is_err() {
            break;
        }
    }
}

fn reply_to_datagrams(socket: &UdpSocket, name: &str, stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&reply_to(&buffer[..length], peer, name), peer);
        }
    }
}

fn reply_to(message: &[u8], peer: SocketAddr, name: &str) -> Vec<u8> {
    [format!("{name} {peer} ").as_bytes(), message].concat()
}

/// Sends a request over an open connection; returns the server's name.
pub fn name_of_server(connection: &TcpStream) -> Result<String> {
    (&*connection).write_all(b"who\n")?;
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the connection was closed");
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}
