//! Background programs on a host.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::command::{shell_line, wait_until};
use super::shared::SharedTopology;

/// A process, which is killed with its children when dropped. Its output is printed then if the
/// test has panicked or something in its topology has failed.
#[must_use = "it is killed when dropped"]
pub struct Process {
    child: Child,
    /// `nginx on pod-a`.
    what: String,
    log: PathBuf,
    ended: Option<ExitStatus>,
    shared: Arc<SharedTopology>,
}

impl Process {
    /// `host` and `program` are the names in messages.
    pub(super) fn start(
        shared: &Arc<SharedTopology>,
        host: &str,
        program: &str,
        command: &mut Command,
    ) -> Result<Self> {
        let number = shared.logs.fetch_add(1, Ordering::Relaxed);
        let log = shared.directory.join(format!("{host}-{number}-{program}.log"));
        let output =
            File::create(&log).with_context(|| format!("{} can't be made", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // In a process group of its own, to kill its children with it, and without Ctrl-C.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} can't be started", shell_line(command)))?;
        let what = format!("{program} on {host}");
        Ok(Self { child, what, log, ended: None, shared: shared.clone() })
    }

    /// The program's process id: nsenter replaces itself by it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its stdout and stderr so far.
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for a text in the output. Fails if the process exits before.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) -> Result<()> {
        self.wait_until_so(&format!("says {text:?}"), limit, |process| {
            process.output().contains(text)
        })
    }

    /// Waits until a condition holds. Fails if the process exits before.
    pub fn wait_until_so(
        &mut self,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let what = format!("{} {what}", self.what);
        let mut so = false;
        let waited = wait_until(&what, limit, || {
            // In this order, so that its last action counts.
            let ended = self.has_ended();
            so = is_so(self);
            so || ended
        });
        match (waited, self.ended) {
            (Ok(()), _) if so => Ok(()),
            (Err(error), _) => Err(self.fail(error.to_string())),
            (Ok(()), ended) => Err(self.fail(format!("{what}: it ended before, with {ended:?}"))),
        }
    }

    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.has_ended() {
            bail!("{} can't be sent {signal}: it has ended", self.what);
        }
        kill(self.group(), signal).with_context(|| format!("{}: {signal}", self.what))
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("{} ends", self.what);
        if let Err(error) = wait_until(&what, limit, || self.has_ended()) {
            return Err(self.fail(error.to_string()));
        }
        self.ended.context("it has ended")
    }

    /// Terminates the process, and waits for its end.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(limit)
    }

    /// Kills the process, like a crash.
    pub fn kill(self) {
        // By being dropped.
    }

    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn fail(&self, message: String) -> anyhow::Error {
        self.shared.trouble.store(true, Ordering::Relaxed);
        anyhow::anyhow!("{message}; it said:\n{}", tail(&self.output()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After wait, another process may have got its id.
        if !self.has_ended() {
            let _ = killpg(self.group(), Signal::SIGKILL);
            let _ = self.child.wait();
        }
        if thread::panicking() || self.shared.trouble.load(Ordering::Relaxed) {
            eprintln!("--- {} said:\n{}", self.what, tail(&self.output()));
        }
    }
}

/// Returns the last lines of a log.
fn tail(text: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let skipped = lines.len().saturating_sub(LINES);
    let dots = if skipped > 0 { format!("... {skipped} lines before\n") } else { String::new() };
    dots + &lines[skipped..].join("\n")
}
