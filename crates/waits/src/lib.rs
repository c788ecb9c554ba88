//! What a process waits for, for the person who asks why nothing happens.
//!
//! Whoever waits for something outside of the process begins a [`Wait`] and drops it when the wait is
//! over. One that lasts longer than [`LONG_WAIT`] is in the log (once, then rarely), and in
//! [`Waits::long`], from which the status and the metrics of the process are made.
//!
//! Invariant: a wait never delays or changes what it describes.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

/// Shorter waits are not worth mentioning.
pub const LONG_WAIT: Duration = Duration::from_secs(5);
/// The age at which a wait is logged again after it was logged first. From the last one on it is
/// logged each time that it has lasted for as long again.
const REPEATED_LOG_AGES: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(600), Duration::from_secs(3600)];
/// How often waits are looked at for the log.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What kind of thing is waited for. The name is a label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// A list or watch of an API server that does not reply, or not completely.
    ApiServer,
    /// What this account may not do, or credentials that are not accepted.
    Permission,
    /// A Lease that another process holds.
    Lease,
    /// What another agent on this machine has locked.
    Lock,
    /// A router or another node.
    Neighbour,
    /// An interface of this machine.
    Device,
    /// A key or certificate.
    Key,
    /// A server that is called when addresses move.
    Hook,
}

impl Resource {
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "api_server",
            Self::Permission => "permission",
            Self::Lease => "lease",
            Self::Lock => "lock",
            Self::Neighbour => "neighbour",
            Self::Device => "device",
            Self::Key => "key",
            Self::Hook => "hook",
        }
    }
}

impl Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A wait that has lasted longer than [`LONG_WAIT`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LongWait {
    pub resource: Resource,
    /// What is waited for, such as `list of Services`.
    pub subject: String,
    /// Why it has not come yet, as far as is known.
    pub reason: String,
    pub seconds: u64,
}

impl Display for LongWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting for {} for {} s", self.subject, self.seconds)?;
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

/// All waits of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Waits(Arc<Mutex<OpenWaits>>);

#[derive(Debug, Default)]
struct OpenWaits {
    next: u64,
    entries: BTreeMap<u64, OpenWait>,
}

#[derive(Debug)]
struct OpenWait {
    resource: Resource,
    subject: String,
    reason: String,
    since: Instant,
    /// When it is logged next.
    next_report: Instant,
    reports: usize,
}

impl Waits {
    /// The waits of this process, as its log is one for all its parts.
    pub fn of_process() -> Self {
        static WAITS: LazyLock<Waits> = LazyLock::new(Waits::default);
        WAITS.clone()
    }

    /// The wait lasts until the returned value is dropped.
    pub fn begin(&self, resource: Resource, subject: impl Into<String>) -> Wait {
        self.begin_at(Instant::now(), resource, subject)
    }

    /// The wait began earlier.
    pub fn begin_at(&self, since: Instant, resource: Resource, subject: impl Into<String>) -> Wait {
        let subject = subject.into();
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let entry = OpenWait {
            resource,
            subject,
            reason: String::new(),
            since,
            next_report: since + LONG_WAIT,
            reports: 0,
        };
        state.entries.insert(id, entry);
        Wait { waits: self.clone(), id }
    }

    /// The waits that have lasted longer than [`LONG_WAIT`], the longest first.
    pub fn long(&self, now: Instant) -> Vec<LongWait> {
        let state = self.state();
        let mut long: Vec<&OpenWait> =
            state.entries.values().filter(|entry| entry.age(now) >= LONG_WAIT).collect();
        long.sort_by_key(|entry| entry.since);
        long.into_iter().map(|entry| entry.describe(now)).collect()
    }

    /// The waits that are to be logged now.
    fn take_due(&self, now: Instant) -> Vec<LongWait> {
        let mut state = self.state();
        let due = state.entries.values_mut().filter(|entry| now >= entry.next_report);
        due.map(|entry| {
            let next = match REPEATED_LOG_AGES.get(entry.reports) {
                Some(age) => entry.since + *age,
                None => now + REPEATED_LOG_AGES[REPEATED_LOG_AGES.len() - 1],
            };
            entry.reports += 1;
            // A process that stood still logs a wait once, not once for each age that it missed.
            entry.next_report = next.max(now + LOG_CHECK_INTERVAL);
            entry.describe(now)
        })
        .collect()
    }

    /// Logs long waits until it is dropped.
    pub async fn log(self) {
        let mut ticks = interval(LOG_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for LongWait { resource, subject, reason, seconds } in self.take_due(Instant::now()) {
                // A process that stands by is healthy.
                if resource == Resource::Lease {
                    tracing::info!(%resource, subject, reason, waited_s = seconds, "still waiting");
                } else {
                    tracing::warn!(%resource, subject, reason, waited_s = seconds, "still waiting");
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, OpenWaits> {
        // Each entry is valid by itself, so the state is usable after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenWait {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn describe(&self, now: Instant) -> LongWait {
        LongWait {
            resource: self.resource,
            subject: self.subject.clone(),
            reason: self.reason.clone(),
            seconds: self.age(now).as_secs(),
        }
    }
}

/// Something is waited for until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Wait {
    waits: Waits,
    id: u64,
}

impl Wait {
    /// States why the wait lasts; replaces an earlier reason.
    pub fn explain(&self, reason: impl Into<String>) {
        self.change(|entry| entry.reason = reason.into());
    }

    /// What is waited for turns out to be of another kind.
    pub fn is_for(&self, resource: Resource) {
        self.change(|entry| entry.resource = resource);
    }

    fn change(&self, change: impl FnOnce(&mut OpenWait)) {
        if let Some(entry) = self.waits.state().entries.get_mut(&self.id) {
            change(entry);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let ended = self.waits.state().entries.remove(&self.id);
        if let Some(entry) = ended.filter(|entry| entry.reports > 0) {
            let (resource, subject) = (entry.resource, &entry.subject);
            let waited_s = entry.age(Instant::now()).as_secs();
            tracing::info!(%resource, subject, waited_s, "no longer waiting");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_long_waits_are_shown_and_only_while_they_last() {
        let waits = Waits::default();
        let start = Instant::now();
        let services = waits.begin_at(start, Resource::ApiServer, "list of Services");
        services.explain("no response within 60 s");
        let lock = waits.clone().begin_at(start, Resource::Lock, "/sys/fs/bpf/millrace");
        assert_eq!(waits.long(start + LONG_WAIT - SECOND), []);
        let later = start + 7 * SECOND;
        let long = waits.long(later);
        let shown: Vec<String> = long.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "waiting for list of Services for 7 s: no response within 60 s",
                "waiting for /sys/fs/bpf/millrace for 7 s",
            ]
        );
        drop(services);
        assert_eq!(waits.long(later).len(), 1);
        lock.is_for(Resource::Permission);
        assert_eq!(waits.long(later)[0].resource, Resource::Permission);
        drop(lock);
        assert_eq!(waits.long(later), []);
    }

    #[test]
    fn a_long_wait_is_logged_once_and_then_rarely() {
        let waits = Waits::default();
        let start = Instant::now();
        let wait = waits.begin_at(start, Resource::Neighbour, "192.0.2.1");
        let mut logged = Vec::new();
        for second in 0..3 * 3600 + 10 {
            if !waits.take_due(start + second * SECOND).is_empty() {
                logged.push(second);
            }
        }
        assert_eq!(logged, [5, 60, 600, 3600, 7200, 10800]);
        drop(wait);
        assert!(waits.take_due(start + 24 * 3600 * SECOND).is_empty());
    }

    #[test]
    fn a_process_that_stood_still_logs_a_wait_once() {
        let waits = Waits::default();
        let _wait = waits.begin(Resource::Key, "tunnel key");
        let later = Instant::now() + 1000 * SECOND;
        assert_eq!(waits.take_due(later).len(), 1);
        assert!(waits.take_due(later).is_empty());
    }
}
