//! Running programs, with errors that quote what they said.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs a program to its end; returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    output(command.args(arguments))
}

pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{:?} can't be started", command.get_program()))?;
    if !output.status.success() {
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until something is so; fails with what it waited for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    // Generous: the machine may be busy. It costs only when something is wrong.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        if Instant::now() > deadline {
            bail!("waited 20 s in vain: {what}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A program in the background; killed when dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
    what: String,
}

impl Process {
    /// Starts a program whose output goes to a file.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log)?;
        let what = format!("{:?}", command.get_program());
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("{command:?} can't be started"))?;
        Ok(Self { child, log: log.to_owned(), what })
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said something, and fails if it ends before.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        let mut ended = None;
        let waited = wait_until(&format!("{} says {text:?}", self.what), || {
            ended = self.child.try_wait().ok().flatten();
            ended.is_some() || self.said().contains(text)
        });
        if !self.said().contains(text) {
            bail!("{waited:?}; {} ended: {ended:?}; it said:\n{}", self.what, self.said());
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        let mut ended = None;
        wait_until(&format!("{} ends", self.what), || {
            ended = self.child.try_wait().ok().flatten();
            ended.is_some()
        })?;
        ended.context("it has ended")
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {} said:\n{}", self.what, self.said());
        }
    }
}
