//! A client that sends requests while something changes, and records every result.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use crate::worlds::topology::{Host, SOON, wait_until};

/// Time limit of a response; its end is a result of its own.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of one request over its own connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// A response from the [`Host::tcp_echo`] of this name.
    From(String),
    /// The connection was refused.
    Refused,
    /// No connection, and no refusal.
    NoConnection,
    /// The connection was opened, but there was no response.
    Broken,
}

/// Sends requests to one frontend until it is dropped.
#[must_use = "it stops when dropped"]
pub struct Watcher {
    frontend: String,
    shared: Arc<WatcherState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WatcherState {
    stop: AtomicBool,
    seen: Mutex<RequestResults>,
}

/// The results in order, each with its number of repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestResults(pub Vec<(RequestResult, usize)>);

impl Watcher {
    /// Starts with a frontend such as `203.0.113.10:80`.
    pub fn start(client: &Host, frontend: &str) -> Result<Self> {
        let address: SocketAddr = frontend.parse().with_context(|| frontend.to_owned())?;
        let shared = Arc::new(WatcherState::default());
        let thread = thread::spawn({
            let (client, shared) = (client.clone(), shared.clone());
            move || {
                let asked = client.enter(|| {
                    while !shared.stop.load(Ordering::Relaxed) {
                        let outcome = ask(address);
                        shared.seen().note(outcome);
                    }
                    Ok(())
                });
                // Without results the waiting test fails.
                if let Err(error) = asked {
                    eprintln!("{error:#}");
                }
            }
        });
        Ok(Self { frontend: frontend.to_owned(), shared, thread: Some(thread) })
    }

    /// All results so far.
    pub fn seen(&self) -> RequestResults {
        self.shared.seen().clone()
    }

    /// Waits for this number of further results.
    pub fn wait_for_more(&self, requests: usize) -> Result<()> {
        let wanted = self.seen().count() + requests;
        let what = format!("{} has been sent {requests} more requests", self.frontend);
        wait_until(&what, SOON, || self.seen().count() >= wanted)
    }

    /// Waits until the last result is this one.
    pub fn wait_for(&self, outcome: &RequestResult) -> Result<()> {
        let what = format!("the result of {} is {outcome:?}", self.frontend);
        wait_until(&what, SOON, || self.seen().last() == Some(outcome))
            .with_context(|| self.seen().to_string())
    }

    /// Stops; returns all results.
    pub fn stop(mut self) -> RequestResults {
        self.join();
        self.seen()
    }

    fn join(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.join();
    }
}

impl WatcherState {
    fn seen(&self) -> MutexGuard<'_, RequestResults> {
        // Results stay valid after a panic.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestResults {
    fn note(&mut self, outcome: RequestResult) {
        match self.0.last_mut() {
            Some((last, times)) if *last == outcome => *times += 1,
            _ => self.0.push((outcome, 1)),
        }
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, times)| times).sum()
    }

    /// Number of responses from this server.
    pub fn count_of(&self, name: &str) -> usize {
        let from =
            |outcome: &RequestResult| matches!(outcome, RequestResult::From(from) if from == name);
        self.0.iter().filter(|(outcome, _)| from(outcome)).map(|(_, times)| times).sum()
    }

    pub fn last(&self) -> Option<&RequestResult> {
        self.0.last().map(|(outcome, _)| outcome)
    }

    /// The results without repetitions.
    pub fn turns(&self) -> Vec<&RequestResult> {
        self.0.iter().map(|(outcome, _)| outcome).collect()
    }

    /// Results other than responses from these servers.
    pub fn others(&self, allowed: &[&str]) -> Vec<&(RequestResult, usize)> {
        let is_allowed = |outcome: &RequestResult| matches!(outcome, RequestResult::From(name) if allowed.contains(&&**name));
        self.0.iter().filter(|(outcome, _)| !is_allowed(outcome)).collect()
    }
}

impl fmt::Display for RequestResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(outcome, times)| writeln!(f, "{times} × {outcome:?}"))
    }
}

impl RequestResult {
    pub fn from(name: &str) -> Self {
        Self::From(name.to_owned())
    }
}

fn ask(frontend: SocketAddr) -> RequestResult {
    let stream = match TcpStream::connect_timeout(&frontend, PATIENCE) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return RequestResult::Refused;
        }
        Err(_) => return RequestResult::NoConnection,
    };
    match ask_over(&stream) {
        Ok(name) if !name.is_empty() => RequestResult::From(name),
        Ok(_) | Err(_) => RequestResult::Broken,
    }
}

/// Sends a request; returns the server's name.
fn ask_over(stream: &TcpStream) -> io::Result<String> {
    // Closed by a reset, without TIME_WAIT, which would soon use up all ports.
    setsockopt(&stream.as_fd(), sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&*stream).write_all(b"who\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}
