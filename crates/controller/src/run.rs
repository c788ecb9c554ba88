//! The process, or the task, that assigns addresses: waits for events and the Lease, and writes statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use lb_process::ClientRequests;
use lb_process::backoff::Backoff;
use lb_process::ending::EndSignals;
use lb_process::notices::{Notice, Notices};
use lb_process::readiness::{self, MetricsSource, Readiness};
use lb_process::service_manager::notify_service_manager;
use lb_rules::kinds::AddressPool;
use lb_rules::model::{Kind, Object, ServiceName};
use lb_source::cluster::{Events, list_latest_services};
use lb_source::lease::{self, Campaign};
use lb_source::{ControllerCluster, Event, Source};
use sd_notify::NotifyState;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::config::ControllerOptions;
use super::metrics::{AssignmentMetrics, ControllerRegistry};
use super::state::AssignmentState;
use super::tunnel_key;
use super::unread_kinds;

/// Requests at the same time.
const MAX_CONCURRENT_WRITES: usize = 8;
/// A write that has not finished then is given up: before another process may get the Lease and write.
const WRITE_TIMEOUT: Duration = lease::WRITE_LIMIT;
/// The longest time for a list of all Services.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// The status of a pool changes with every Service, and every agent watches it.
const POOL_STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// Of writes of one Service with ports of nodes: a Node that changes all the time changes all of them. The attempts for the
/// Lease begin the delayed ones.
const NODE_PORTS_INTERVAL: Duration = Duration::from_secs(1);

/// `millrace controller`: runs until a signal.
pub async fn run_controller(
    options: ControllerOptions,
    healthz: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
) -> Result<()> {
    let mut ending = EndSignals::new()?;
    let exposition = Arc::new(ControllerRegistry::new());
    let readiness = Arc::new(Readiness::new(Arc::clone(&exposition) as Arc<dyn MetricsSource>));
    let controller =
        Controller::open(options, &exposition.requests, exposition.metrics.clone()).await?;
    readiness::start_health_servers(
        (healthz, "--controller-healthz-bind-address"),
        (metrics, "--controller-metrics-bind-address"),
        &readiness,
        &controller.notices,
    );
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let beat = Some(Arc::clone(&readiness));
    let running = tokio::spawn(controller.run(stopped, beat));
    ending.requested().await;
    notify_service_manager(&[NotifyState::Stopping]);
    readiness.set_ready(false);
    let _ = stop.send(());
    running.await.context("the controller panicked")?
}

/// Assigns addresses in this process, beside whatever else it does, until it ends.
pub async fn start_controller(
    options: ControllerOptions,
    requests: &ClientRequests,
    metrics: AssignmentMetrics,
) -> Result<()> {
    let controller = Controller::open(options, requests, metrics).await?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        // Held as long as the task runs.
        let _stop = stop;
        if let Err(error) = controller.run(stopped, None).await {
            tracing::error!(error = format!("{error:#}"), "addresses are not assigned any more");
        }
    });
    Ok(())
}

struct Controller {
    client: Client,
    lease: Option<Campaign>,
    state: AssignmentState,
    events: mpsc::UnboundedReceiver<Event>,
    notices: Arc<dyn Notices>,
    metrics: AssignmentMetrics,
    /// Reads what the last holder of the Lease has written, and what may not have arrived yet.
    handover: JoinSet<Result<Vec<Object>>>,
    /// Whether that was read since this process got the Lease.
    is_handed_over: bool,
    writes: JoinSet<FinishedWrite>,
    /// Services whose status is being written.
    in_flight: BTreeSet<ServiceName>,
    /// When a status with ports of nodes was written, of the last moments.
    written: BTreeMap<ServiceName, Instant>,
    backoff: Backoff,
    retry_at: Option<Instant>,
    /// When statuses of pools may be written next.
    pools_at: Option<Instant>,
    pools_written: Option<Instant>,
    is_synced: bool,
    /// Looks for kinds of MetalLB that are not read, while this process leads.
    unread_kinds: JoinSet<()>,
    metallb_namespace: String,
    /// The Secret that may lack a tunnel key, until this process leads for the first time.
    tunnel_key_secret: Option<ServiceName>,
}

/// A finished write.
enum FinishedWrite {
    Service(ServiceName, Option<Notice>, Result<Option<Box<Service>>>),
    Pool(String, Result<()>),
}

impl Controller {
    async fn open(
        options: ControllerOptions,
        requests: &ClientRequests,
        metrics: AssignmentMetrics,
    ) -> Result<Self> {
        let connection = options.access.open(requests).await?;
        tracing::info!(api_server = connection.description, "assigning addresses to services");
        let client = connection.client.clone();
        let notices: Arc<dyn Notices> = Arc::new(Events::new(client.clone(), &lease::host_name()));
        let (sender, events) = mpsc::unbounded_channel();
        let source = ControllerCluster::of(connection, &options.metallb_namespace);
        tokio::spawn(async move {
            if let Err(error) = source.run(sender).await {
                tracing::error!(error = format!("{error:#}"), "source of objects failed");
            }
        });
        let identity = lease::identity();
        let lease = options.lease.map(|lease| Campaign::new(client.clone(), &lease, identity));
        let state = AssignmentState::new(
            options.settings,
            options.ranges,
            Arc::clone(&notices),
            metrics.clone(),
        );
        Ok(Self {
            client,
            lease,
            state,
            events,
            notices,
            metrics,
            handover: JoinSet::new(),
            is_handed_over: false,
            writes: JoinSet::new(),
            in_flight: BTreeSet::new(),
            written: BTreeMap::new(),
            backoff: Backoff::default(),
            retry_at: None,
            pools_at: None,
            pools_written: None,
            is_synced: false,
            unread_kinds: JoinSet::new(),
            metallb_namespace: options.metallb_namespace,
            tunnel_key_secret: options.tunnel_key_secret,
        })
    }

    async fn run(
        mut self,
        mut stopped: tokio::sync::oneshot::Receiver<()>,
        readiness: Option<Arc<Readiness>>,
    ) -> Result<()> {
        let mut attempts = interval(lease::RETRY);
        attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beats = interval(readiness::BEAT_INTERVAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                // Rare, and before what may come without a pause: a Lease that is not renewed is lost.
                _ = attempts.tick() => self.campaign().await,
                _ = beats.tick() => if let Some(readiness) = &readiness { readiness.beat() },
                () = sleep_until_moment(self.retry_at) => {
                    self.retry_at = None;
                    self.state.resume();
                }
                () = sleep_until_moment(self.pools_at) => self.write_pools(),
                event = self.events.recv() => match event {
                    Some(event) => self.take_in(event, readiness.as_deref()),
                    None => return Err(anyhow!("the source of objects has ended")),
                },
                Some(read) = self.handover.join_next() => match read {
                    Ok(read) => self.end_handover(read),
                    Err(error) => return Err(error).context("a list of Services panicked"),
                },
                Some(written) = self.writes.join_next() => match written {
                    Ok(written) => self.finish_write(written),
                    Err(error) => return Err(error).context("a write panicked"),
                },
            }
            self.start_due_writes();
        }
        while let Some(Ok(written)) = self.writes.join_next().await {
            self.finish_write(written);
        }
        if let Some(lease) = &mut self.lease {
            lease.release().await;
        }
        Ok(())
    }

    /// Handles an event, and all that are queued behind it, as one change.
    fn take_in(&mut self, first: Event, readiness: Option<&Readiness>) {
        let mut next = Some(first);
        while let Some(event) = next {
            if matches!(event, Event::Synced(_)) {
                self.is_synced = true;
                if let Some(readiness) = readiness {
                    readiness.set_ready(true);
                    notify_service_manager(&[NotifyState::Ready]);
                }
            }
            self.state.store_event(event);
            next = self.events.try_recv().ok();
        }
        self.follow_lease();
        self.state.assign_addresses();
        self.schedule_pools();
    }

    fn is_holder(&self) -> bool {
        self.lease.as_ref().is_none_or(Campaign::is_holder)
    }

    fn may_write(&self) -> bool {
        // Without a Lease there is no other process.
        let is_handed_over = self.is_handed_over || self.lease.is_none();
        self.is_synced && is_handed_over && self.is_holder()
    }

    /// Begins or ends to assign, as the Lease says.
    fn follow_lease(&mut self) {
        match (self.may_write(), self.state.is_leader()) {
            (true, false) => {
                self.state.lead();
                self.schedule_pools();
                tracing::info!("this process assigns addresses");
                let (client, metrics) = (self.client.clone(), self.metrics.clone());
                let namespace = self.metallb_namespace.clone();
                self.unread_kinds
                    .spawn(unread_kinds::report_unread_kinds(client, namespace, metrics));
                if let Some(secret) = self.tunnel_key_secret.take() {
                    tokio::spawn(tunnel_key::generate_tunnel_key(self.client.clone(), secret));
                }
            }
            (false, true) => {
                self.state.follow();
                self.unread_kinds = JoinSet::new();
                tracing::info!("another process assigns addresses");
            }
            _ => {}
        }
    }

    /// Tries to get or keep the Lease.
    async fn campaign(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.attempt().await;
        }
        self.begin_handover();
        self.follow_lease();
    }

    /// Reads all Services when this process has got the Lease: an address that the last holder has just assigned is
    /// not free, though the watch may not have reported it yet.
    fn begin_handover(&mut self) {
        if !self.is_holder() {
            self.is_handed_over = false;
            self.handover = JoinSet::new();
        } else if !self.is_handed_over && self.handover.is_empty() && self.lease.is_some() {
            let client = self.client.clone();
            self.handover.spawn(async move {
                let list = timeout(LIST_TIMEOUT, list_latest_services(&client)).await;
                list.context("the list of all Services took too long")?
            });
        }
    }

    fn end_handover(&mut self, read: Result<Vec<Object>>) {
        match read {
            Ok(services) => {
                self.state.store_latest(services);
                self.is_handed_over = true;
                self.follow_lease();
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(
                    error,
                    "no addresses are assigned until all Services are listed; retrying"
                );
            }
        }
    }

    /// Begins to write what is due.
    fn start_due_writes(&mut self) {
        if !self.state.is_leader() || !self.may_write() {
            return;
        }
        let room = MAX_CONCURRENT_WRITES.saturating_sub(self.in_flight.len());
        self.written.retain(|_, at| at.elapsed() < NODE_PORTS_INTERVAL);
        let waits = |name: &&ServiceName| {
            self.in_flight.contains(*name) || self.written.contains_key(*name)
        };
        let due: Vec<ServiceName> =
            self.state.due_services().filter(|name| !waits(name)).take(room).cloned().collect();
        for name in due {
            let Some(patch) = self.state.status_patch(&name, Timestamp::now()) else { continue };
            let notice = self.state.outcome_notice(&name);
            self.in_flight.insert(name.clone());
            if self.state.has_ports_of_nodes(&name) {
                self.written.insert(name.clone(), Instant::now());
            }
            let services: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
            self.writes.spawn(async move {
                let result = write_service(&services, &name.name, &patch).await;
                FinishedWrite::Service(name, notice, result)
            });
        }
    }

    fn finish_write(&mut self, written: FinishedWrite) {
        match written {
            FinishedWrite::Service(name, notice, result) => {
                self.in_flight.remove(&name);
                match result {
                    Ok(service) => {
                        self.metrics.count_write(service.is_some());
                        if let Some(service) = service {
                            self.backoff.reset();
                            if let Some(notice) = notice {
                                self.notices.post(notice);
                            }
                            self.state.note_written(&name, service);
                            self.state.assign_addresses();
                        } else {
                            // Gone, or changed meanwhile: an event comes.
                            self.state.postpone(name);
                            self.schedule_retry();
                        }
                    }
                    Err(error) => {
                        self.note_failed_write(&format!("Service {name}"), &error);
                        self.state.postpone(name);
                    }
                }
            }
            FinishedWrite::Pool(_, Ok(())) => self.metrics.count_write(true),
            FinishedWrite::Pool(name, Err(error)) => {
                self.note_failed_write(&format!("AddressPool {name}"), &error);
                self.schedule_pools();
            }
        }
    }

    fn note_failed_write(&mut self, object: &str, error: &anyhow::Error) {
        self.metrics.count_write(false);
        let error = format!("{error:#}");
        tracing::warn!(object, error, "status not written; retrying");
        self.schedule_retry();
    }

    fn schedule_retry(&mut self) {
        if self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + self.backoff.next_delay());
        }
    }

    /// Plans to write the statuses of pools that differ, not too often.
    fn schedule_pools(&mut self) {
        if self.pools_at.is_none() && !self.state.pool_statuses().is_empty() {
            let now = Instant::now();
            let next = self.pools_written.map_or(now, |written| written + POOL_STATUS_INTERVAL);
            self.pools_at = Some(next.max(now));
        }
    }

    fn write_pools(&mut self) {
        self.pools_at = None;
        if !self.may_write() {
            return;
        }
        let now = Instant::now();
        self.pools_written = Some(now);
        for (name, patch) in self.state.pool_statuses() {
            let pools: Api<AddressPool> = Api::all(self.client.clone());
            self.writes.spawn(async move {
                let patch = Patch::Merge(&patch);
                let parameters = PatchParams::default();
                let write = pools.patch_status(&name, &parameters, &patch);
                let result = match timeout(WRITE_TIMEOUT, write).await {
                    Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
                    Ok(result) => result.map(drop).map_err(Into::into),
                    Err(_) => Err(write_timed_out()),
                };
                FinishedWrite::Pool(name, result)
            });
        }
    }
}

/// Returns the Service as it is now; `None` if it is gone, or not as it was.
async fn write_service(
    services: &Api<Service>,
    name: &str,
    patch: &Value,
) -> Result<Option<Box<Service>>> {
    let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let write = services.patch_status(name, &parameters, &patch);
    let service = match timeout(WRITE_TIMEOUT, write).await {
        Ok(Ok(service)) => service,
        Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => return Ok(None),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(write_timed_out()),
    };
    match Object::read(Kind::Service, serde_json::to_value(service)?)? {
        Object::Service(service) => Ok(Some(service)),
        _ => Ok(None),
    }
}

fn write_timed_out() -> anyhow::Error {
    anyhow!("the API server did not reply within {} s", WRITE_TIMEOUT.as_secs())
}

async fn sleep_until_moment(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
