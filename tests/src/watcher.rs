//! A client that never stops asking while something changes: every answer counts.

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

use crate::topology::{Host, SOON, wait_until};

/// How long it waits for an answer. That none comes is told as such.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of one request, over a connection of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// From the [`Host::tcp_echo`] of this name.
    From(String),
    /// Somebody says that nobody serves there.
    Refused,
    /// No connection, and not refused: the address is nobody's.
    Nobody,
    /// The connection was opened, and there was no answer to the request.
    Broken,
}

/// Asks one frontend in a loop, until it is dropped.
#[must_use = "it stops when dropped"]
pub struct Watcher {
    frontend: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    seen: Mutex<Seen>,
}

/// The answers in their order; how often each came without another in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(pub Vec<(Answer, usize)>);

impl Watcher {
    /// A frontend is `203.0.113.10:80`.
    pub fn start(client: &Host, frontend: &str) -> Result<Self> {
        let address: SocketAddr = frontend.parse().with_context(|| frontend.to_owned())?;
        let shared = Arc::new(Shared::default());
        let thread = thread::spawn({
            let (client, shared) = (client.clone(), shared.clone());
            move || {
                let asked = client.enter(|| {
                    while !shared.stop.load(Ordering::Relaxed) {
                        let answer = ask(address);
                        shared.seen().note(answer);
                    }
                    Ok(())
                });
                // A host that can't be entered gives no answers, which whoever waits will notice.
                if let Err(error) = asked {
                    eprintln!("{error:#}");
                }
            }
        });
        Ok(Self { frontend: frontend.to_owned(), shared, thread: Some(thread) })
    }

    /// All answers so far.
    pub fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }

    /// Waits for so many more answers.
    pub fn wait_for_more(&self, answers: usize) -> Result<()> {
        let wanted = self.seen().count() + answers;
        let what = format!("{} has been asked {answers} times more", self.frontend);
        wait_until(&what, SOON, || self.seen().count() >= wanted)
    }

    /// Waits until the last answer is this one.
    pub fn wait_for(&self, answer: &Answer) -> Result<()> {
        let what = format!("{} answers {answer:?}", self.frontend);
        wait_until(&what, SOON, || self.seen().last() == Some(answer))
            .with_context(|| self.seen().to_string())
    }

    /// Stops asking; everything that was answered.
    pub fn stop(mut self) -> Seen {
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

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // What was noted before a panic is still so.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn note(&mut self, answer: Answer) {
        match self.0.last_mut() {
            Some((last, times)) if *last == answer => *times += 1,
            _ => self.0.push((answer, 1)),
        }
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, times)| times).sum()
    }

    /// How often this server answered.
    pub fn count_of(&self, name: &str) -> usize {
        let from = |answer: &Answer| matches!(answer, Answer::From(from) if from == name);
        self.0.iter().filter(|(answer, _)| from(answer)).map(|(_, times)| times).sum()
    }

    pub fn last(&self) -> Option<&Answer> {
        self.0.last().map(|(answer, _)| answer)
    }

    /// The answers, each as often as it took another one's place.
    pub fn turns(&self) -> Vec<&Answer> {
        self.0.iter().map(|(answer, _)| answer).collect()
    }

    /// Those that are not from one of these.
    pub fn others(&self, allowed: &[&str]) -> Vec<&(Answer, usize)> {
        let is_allowed =
            |answer: &Answer| matches!(answer, Answer::From(name) if allowed.contains(&&**name));
        self.0.iter().filter(|(answer, _)| !is_allowed(answer)).collect()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(answer, times)| writeln!(f, "{times} × {answer:?}"))
    }
}

impl Answer {
    pub fn from(name: &str) -> Self {
        Self::From(name.to_owned())
    }
}

fn ask(frontend: SocketAddr) -> Answer {
    let stream = match TcpStream::connect_timeout(&frontend, PATIENCE) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Answer::Refused,
        Err(_) => return Answer::Nobody,
    };
    match ask_over(&stream) {
        Ok(name) if !name.is_empty() => Answer::From(name),
        Ok(_) | Err(_) => Answer::Broken,
    }
}

/// Who answers.
fn ask_over(stream: &TcpStream) -> io::Result<String> {
    // Closed by a reset: else its port would be taken for a minute, and soon all ports.
    setsockopt(&stream.as_fd(), sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&*stream).write_all(b"who\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}
