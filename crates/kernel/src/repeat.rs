//! Work on the flow tables that the agent repeats until it ends.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{MissedTickBehavior, interval};

/// Takes a step now and after every interval. If one fails, logs the error with a message that says
/// what follows from it.
pub fn repeat_step<T>(every: Duration, failure: &'static str, mut step: T)
where
    T: FnMut() -> Result<()> + Send + 'static,
{
    tokio::spawn(async move {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // It may read the whole flow table.
            let done = tokio::task::spawn_blocking(move || (step(), step));
            // Fails only if the step has panicked, which has been reported.
            let Ok((result, again)) = done.await else { return };
            step = again;
            if let Err(error) = result {
                tracing::warn!(error = format!("{error:#}"), "{failure}");
            }
        }
    });
}
