//! Runs the program of a hook, and ends all that it leaves.
//!
//! # Invariant
//! A program has no capabilities. When it has ended, nothing of its process group is left, not even zombies: in a
//! container the agent is process 1, which gets all orphans.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_kernel::privileges::give_up_capabilities;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getsid, setsid};

/// How often the end of a program is looked for.
const PROGRAM_POLL: Duration = Duration::from_millis(20);
/// The time that killed processes have to end.
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// Where programs find others.
const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Only one program runs at a time: [`reap_orphans`] must not see the leader of another group.
static ONE_PROGRAM: Mutex<()> = Mutex::new(());

/// Runs a program with the request as its input, without the agent's environment and capabilities. What it prints as
/// errors is in the agent's log. Fails if it does not succeed within the limit. When this returns, the program and its
/// children have ended.
pub(super) fn run_program(path: &Path, request: &str, limit: Duration) -> Result<()> {
    let _one = ONE_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    reap_orphans();
    let mut group = ProgramGroup::start(path, request)?;
    let deadline = Instant::now() + limit;
    while !group.has_ended()? {
        if Instant::now() >= deadline {
            group.end()?;
            bail!("the program did not end in time, and was killed");
        }
        thread::sleep(PROGRAM_POLL);
    }
    let status = group.end()?;
    ensure!(status.success(), "the program ended with {status}");
    Ok(())
}

/// A program and its children, in a session of their own. They are killed when this is dropped.
struct ProgramGroup {
    leader: Child,
    /// The process group, which has the id of its leader.
    id: Pid,
    has_ended: bool,
}

impl ProgramGroup {
    fn start(path: &Path, request: &str) -> Result<Self> {
        let mut command = Command::new(path);
        command.env_clear().env("PATH", PROGRAM_PATH);
        command.stdin(memory_file(request)?).stdout(Stdio::null());
        let prepare = || {
            setsid()?;
            give_up_capabilities()
        };
        // SAFETY: the closure only makes system calls.
        unsafe { command.pre_exec(prepare) };
        let leader = command.spawn().context("the program cannot be started")?;
        let id = Pid::from_raw(leader.id() as i32);
        Ok(Self { leader, id, has_ended: false })
    }

    /// Whether the leader has ended. It is not reaped yet, so no other process gets its id.
    fn has_ended(&self) -> io::Result<bool> {
        peek_ended(Id::Pid(self.id)).map(|ended| ended.is_some())
    }

    /// Kills what still runs, and reaps all.
    fn end(&mut self) -> Result<ExitStatus> {
        self.has_ended = true;
        // The leader was not reaped: the group is its own.
        let _ = killpg(self.id, Signal::SIGKILL);
        let deadline = Instant::now() + KILL_LIMIT;
        let status = loop {
            if let Some(status) = self.leader.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "the program was killed, and does not end");
            thread::sleep(PROGRAM_POLL);
        };
        let group = Pid::from_raw(-self.id.as_raw());
        loop {
            // Its children are now those of process 1, which may be this one.
            while let Ok(status) = waitpid(group, Some(WaitPidFlag::WNOHANG))
                && status != WaitStatus::StillAlive
            {}
            let is_empty = killpg(self.id, None).is_err();
            if is_empty || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(PROGRAM_POLL);
        }
    }
}

impl Drop for ProgramGroup {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.end();
        }
    }
}

/// Reaps ended children in other sessions than this process: former programs left them there, or did not end in time.
/// Whatever else the agent starts is in its own session, and is waited for by its owner.
fn reap_orphans() {
    let own = getsid(None);
    while let Ok(Some(id)) = peek_ended(Id::All)
        && getsid(Some(id)) != own
    {
        let _ = waitpid(id, Some(WaitPidFlag::WNOHANG));
    }
}

/// A child that has ended, without reaping it.
fn peek_ended(which: Id) -> io::Result<Option<Pid>> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(which, flags)?.pid())
}

/// A file without a name that contains the text. Nobody has to write while a program reads it, or does not.
fn memory_file(text: &str) -> Result<File> {
    let descriptor = memfd_create(c"request", MFdFlags::MFD_CLOEXEC);
    let mut file = File::from(descriptor.context("no memory for the request")?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A program that does this with its input.
    pub(crate) fn write_program(directory: &Path, script: &str) -> PathBuf {
        let path = directory.join("hook");
        fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", directory.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Waits for the process whose id a program has written.
    fn is_gone(file: &Path) -> bool {
        let id = fs::read_to_string(file).unwrap();
        assert!(!id.trim().is_empty());
        !Path::new("/proc").join(id.trim()).exists()
    }

    /// As process 1 of a container does.
    fn adopt_orphans() {
        nix::sys::prctl::set_child_subreaper(true).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        adopt_orphans();
        let directory = tempfile::tempdir().unwrap();
        let path = write_program(directory.path(), "sleep 600 & echo $! > child; sleep 600");
        let child = directory.path().join("child");
        // The time limit begins before the child exists.
        while !fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n')) {
            let error = run_program(&path, "{}", Duration::from_millis(200)).unwrap_err();
            assert!(error.to_string().contains("was killed"), "{error:#}");
        }
        assert!(is_gone(&child));
        let missing = run_program(Path::new("/nonexistent"), "{}", Duration::from_secs(600));
        assert!(missing.unwrap_err().to_string().contains("cannot be started"));
    }

    #[test]
    fn nothing_is_left_of_a_program_that_has_ended() {
        adopt_orphans();
        let directory = tempfile::tempdir().unwrap();
        for (end, is_success) in [("exit 0", true), ("exit 1", false)] {
            let script = format!("sleep 600 & echo $! > child; {end}");
            let path = write_program(directory.path(), &script);
            let result = run_program(&path, "{}", Duration::from_secs(600));
            assert_eq!(result.is_ok(), is_success, "{result:?}");
            assert!(is_gone(&directory.path().join("child")), "{end}");
        }
        // In a session of its own it goes on; when it has ended, the next run reaps it.
        let path = write_program(
            directory.path(),
            "setsid sh -c 'echo $$ > escaped; exec sleep 0.1' & while [ ! -s escaped ]; do sleep 0.01; done",
        );
        run_program(&path, "{}", Duration::from_secs(600)).unwrap();
        let escaped = directory.path().join("escaped");
        while !is_gone(&escaped) {
            reap_orphans_alone();
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn reap_orphans_alone() {
        let _one = ONE_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
        reap_orphans();
    }

    #[test]
    fn a_program_has_no_capabilities_and_reads_all_of_a_large_request() {
        let directory = tempfile::tempdir().unwrap();
        let script = "wc -c > size; grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status > privileges";
        let path = write_program(directory.path(), script);
        run_program(&path, &"x".repeat(1 << 20), Duration::from_secs(600)).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("size").trim(), (1 << 20).to_string());
        let none = "0000000000000000";
        let expected = format!(
            "CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\n"
        );
        assert_eq!(read("privileges"), expected);
    }
}
