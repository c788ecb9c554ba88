//! Which of several processes writes to the cluster: the holder of a Lease.
//!
//! The clocks of machines differ, so none is compared with the times in the Lease: it has expired if it has not changed
//! for its duration since it was read first, by the clock of this process. Kubernetes' own controllers do the same.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use lb_rules::model::ServiceName;
use lb_waits::{Resource, Wait, Waits};
use tokio::time::{Instant, timeout};

/// How long a holder that does not renew the Lease keeps it.
const DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew the Lease for this long stops writing, before another one begins.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a write may take that its holder begins: another process may get the Lease after it.
pub const WRITE_LIMIT: Duration = DURATION.saturating_sub(DEADLINE);
/// Between two attempts to get or renew it.
pub const RETRY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(10);

pub fn host_name() -> String {
    nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned()
}

/// Names this process among all candidates for a Lease.
pub fn identity() -> String {
    let random = getrandom::u32().unwrap_or_else(|_| std::process::id());
    format!("{}_{random:08x}", host_name())
}

/// A candidate for the Lease.
struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    seen: Option<ObservedLease>,
    /// When this process last got or renewed it.
    renewed: Option<Instant>,
}

/// The Lease as it was read, and when it was read first.
struct ObservedLease {
    spec: LeaseSpec,
    since: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Renew,
    TakeOver,
    Wait,
}

impl Candidate {
    pub fn new(client: Client, lease: &ServiceName, identity: String) -> Self {
        let leases = Api::namespaced(client, &lease.namespace);
        Self { leases, name: lease.name.clone(), identity, seen: None, renewed: None }
    }

    /// Whether this process may write now.
    pub fn is_holder(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|renewed| now < renewed + DEADLINE)
    }

    /// The process that held the Lease when it was read last.
    fn holder(&self) -> Option<&str> {
        self.seen.as_ref()?.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    /// Gets the Lease or renews it, if no other process holds it.
    pub async fn attempt(&mut self) -> Result<()> {
        // A request that takes long must not extend the time.
        let began = Instant::now();
        let found = self.leases.get_opt(&self.name).await.context("the Lease can't be read")?;
        let Some(mut lease) = found else {
            let created = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                spec: Some(self.held(None)),
            };
            let created = self.leases.create(&PostParams::default(), &created).await;
            return self.written(created, began);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let step = self.next(&spec, Instant::now());
        if step == Step::Wait {
            self.renewed = None;
            return Ok(());
        }
        lease.spec = Some(self.held(Some(&spec)));
        // With the version that was read: of two candidates, one fails.
        let replaced = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        self.written(replaced, began)
    }

    fn written(&mut self, result: kube::Result<Lease>, began: Instant) -> Result<()> {
        match result {
            Ok(_) => {
                self.renewed = Some(began);
                Ok(())
            }
            // Another process was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error).context("the Lease can't be written"),
        }
    }

    fn next(&mut self, spec: &LeaseSpec, now: Instant) -> Step {
        let since = match &self.seen {
            Some(seen) if seen.spec == *spec => seen.since,
            _ => now,
        };
        self.seen = Some(ObservedLease { spec: spec.clone(), since });
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok());
        let duration = seconds.map_or(DURATION, Duration::from_secs);
        if holder == self.identity {
            Step::Renew
        } else if holder.is_empty() || now >= since + duration {
            Step::TakeOver
        } else {
            Step::Wait
        }
    }

    /// The Lease when this process holds it.
    fn held(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let mut spec = before.cloned().unwrap_or_default();
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            spec.lease_transitions = before.map(|spec| spec.lease_transitions.unwrap_or(0) + 1);
            spec.acquire_time.clone_from(&now);
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = now;
        spec
    }

    /// Lets another process have it at once.
    pub async fn release(&mut self) -> Result<()> {
        if self.renewed.take().is_none() {
            return Ok(());
        }
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
        if let Some(spec) = &mut lease.spec
            && spec.holder_identity.as_ref() == Some(&self.identity)
        {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }
}

/// A candidate that tries again and again, and reports when that fails.
pub struct Campaign {
    candidate: Candidate,
    lease: ServiceName,
    is_failing: bool,
    /// While another process holds it, or nobody knows.
    wait: Option<Wait>,
}

impl Campaign {
    pub fn new(client: Client, lease: &ServiceName, identity: String) -> Self {
        let candidate = Candidate::new(client, lease, identity);
        Self { candidate, lease: lease.clone(), is_failing: false, wait: None }
    }

    /// Tries to get or keep the Lease. To be called every [`RETRY`].
    pub async fn attempt(&mut self) {
        let error = match timeout(PATIENCE, self.candidate.attempt()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("the API server did not reply".to_owned()),
        };
        self.explain_wait(error.as_deref());
        let lease = &self.lease;
        match (error, self.is_failing) {
            (Some(error), false) => {
                self.is_failing = true;
                tracing::warn!(%lease, error, "lease not available; its holder alone writes; retrying");
            }
            (Some(error), true) => tracing::debug!(%lease, error, "lease still not available"),
            (None, true) => {
                self.is_failing = false;
                tracing::info!(%lease, "lease available again");
            }
            (None, false) => {}
        }
    }

    fn explain_wait(&mut self, error: Option<&str>) {
        if self.is_holder() {
            self.wait = None;
            return;
        }
        let begin = || Waits::of_process().begin(Resource::Lease, format!("lease {}", self.lease));
        let wait = self.wait.get_or_insert_with(begin);
        match error {
            Some(error) => {
                wait.is_for(Resource::ApiServer);
                wait.explain(error);
            }
            None => {
                wait.is_for(Resource::Lease);
                let holder = self.candidate.holder();
                wait.explain(holder.map_or_else(String::new, |holder| {
                    format!("{holder} holds it; this process stands by")
                }));
            }
        }
    }

    /// Whether this process may write now.
    pub fn is_holder(&self) -> bool {
        self.candidate.is_holder(Instant::now())
    }

    /// Gives up the Lease, so that another process has not to wait for its expiry.
    pub async fn release(&mut self) {
        if let Ok(Err(error)) = timeout(PATIENCE, self.candidate.release()).await {
            let (lease, error) = (&self.lease, format!("{error:#}"));
            tracing::debug!(%lease, error, "lease not released; it expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Response};
    use kube::client::Body;

    use super::*;

    fn candidate(identity: &str) -> Candidate {
        // It is not asked.
        let refused = tower::service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, _>(std::io::Error::other("no server"))
        });
        let lease = ServiceName::new("kube-system", "lease");
        Candidate::new(Client::new(refused, "default"), &lease, identity.to_owned())
    }

    fn spec(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test]
    async fn a_lease_expires_by_the_clock_of_its_reader() {
        let start = Instant::now();
        let mut b = candidate("b");
        // Its times are of another clock, here of 1970.
        assert_eq!(b.next(&spec("a", 1), start), Step::Wait);
        let later = start + Duration::from_secs(14);
        assert_eq!(b.next(&spec("a", 1), later), Step::Wait);
        assert_eq!(b.next(&spec("a", 2), later), Step::Wait);
        assert_eq!(b.next(&spec("a", 2), later + Duration::from_secs(14)), Step::Wait);
        assert_eq!(b.next(&spec("a", 2), later + Duration::from_secs(15)), Step::TakeOver);
    }

    #[tokio::test]
    async fn a_released_lease_is_taken_at_once_and_an_own_one_renewed() {
        let mut b = candidate("b");
        assert_eq!(b.next(&spec("", 1), Instant::now()), Step::TakeOver);
        assert_eq!(b.next(&spec("b", 1), Instant::now()), Step::Renew);
        assert_eq!(b.next(&LeaseSpec::default(), Instant::now()), Step::TakeOver);
    }

    #[tokio::test]
    async fn a_holder_that_cannot_renew_stops_before_another_one_begins() {
        let mut a = candidate("a");
        let now = Instant::now();
        assert!(!a.is_holder(now));
        a.renewed = Some(now);
        assert!(a.is_holder(now + DEADLINE - Duration::from_millis(1)));
        assert!(!a.is_holder(now + DEADLINE));
        assert!(DEADLINE < DURATION);
    }

    #[tokio::test]
    async fn transitions_are_counted() {
        let a = candidate("a");
        assert_eq!(a.held(None).lease_transitions, None);
        let taken = a.held(Some(&spec("b", 1)));
        assert_eq!(taken.lease_transitions, Some(1));
        let renewed = a.held(Some(&taken));
        assert_eq!(renewed.lease_transitions, Some(1));
        assert_eq!(renewed.acquire_time, taken.acquire_time);
    }
}
