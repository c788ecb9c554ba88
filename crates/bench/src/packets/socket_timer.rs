//! A process that times system calls on UDP sockets of its host. The benchmark starts one on each host, with server
//! addresses as arguments, and writes commands to it. It answers each line with a line: nanoseconds per call.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use ::tests::worlds::topology::{Host, SOON};
use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The first argument of such a process.
pub const ARGUMENT: &str = "time-sockets";

/// Datagrams on the way at once: fewer than a receive buffer holds.
const BATCH: u32 = 64;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening a socket, connecting it, and closing it.
    Connect,
    /// Opening a socket, sending a datagram, and closing it.
    First,
    /// A further datagram from a socket that is not connected.
    Send,
    /// The reply to such a datagram.
    Receive,
    /// The address of a connected socket's peer.
    Peer,
}

impl Operation {
    pub const ALL: [Self; 5] = [Self::Connect, Self::First, Self::Send, Self::Receive, Self::Peer];

    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::First => "first",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Peer => "peer",
        }
    }

    /// The number of connections or flows that it opens.
    pub fn opened(self, times: u32) -> u64 {
        match self {
            Self::Connect | Self::First => times.into(),
            Self::Send | Self::Receive | Self::Peer => 1,
        }
    }
}

/// A running process, which ends when its input does.
pub struct Timer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Timer {
    /// Starts the process on a host, in the host's cgroup.
    pub fn start(host: &Host, servers: &[&str]) -> Result<Self> {
        let mut command = host.command(env::current_exe()?);
        command.arg(ARGUMENT).args(servers);
        // In a process group of its own: Ctrl-C would end it before the benchmark.
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.context("its output is a pipe")?);
        Ok(Self { child, input, output })
    }

    /// Returns the nanoseconds per call, of so many calls.
    pub fn time(&mut self, operation: Operation, target: SocketAddr, times: u32) -> Result<f64> {
        let input = self.input.as_mut().context("its input is a pipe")?;
        writeln!(input, "{} {target} {times}", operation.name())?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the process has ended; it said {line:?}"))
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.input.take();
        let _ = self.child.wait();
    }
}

/// The process itself.
pub fn time_sockets(servers: &[String]) -> Result<()> {
    stay_on_one_cpu()?;
    let open_server = |server: &String| open(server.parse()?);
    let servers: Vec<UdpSocket> = servers.iter().map(open_server).collect::<Result<_>>()?;
    for line in io::stdin().lines() {
        let line = line?;
        let [operation, target, times] = line.split(' ').collect::<Vec<_>>()[..] else {
            bail!("unknown command {line:?}");
        };
        let operation = Operation::ALL.into_iter().find(|known| known.name() == operation);
        let (target, times) = (target.parse()?, times.parse()?);
        let own = servers.iter().find(|server| server.local_addr().ok() == Some(target));
        // The address of the Service, which leads to the first server.
        let server = own.or(servers.first()).context("no server")?;
        let time = match operation.with_context(|| format!("unknown command {line:?}"))? {
            Operation::Connect => connect(target, times),
            Operation::First => first(server, target, times),
            Operation::Send => time_exchanges(server, target, times).map(|(sent, _)| sent),
            Operation::Receive => {
                time_exchanges(server, target, times).map(|(_, received)| received)
            }
            Operation::Peer => peer(target, times),
        }
        .with_context(|| line.clone())?;
        println!("{}", time.as_nanos() as f64 / f64::from(times));
    }
    Ok(())
}

/// Uses the first CPU only, as the processes on the other hosts do.
fn stay_on_one_cpu() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.context("no CPU")?)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}

fn open(address: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).with_context(|| format!("binding {address}"))?;
    socket.set_read_timeout(Some(SOON))?;
    Ok(socket)
}

/// Any port of any address, of the target's family.
fn unbound(target: SocketAddr) -> SocketAddr {
    let mut any = target;
    any.set_ip(if target.is_ipv6() { [0; 16].into() } else { [0; 4].into() });
    any.set_port(0);
    any
}

fn connect(target: SocketAddr, times: u32) -> Result<Duration> {
    let any = unbound(target);
    let began = Instant::now();
    for _ in 0..times {
        UdpSocket::bind(any)?.connect(target)?;
    }
    Ok(began.elapsed())
}

fn first(server: &UdpSocket, target: SocketAddr, times: u32) -> Result<Duration> {
    let any = unbound(target);
    let mut time = Duration::ZERO;
    for batch in batches(times) {
        let began = Instant::now();
        for _ in 0..batch {
            UdpSocket::bind(any)?.send_to(b"request", target)?;
        }
        time += began.elapsed();
        for _ in 0..batch {
            server.recv_from(&mut [0; 16])?;
        }
    }
    Ok(time)
}

/// Sizes of batches.
fn batches(times: u32) -> impl Iterator<Item = u32> {
    (0..times).step_by(BATCH as usize).map(move |done| BATCH.min(times - done))
}

fn peer(target: SocketAddr, times: u32) -> Result<Duration> {
    let socket = open(unbound(target))?;
    socket.connect(target)?;
    let began = Instant::now();
    for _ in 0..times {
        ensure!(socket.peer_addr()? == target, "the peer has another address");
    }
    Ok(began.elapsed())
}

/// Sends requests to the target, which leads to the server, and its replies. Returns the times of sending the requests
/// and of receiving the replies.
fn time_exchanges(
    server: &UdpSocket,
    target: SocketAddr,
    times: u32,
) -> Result<(Duration, Duration)> {
    let client = open(unbound(target))?;
    let (mut sent, mut received) = (Duration::ZERO, Duration::ZERO);
    let mut buffer = [0; 16];
    for batch in batches(times) {
        let began = Instant::now();
        for _ in 0..batch {
            client.send_to(b"request", target)?;
        }
        sent += began.elapsed();
        for _ in 0..batch {
            let (_, from) = server.recv_from(&mut buffer)?;
            server.send_to(b"reply", from)?;
        }
        let began = Instant::now();
        for _ in 0..batch {
            let (_, from) = client.recv_from(&mut buffer)?;
            ensure!(from == target, "a reply came from {from}");
        }
        received += began.elapsed();
    }
    Ok((sent, received))
}
