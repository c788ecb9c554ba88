//! What systemd is told, where it asks to be (`$NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Never a reason to fail.
pub fn tell_service_manager(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(error = format!("{error:#}"), "service manager not notified");
    }
}

/// Says that the agent's loop goes round, as often as it is wanted.
pub struct Watchdog(Option<Interval>);

impl Watchdog {
    pub fn new() -> Self {
        Self(sd_notify::watchdog_enabled().map(|limit| {
            // Twice in the time after which nothing heard means a dead agent.
            let mut interval = interval((limit / 2).max(Duration::from_millis(1)));
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        }))
    }

    /// For good, if nobody waits for it.
    pub async fn due(&mut self) {
        match &mut self.0 {
            Some(interval) => drop(interval.tick().await),
            None => std::future::pending().await,
        }
    }
}
