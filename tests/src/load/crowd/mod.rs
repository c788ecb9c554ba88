//! Many long connections to one address, and new ones all the time: which of them are lost while something changes. One
//! thread has all sockets of the clients, so that thousands are cheap.

mod servers;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::libc::linger;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::worlds::announcers::IMPATIENT;
use crate::worlds::topology::{Host, SOON, wait_until};

pub use servers::Servers;

/// A connection without a reply for this long is lost. TCP repeats a segment several times in it.
const PATIENCE: Duration = Duration::from_secs(40);
/// The shortest time between two requests of a long connection.
const SHORTEST: Duration = Duration::from_millis(50);

pub struct Crowd {
    runtime: Runtime,
    shared: Arc<CrowdState>,
}

struct CrowdState {
    target: SocketAddr,
    seen: Mutex<CrowdObservations>,
}

struct CrowdObservations {
    /// Servers whose connections may be lost.
    ended: BTreeSet<Ipv4Addr>,
    /// When the last request of each connection was sent that got a reply.
    replied: Vec<Option<Instant>>,
    outcome: CrowdReport,
    /// When the first and the last attempt began that failed.
    failing: Option<[Instant; 2]>,
}

/// What has happened since the last look.
#[derive(Clone, Debug, Default)]
pub struct CrowdReport {
    /// Long connections whose server still runs.
    pub lost: Vec<Loss>,
    /// Long connections whose server has ended.
    pub ended: usize,
    /// The longest time until a reply on a long connection that survived.
    pub longest_wait: Duration,
    /// Attempts to open a connection and to get a reply, each within [`IMPATIENT`].
    pub attempts: usize,
    pub failed: usize,
    /// Between the beginnings of the first and the last attempt that failed.
    pub failing: Duration,
}

/// A connection that was lost.
#[derive(Clone, Debug)]
pub struct Loss {
    pub client: SocketAddr,
    pub server: Ipv4Addr,
    pub why: String,
}

impl Crowd {
    /// Opens long connections of a client, and waits until each has a server. Between two requests, each waits for a time
    /// of its own, `longest` at most.
    pub fn start(
        client: &Host,
        target: SocketAddr,
        connections: usize,
        longest: Duration,
    ) -> Result<Self> {
        lb_process::raise_file_limit();
        let seen = CrowdObservations {
            ended: BTreeSet::new(),
            replied: vec![None; connections],
            outcome: CrowdReport::default(),
            failing: None,
        };
        let shared = Arc::new(CrowdState { target, seen: Mutex::new(seen) });
        let crowd = Self { runtime: one_thread(Some(client))?, shared };
        for index in 0..connections {
            let more = longest.saturating_sub(SHORTEST);
            let pause = SHORTEST + more * index as u32 / connections as u32;
            crowd.runtime.spawn(keep(Arc::clone(&crowd.shared), index, pause));
        }
        crowd.settle()?;
        crowd.take();
        Ok(crowd)
    }

    /// Opens another connection whenever this time has passed, from now on.
    pub fn attempt_every(&self, pause: Duration) {
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            let mut due = tokio::time::interval(pause);
            loop {
                due.tick().await;
                tokio::spawn(attempt(Arc::clone(&shared)));
            }
        });
    }

    /// From now on, connections of these servers may be lost.
    pub fn expect_end(&self, servers: impl IntoIterator<Item = Ipv4Addr>) {
        self.shared.seen().ended.extend(servers);
    }

    /// Waits until each long connection has got a reply to a request of after now. Those that were lost are opened
    /// again.
    pub fn settle(&self) -> Result<()> {
        let now = Instant::now();
        let mut missing = 0;
        let limit = (PATIENCE * 2).max(SOON);
        wait_until("all connections have got a reply", limit, || {
            let seen = self.shared.seen();
            let is_late = |at: &&Option<Instant>| at.is_none_or(|at| at < now);
            missing = seen.replied.iter().filter(is_late).count();
            missing == 0
        })
        .with_context(|| format!("{missing} connections have none"))
    }

    /// What has happened since the last call.
    pub fn take(&self) -> CrowdReport {
        let mut seen = self.shared.seen();
        let failing = seen.failing.take();
        let outcome = std::mem::take(&mut seen.outcome);
        let failing = failing.map_or(Duration::ZERO, |[first, last]| last - first);
        CrowdReport { failing, ..outcome }
    }
}

impl CrowdState {
    fn seen(&self) -> MutexGuard<'_, CrowdObservations> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A runtime whose only thread is in the namespace of a host.
fn one_thread(host: Option<&Host>) -> Result<Runtime> {
    let namespace = host.map(Host::namespace_path);
    let enter = move || {
        if let Some(path) = &namespace {
            let file = std::fs::File::open(path).expect("the topology exists");
            setns(file, CloneFlags::CLONE_NEWNET).expect("a namespace of this test");
        }
    };
    let mut builder = Builder::new_multi_thread();
    Ok(builder.worker_threads(1).enable_all().on_thread_start(enter).build()?)
}

/// Without TIME_WAIT, which would soon use up all ports.
fn reset_on_close(stream: &TcpStream) {
    let linger = linger { l_onoff: 1, l_linger: 0 };
    // A connection that is gone needs none.
    let _ = setsockopt(&stream.as_fd(), sockopt::Linger, &linger);
}

async fn open(target: SocketAddr) -> Result<(TcpStream, Ipv4Addr)> {
    let mut stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    reset_on_close(&stream);
    let server = ask(&mut stream).await?;
    Ok((stream, server))
}

/// The server that replies.
async fn ask(stream: &mut TcpStream) -> Result<Ipv4Addr> {
    stream.write_all(b"?").await?;
    let mut address = [0; 4];
    stream.read_exact(&mut address).await?;
    Ok(address.into())
}

async fn attempt(shared: Arc<CrowdState>) {
    let began = Instant::now();
    let opened = timeout(IMPATIENT, open(shared.target)).await;
    let is_open = matches!(opened, Ok(Ok(_)));
    let mut seen = shared.seen();
    seen.outcome.attempts += 1;
    if !is_open {
        seen.outcome.failed += 1;
        let [first, last] = seen.failing.unwrap_or([began, began]);
        seen.failing = Some([first.min(began), last.max(began)]);
    }
}

/// A long connection, which is opened again when it is lost.
async fn keep(shared: Arc<CrowdState>, index: usize, pause: Duration) {
    loop {
        let began = Instant::now();
        let Ok(Ok((mut stream, server))) = timeout(PATIENCE, open(shared.target)).await else {
            sleep(SHORTEST).await;
            continue;
        };
        shared.seen().replied[index] = Some(began);
        let why = loop {
            sleep(pause).await;
            let began = Instant::now();
            let outcome = match timeout(PATIENCE, ask(&mut stream)).await {
                Ok(outcome) => outcome.and_then(|from| {
                    ensure!(from == server, "{from} replied");
                    Ok(())
                }),
                Err(_) => Err(anyhow::anyhow!("no reply within {PATIENCE:?}")),
            };
            if let Err(error) = outcome {
                break format!("{error:#}");
            }
            let mut seen = shared.seen();
            seen.replied[index] = Some(began);
            seen.outcome.longest_wait = seen.outcome.longest_wait.max(began.elapsed());
        };
        let client = stream.local_addr().unwrap_or(shared.target);
        let mut seen = shared.seen();
        if seen.ended.contains(&server) {
            seen.outcome.ended += 1;
        } else {
            seen.outcome.lost.push(Loss { client, server, why });
        }
    }
}
