//! Processor time of commands.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// How a command ended, and the processor time of it and of all processes that it and they have waited for.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub processor: Duration,
}

/// Waits until a command has ended.
pub fn wait_for(child: &Child) -> io::Result<Ended> {
    loop {
        if let Some(ended) = wait4(child, 0)? {
            return Ok(ended);
        }
    }
}

/// How a command ended, if it has.
pub fn try_wait(child: &Child) -> io::Result<Option<Ended>> {
    wait4(child, libc::WNOHANG)
}

fn wait4(child: &Child, flags: i32) -> io::Result<Option<Ended>> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to values of this function, of the types that the call writes.
    let pid =
        unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, flags, usage.as_mut_ptr()) };
    match pid {
        0 => Ok(None),
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
        _ => {
            // SAFETY: integers, of which zero is a value, too.
            let usage = unsafe { usage.assume_init() };
            let processor = duration(usage.ru_utime) + duration(usage.ru_stime);
            Ok(Some(Ended { status: ExitStatus::from_raw(status), processor }))
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use anyhow::Result;

    use super::*;

    #[test]
    fn the_time_of_descendants_counts() -> Result<()> {
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let child = Command::new("sh").args(["-c", &format!("sh -c '{busy}'; exit 3")]).spawn()?;
        let ended = wait_for(&child)?;
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.processor >= Duration::from_millis(10), "{ended:?}");
        Ok(())
    }

    #[test]
    fn a_running_command_has_not_ended() -> Result<()> {
        let mut child = Command::new("sleep").arg("60").spawn()?;
        assert!(try_wait(&child)?.is_none());
        child.kill()?;
        assert_eq!(wait_for(&child)?.status.signal(), Some(libc::SIGKILL));
        Ok(())
    }
}
