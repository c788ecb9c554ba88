//! Whether this node may get traffic, and whether the agent is alive. The time is a parameter.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use lb_rules::model::AddressFamily;
use serde_json::{Value, json};

/// If a change is not programmed after this long, something is stuck. kube-proxy has the same
/// limit.
const PROGRAMMING_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Written by the agent, read by servers.
#[derive(Debug)]
pub struct Health(Mutex<HealthState>);

#[derive(Clone, Copy, Debug, Default)]
struct HealthState {
    /// The maps and programs of an earlier agent forward until this agent's are active.
    adopted: bool,
    /// This agent's programs are attached.
    attached: bool,
    /// When the last change was programmed.
    updated: Option<SystemTime>,
    /// Since when a change has been waiting to be programmed.
    waiting: Option<Instant>,
    node_ineligible: bool,
}

/// The state at one moment.
#[derive(Clone, Copy, Debug)]
pub struct HealthReport {
    pub forwarding: bool,
    /// No change has been waiting for too long.
    pub keeps_up: bool,
    pub node_eligible: bool,
    updated: Option<SystemTime>,
}

impl Health {
    /// `adopted`: whether maps and programs of an earlier agent are already active.
    pub fn new(adopted: bool) -> Self {
        Self(Mutex::new(HealthState { adopted, ..HealthState::default() }))
    }

    /// The programs are attached: only now do packets meet the tables.
    pub fn note_attached(&self) {
        self.state().attached = true;
    }

    /// Something has changed and is not programmed yet.
    pub fn note_change(&self, now: Instant) {
        self.state().waiting.get_or_insert(now);
    }

    /// All changes are programmed.
    pub fn record_programmed(&self, now: SystemTime) {
        let mut state = self.state();
        state.waiting = None;
        state.updated = Some(now);
    }

    /// A node that is being deleted must get no new traffic.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.state().node_ineligible = !eligible;
    }

    pub fn report(&self, now: Instant) -> HealthReport {
        let state = *self.state();
        let waiting = state.waiting.map(|since| now.saturating_duration_since(since));
        HealthReport {
            forwarding: state.adopted || state.attached && state.updated.is_some(),
            keeps_up: waiting.is_none_or(|waiting| waiting < PROGRAMMING_TIME_LIMIT),
            node_eligible: !state.node_ineligible,
            updated: state.updated,
        }
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        // Each field is valid by itself, so the state is usable after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HealthReport {
    /// When the last change was programmed.
    pub fn updated(&self) -> Option<SystemTime> {
        self.updated
    }

    /// Whether load balancers should send traffic.
    pub fn healthz(&self) -> bool {
        self.is_serving() && self.node_eligible
    }

    /// Whether the agent is alive. Waiting for a cluster's first objects is no reason to restart
    /// it.
    pub fn livez(&self) -> bool {
        self.keeps_up
    }

    /// Whether this node forwards, by tables that are up to date.
    pub(crate) fn is_serving(&self) -> bool {
        self.forwarding && self.keeps_up
    }

    pub fn to_json(self, with_node: bool) -> String {
        let healthy = if with_node { self.healthz() } else { self.livez() };
        let updated = rfc3339(self.updated.unwrap_or(SystemTime::UNIX_EPOCH));
        let mut report = json!({
            "lastUpdated": updated,
            "currentTime": rfc3339(SystemTime::now()),
            "healthy": healthy,
        });
        if with_node {
            report["nodeEligible"] = self.node_eligible.into();
        }
        // One set of tables holds both address families, so both have the same status.
        report["status"] = AddressFamily::ALL
            .into_iter()
            .map(|family| {
                let status = json!({"lastUpdated": updated, "healthy": self.keeps_up});
                (family.name().to_owned(), status)
            })
            .collect::<serde_json::Map<String, Value>>()
            .into();
        report.to_string()
    }
}

fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_waits_too_long_is_unhealthy_until_it_is_programmed() {
        let start = Instant::now();
        let health = Health::new(false);
        health.note_attached();
        health.record_programmed(SystemTime::now());
        health.note_change(start);
        health.note_change(start + PROGRAMMING_TIME_LIMIT / 2);
        assert!(health.report(start + PROGRAMMING_TIME_LIMIT / 2).healthz());
        let stuck = health.report(start + PROGRAMMING_TIME_LIMIT);
        assert!(!stuck.healthz() && !stuck.livez());
        health.record_programmed(SystemTime::now());
        assert!(health.report(start + PROGRAMMING_TIME_LIMIT).healthz());
    }

    #[test]
    fn before_the_first_change_is_programmed_only_adopted_tables_are_healthy() {
        let now = Instant::now();
        let fresh = Health::new(false).report(now);
        assert!(!fresh.healthz() && fresh.livez());
        assert!(Health::new(true).report(now).healthz());
    }

    #[test]
    fn a_node_without_attached_programs_is_not_healthy() {
        let now = Instant::now();
        let health = Health::new(false);
        health.record_programmed(SystemTime::now());
        let report = health.report(now);
        assert!(!report.healthz() && !report.is_serving() && report.livez());
        health.note_attached();
        assert!(health.report(now).healthz());

        let health = Health::new(false);
        health.note_attached();
        assert!(!health.report(now).healthz(), "attached to tables that could not be written");
    }

    #[test]
    fn a_node_that_is_deleted_is_alive_and_gets_no_traffic() {
        let health = Health::new(true);
        health.set_node_eligible(false);
        let report = health.report(Instant::now());
        assert!(!report.healthz() && report.livez() && report.is_serving());
        let json: Value = serde_json::from_str(&report.to_json(true)).unwrap();
        assert_eq!(json["nodeEligible"], false);
        assert_eq!(json["healthy"], false);
        assert_eq!(json["status"]["IPv6"]["healthy"], true);
        let json: Value = serde_json::from_str(&report.to_json(false)).unwrap();
        assert!(json["nodeEligible"].is_null() && json["healthy"] == true);
    }
}
