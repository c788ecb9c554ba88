//! A measurement: a Deployment of real servers is rolled under new connections, without `preStop`.
//!
//! Each server ends as a good one does when it is told to: it accepts what waits, listens no more, and only then does its
//! endpoint leave the EndpointSlice. Run it with
//! `cargo test -p tests --test node rolling -- --ignored --nocapture`.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::libc::linger;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use tests::manifests::{Service, manifests};
use tests::worlds::one_node::OneNode;

/// Servers at a time. One more starts before one of them ends.
const SERVERS: usize = 4;
/// How often each is replaced.
const ROLLS: usize = 50;
/// New connections per second, of all clients.
const RATE: u32 = 1000;
const CLIENTS: u32 = 16;
/// From the end of a server to the end of its endpoint: kubelet, API server and agent take that long.
const DELAY: Duration = Duration::from_millis(200);
/// From a change of the endpoints to the next one.
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

const FRONTEND: &str = "10.96.0.20:80";
const PORT: u16 = 9090;

fn address(pod: usize) -> String {
    format!("10.244.1.{}", 10 + pod)
}

fn write_endpoints(file: &Path, pods: impl IntoIterator<Item = usize>) -> Result<()> {
    let addresses: Vec<String> = pods.into_iter().map(address).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let web = Service::new("web", &["10.96.0.20"]).tcp(80, PORT).here(&addresses);
    let new = file.with_extension("new");
    fs::write(&new, manifests(&[web]))?;
    Ok(fs::rename(new, file)?)
}

/// Serves one connection after the other until it is told to end.
fn serve(listener: &TcpListener, stop: &AtomicBool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                // What a client does wrong is its own result.
                let _ = answer(&stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Acquire) {
                    return Ok(());
                }
                let mut one = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                poll(&mut one, PollTimeout::from(10_u8))?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn answer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    BufReader::new(stream).read_line(&mut String::new())?;
    (&*stream).write_all(b"here\n")
}

#[derive(Default)]
struct Results {
    served: AtomicU64,
    refused: AtomicU64,
    reset: AtomicU64,
    late: AtomicU64,
    other: AtomicU64,
    /// The longest time until a connection was open, in milliseconds.
    slowest: AtomicU64,
}

impl Results {
    fn note(&self, result: &io::Result<()>) {
        let count = match result.as_ref().map_err(io::Error::kind) {
            Ok(()) => &self.served,
            Err(ErrorKind::ConnectionRefused) => &self.refused,
            Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof) => {
                &self.reset
            }
            Err(ErrorKind::TimedOut | ErrorKind::WouldBlock) => &self.late,
            Err(_) => &self.other,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn request(&self, frontend: &SocketAddr) -> io::Result<()> {
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(frontend, PATIENCE)?;
        let milliseconds = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.slowest.fetch_max(milliseconds, Ordering::Relaxed);
        // Closed by a reset, without TIME_WAIT, which would soon use up all ports.
        setsockopt(&stream.as_fd(), sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        (&stream).write_all(b"who\n")?;
        (&stream).read_exact(&mut [0; 5])
    }

    fn send_requests(&self, stop: &AtomicBool) -> Result<()> {
        let frontend = FRONTEND.parse()?;
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            self.note(&self.request(&frontend));
            next += Duration::from_secs(1) * CLIENTS / RATE;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    fn print(&self, moved: u64) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} served, {} refused, {} reset before data, {} timed out, {} failed otherwise; {moved} moved; slowest {} ms",
            of(&self.served),
            of(&self.refused),
            of(&self.reset),
            of(&self.late),
            of(&self.other),
            of(&self.slowest)
        )
    }
}

#[test]
#[ignore = "a measurement of two minutes"]
fn rolling_updates_refuse_no_connection() -> Result<()> {
    let network = OneNode::warm(SERVERS + 1)?;
    let file = network.write_manifests("")?;
    write_endpoints(&file, 0..SERVERS)?;
    let agent = network.agent(&file)?;
    let (results, end) = (Results::default(), AtomicBool::new(false));
    thread::scope(|scope| -> Result<()> {
        let start = |pod: usize| -> Result<_> {
            let listen: SocketAddr = format!("{}:{PORT}", address(pod)).parse()?;
            let listener = network.pods[pod].host.enter(|| Ok(TcpListener::bind(listen)?))?;
            let stop = Arc::new(AtomicBool::new(false));
            let thread = scope.spawn({
                let stop = stop.clone();
                move || serve(&listener, &stop)
            });
            Ok((stop, thread))
        };
        let mut servers =
            (0..SERVERS).map(|pod| Ok((pod, start(pod)?))).collect::<Result<Vec<_>>>()?;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| network.client.enter(|| results.send_requests(&end))))
            .collect();
        let rolled = (|| -> Result<()> {
            let mut spare = SERVERS;
            for _ in 0..ROLLS * SERVERS {
                let started = start(spare)?;
                let pods = || servers.iter().map(|(pod, _)| *pod);
                write_endpoints(&file, pods().chain([spare]))?;
                thread::sleep(PAUSE);
                let (pod, (stop, thread)) = servers.remove(0);
                servers.push((spare, started));
                stop.store(true, Ordering::Release);
                thread.join().ok().context("the server panicked")??;
                thread::sleep(DELAY);
                write_endpoints(&file, servers.iter().map(|(pod, _)| *pod))?;
                thread::sleep(PAUSE);
                spare = pod;
            }
            Ok(())
        })();
        end.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().ok().context("a client panicked")??;
        }
        for (_, (stop, _)) in &servers {
            stop.store(true, Ordering::Release);
        }
        rolled
    })?;
    let text = results.print(agent.counted("moved")?);
    println!("{text}");
    let failed = [&results.refused, &results.late, &results.other];
    ensure!(failed.iter().all(|count| count.load(Ordering::Relaxed) == 0), "{text}");
    Ok(())
}
