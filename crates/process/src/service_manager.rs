//! Notifies systemd, if it requests that (`$NOTIFY_SOCKET`), and asks whether it shuts the machine down.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::oneshot;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// A directory that exists on machines which systemd has booted, and not in containers on them.
const SYSTEMD_DIRECTORY: &str = "/run/systemd/system";
/// How long an end waits for systemd.
const SYSTEMD_TIMEOUT: Duration = Duration::from_secs(1);

/// Errors are only logged.
pub fn notify_service_manager(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(error = format!("{error:#}"), "service manager not notified");
    }
}

/// Reports that the agent's loop runs, as often as the service manager requests it.
pub struct Watchdog(Option<Interval>);

impl Watchdog {
    pub fn start() -> Self {
        Self(sd_notify::watchdog_enabled().map(|limit| {
            // Twice in the time after which systemd considers the agent dead.
            let mut interval = interval((limit / 2).max(Duration::from_millis(1)));
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        }))
    }

    /// Never returns if the service manager requests no reports.
    pub async fn due(&mut self) {
        match &mut self.0 {
            Some(interval) => drop(interval.tick().await),
            None => std::future::pending().await,
        }
    }
}

/// Whether systemd ends this process because the machine shuts down.
pub async fn machine_is_stopping() -> bool {
    let mut command = Command::new("systemctl");
    command.arg("is-system-running");
    Path::new(SYSTEMD_DIRECTORY).is_dir() && prints_stopping(command).await
}

/// Whether a command prints that.
async fn prints_stopping(mut command: Command) -> bool {
    let (answer, answered) = oneshot::channel();
    // Not awaited if systemd does not reply.
    thread::spawn(move || {
        // Only the state `running` is a success.
        let is_so = command
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.stdout.trim_ascii() == b"stopping");
        let _ = answer.send(is_so);
    });
    matches!(timeout(SYSTEMD_TIMEOUT, answered).await, Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_machine_that_stops_is_stopping() {
        for (script, expected) in [
            ("echo stopping; exit 1", true),
            ("echo running", false),
            ("echo degraded; exit 1", false),
            ("echo stopping >&2", false),
            ("exec sleep 10", false),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            assert_eq!(prints_stopping(command).await, expected, "{script}");
        }
        assert!(!prints_stopping(Command::new("/no/such/program")).await);
    }
}
