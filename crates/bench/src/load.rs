//! Clients that count and time requests over real sockets. Failed requests are counted and not
//! repeated.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use ::tests::worlds::topology::Host;

/// Time limit of a response.
const LIMIT: Duration = Duration::from_secs(5);

/// Results of requests. On a busy machine one in many thousands may be lost.
#[derive(Debug, Default)]
pub struct Done {
    /// For each successful request the time from before its first packet to the end of the
    /// response.
    times: Vec<Duration>,
    pub failed: u64,
    /// The error of the first failed request.
    pub failure: Option<String>,
    /// Time from the first request to the last response.
    pub elapsed: Duration,
}

impl Done {
    pub fn answered(&self) -> u64 {
        self.times.len() as u64
    }

    pub fn a_second(&self) -> f64 {
        self.answered() as f64 / self.elapsed.as_secs_f64()
    }

    /// A percentile of the times.
    pub(crate) fn percentile(&mut self, percent: usize) -> Option<Duration> {
        self.times.sort_unstable();
        let last = self.times.len().checked_sub(1)?;
        self.times.get(last * percent / 100).copied()
    }

    fn add(&mut self, request: impl FnOnce() -> Result<()>) -> bool {
        let began = Instant::now();
        match request() {
            Ok(()) => self.times.push(began.elapsed()),
            Err(error) => {
                self.failed += 1;
                self.failure.get_or_insert(format!("{error:#}"));
                return false;
            }
        }
        true
    }

    fn merge(&mut self, other: Self) {
        self.times.extend(other.times);
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }
}

/// The side that closes a connection first, and then is in TIME_WAIT for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosingSide {
    /// A client can open more connections per minute than there are ports. But with SNAT of any
    /// kind, a port that is reused within a minute hits the server's TIME_WAIT: half of these SYNs
    /// are sent twice. See docs/performance.md.
    Server,
    /// The client should have net.ipv4.tcp_tw_reuse=1.
    Client,
}

/// Sends requests for some time from several threads, each over a new connection, to the servers
/// in turn.
pub fn load_connections(
    client: &Host,
    servers: &[SocketAddr],
    threads: usize,
    time: Duration,
    ends: ClosingSide,
    is_answer: fn(&[u8]) -> bool,
) -> Result<Done> {
    let started = Instant::now();
    let work = || {
        let mut done = Done::default();
        for server in servers.iter().cycle() {
            if started.elapsed() >= time {
                break;
            }
            done.add(|| match ends {
                ClosingSide::Server => request(server, is_answer),
                ClosingSide::Client => ask(&mut connect(server)?, is_answer),
            });
        }
        Ok(done)
    };
    let mut all = Done::default();
    thread::scope(|scope| {
        let start = || scope.spawn(|| client.enter(work));
        let workers: Vec<_> = (0..threads).map(|_| start()).collect();
        workers.into_iter().try_for_each(|worker| -> Result<()> {
            all.merge(worker.join().expect("no client panics")?);
            Ok(())
        })
    })?;
    all.elapsed = started.elapsed();
    Ok(all)
}

/// Sends a request after which the server closes the connection.
fn request(server: &SocketAddr, is_answer: fn(&[u8]) -> bool) -> Result<()> {
    let mut connection = connect(server)?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::with_capacity(512);
    connection.read_to_end(&mut answer)?;
    ensure!(
        is_answer(&answer),
        "{server} did not answer the request, but sent {:?}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

fn connect(server: &SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(server, LIMIT)?;
    connection.set_read_timeout(Some(LIMIT))?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// Sends one request after the other for some time over one connection. Returns the number of
/// connections: a failed request ends its connection.
pub fn load_kept_connection(
    client: &Host,
    server: &SocketAddr,
    time: Duration,
    is_answer: fn(&[u8]) -> bool,
) -> Result<(Done, u64)> {
    client.enter(|| {
        let mut done = Done::default();
        let mut connections = 0;
        let started = Instant::now();
        while started.elapsed() < time {
            let mut connection = connect(server)?;
            connections += 1;
            while started.elapsed() < time && done.add(|| ask(&mut connection, is_answer)) {}
        }
        done.elapsed = started.elapsed();
        Ok((done, connections))
    })
}

/// Sends a request that leaves the connection open; the response contains its length.
fn ask(connection: &mut TcpStream, is_answer: fn(&[u8]) -> bool) -> Result<()> {
    connection.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")?;
    let mut answer = [0; 1024];
    let mut length = 0;
    loop {
        let read = connection.read(&mut answer[length..])?;
        ensure!(read > 0, "the connection ended, or the answer is too long");
        length += read;
        if let Some(whole) = whole_length(&answer[..length]) {
            if whole < length {
                bail!("{} bytes more than the answer came", length - whole);
            }
            if whole == length {
                break;
            }
        }
    }
    ensure!(is_answer(&answer[..length]), "what came is not a reply");
    Ok(())
}

/// The length of an HTTP response with its head, once the head is complete.
fn whole_length(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&answer[..head]).ok()?;
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "))?;
    Some(head + length.parse::<usize>().ok()?)
}

/// Exchanges a datagram from each of these ports: the first packets of flows, if the ports were
/// idle before.
pub fn load_datagrams(
    client: &Host,
    server: &SocketAddr,
    ports: Range<u16>,
    from: &str,
) -> Result<Done> {
    client.enter(|| {
        let mut done = Done::default();
        let started = Instant::now();
        for port in ports {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            socket.connect(server)?;
            socket.set_read_timeout(Some(LIMIT))?;
            done.add(|| exchange_datagram(&socket, from));
        }
        done.elapsed = started.elapsed();
        Ok(done)
    })
}

/// Exchanges a datagram with the echo server of this name.
pub fn exchange_datagram(socket: &UdpSocket, from: &str) -> Result<()> {
    socket.send(b"hello")?;
    let mut answer = [0; 128];
    let length = socket.recv(&mut answer)?;
    ensure!(
        answer[..length].starts_with(from.as_bytes()),
        "{:?} was answered",
        String::from_utf8_lossy(&answer[..length])
    );
    Ok(())
}

/// Whether it is a successful response of a web server.
pub fn is_ok(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/1.1 200")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_the_length_in_its_header() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nweb-a\n";
        assert_eq!(whole_length(answer), Some(answer.len()));
        assert_eq!(whole_length(&answer[..40]), Some(answer.len()));
        assert_eq!(whole_length(&answer[..30]), None);
    }

    #[test]
    fn percentiles_count_completed_requests() {
        let times = (1..=101).rev().map(Duration::from_micros).collect();
        let mut done = Done { times, failed: 3, ..Done::default() };
        assert_eq!(done.percentile(50), Some(Duration::from_micros(51)));
        assert_eq!(done.percentile(99), Some(Duration::from_micros(100)));
        assert_eq!(Done::default().percentile(50), None);
    }
}
