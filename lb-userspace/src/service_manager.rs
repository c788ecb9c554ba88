//! Notifies systemd, if it requests that (`$NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Errors are only logged.
pub fn notify_service_manager(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(error = format!("{error:#}"), "service manager not notified");
    }
}

/// Reports that the agent's loop runs, as often as the service manager requests it.
pub struct Watchdog(Option<Interval>);

impl Watchdog {
    pub fn new() -> Self {
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
