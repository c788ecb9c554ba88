//! `status.loadBalancer.ingress` of the Ingresses that are served: where clients reach them.
//!
//! Invariants:
//! - Only the holder of a Lease writes, and only what differs from what the cluster has.
//! - Traffic does not depend on it: an API server that is away, or refuses, delays the status and nothing else.
//! - A status that another controller wrote is not removed: of an Ingress that has left the class, only exactly what
//!   this process would write is.

mod addresses;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressLoadBalancerIngress};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use lb_process::backoff::Backoff;
use lb_rules::model::ServiceName;
use lb_source::lease::{self, Campaign};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// Requests at the same time.
const MAX_CONCURRENT_WRITES: usize = 8;
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// In the status with addresses that are not of a Service. Redirects lead to these ports, too.
const PUBLISHED_PORTS: [u16; 2] = [80, 443];

type PublishedAddresses = Vec<IngressLoadBalancerIngress>;

/// Where the addresses come from.
#[derive(Clone, Debug)]
pub enum PublishedFrom {
    /// A Service in front of the proxies.
    Service(ServiceName),
    Addresses(Vec<String>),
}

#[derive(Clone, Debug)]
pub struct StatusOptions {
    pub publish: PublishedFrom,
    pub lease: ServiceName,
}

/// News for the writer.
#[derive(Debug)]
pub(crate) enum StatusChange {
    /// An Ingress that is served, with its current status.
    Served {
        ingress: ServiceName,
        current: PublishedAddresses,
    },
    /// The Ingress is of another class now.
    Left(ServiceName),
    Deleted(ServiceName),
    /// The published Service; `None`: it does not exist.
    Service(Option<Box<Service>>),
}

/// Sends news to the writer, which is a task.
#[derive(Clone)]
pub(crate) struct StatusHandle(mpsc::UnboundedSender<WriterMessage>);

enum WriterMessage {
    News(StatusChange),
    /// Everything that exists was sent.
    Synced,
    /// The process ends.
    Release(oneshot::Sender<()>),
}

impl StatusHandle {
    pub fn start(client: Client, options: StatusOptions) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        tokio::spawn(run_writer(StatusWriter::new(client, options), messages));
        Self(sender)
    }

    pub fn send(&self, news: StatusChange) {
        // The task ends with the process.
        let _ = self.0.send(WriterMessage::News(news));
    }

    pub fn synced(&self) {
        let _ = self.0.send(WriterMessage::Synced);
    }

    /// Gives up the Lease, so that another process has not to wait for its expiry.
    pub async fn release(&self) {
        let (done, is_done) = oneshot::channel();
        if self.0.send(WriterMessage::Release(done)).is_ok() {
            let _ = timeout(WRITE_TIMEOUT, is_done).await;
        }
    }
}

async fn run_writer(
    mut writer: StatusWriter,
    mut messages: mpsc::UnboundedReceiver<WriterMessage>,
) {
    let mut attempts = interval(lease::RETRY);
    attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_synced = false;
    let mut retry_at = None;
    loop {
        tokio::select! {
            biased;
            message = messages.recv() => {
                let Some(message) = message else { return };
                let mut next = Some(message);
                while let Some(message) = next {
                    match message {
                        WriterMessage::News(news) => writer.take_in(news),
                        WriterMessage::Synced => is_synced = true,
                        WriterMessage::Release(done) => {
                            writer.lease.release().await;
                            let _ = done.send(());
                            return;
                        }
                    }
                    next = messages.try_recv().ok();
                }
            }
            _ = attempts.tick() => writer.campaign().await,
            () = sleep_until_moment(retry_at) => {}
        }
        if is_synced && retry_at.is_none_or(|at| at <= Instant::now()) {
            retry_at = writer.write().await;
        }
    }
}

async fn sleep_until_moment(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

struct StatusWriter {
    client: Client,
    lease: Campaign,
    publish: PublishedFrom,
    /// What every Ingress that is served should have.
    addresses: PublishedAddresses,
    /// Each Ingress that is served, with its current status.
    served: BTreeMap<ServiceName, PublishedAddresses>,
    /// Ingresses whose status is to be written or removed.
    due: BTreeSet<ServiceName>,
    was_holder: bool,
    backoff: Backoff,
}

impl StatusWriter {
    fn new(client: Client, options: StatusOptions) -> Self {
        let StatusOptions { publish, lease } = options;
        let addresses = match &publish {
            PublishedFrom::Addresses(addresses) => addresses
                .iter()
                .map(|address| addresses::parse_published_address(address, &PUBLISHED_PORTS))
                .collect(),
            PublishedFrom::Service(_) => Vec::new(),
        };
        Self {
            lease: Campaign::new(client.clone(), &lease, lease::identity()),
            client,
            publish,
            addresses,
            served: BTreeMap::new(),
            due: BTreeSet::new(),
            was_holder: false,
            backoff: Backoff::default(),
        }
    }

    fn take_in(&mut self, news: StatusChange) {
        match news {
            StatusChange::Served { ingress, current } => {
                if current == self.addresses {
                    self.due.remove(&ingress);
                } else {
                    self.due.insert(ingress.clone());
                }
                self.served.insert(ingress, current);
            }
            StatusChange::Left(ingress) => {
                let was_written = self
                    .served
                    .remove(&ingress)
                    .is_some_and(|current| !current.is_empty() && current == self.addresses);
                if was_written {
                    self.due.insert(ingress);
                } else {
                    self.due.remove(&ingress);
                }
            }
            StatusChange::Deleted(ingress) => {
                self.served.remove(&ingress);
                self.due.remove(&ingress);
            }
            StatusChange::Service(service) => {
                // The Service of settings that name addresses does not matter.
                if matches!(self.publish, PublishedFrom::Service(_)) {
                    self.set_addresses(service.as_deref().map(addresses::list_service_addresses));
                }
            }
        }
    }

    /// If the Service is gone, or has no addresses yet, the status stays as it is: clients that resolve names by it
    /// must not lose them because a Service is created again.
    fn set_addresses(&mut self, addresses: Option<PublishedAddresses>) {
        let Some(addresses) = addresses.filter(|addresses| !addresses.is_empty()) else { return };
        if addresses != self.addresses {
            self.addresses = addresses;
            self.find_due();
        }
    }

    fn find_due(&mut self) {
        self.due.retain(|ingress| !self.served.contains_key(ingress));
        let differs = self.served.iter().filter(|(_, current)| **current != self.addresses);
        self.due.extend(differs.map(|(ingress, _)| ingress.clone()));
    }

    /// Tries to get or keep the Lease.
    async fn campaign(&mut self) {
        self.lease.attempt().await;
        let is_holder = self.lease.is_holder();
        if is_holder != std::mem::replace(&mut self.was_holder, is_holder) {
            tracing::info!(is_holder, "lease for the status of ingresses");
        }
    }

    /// Writes what is due. Returns when to try again, if something failed.
    async fn write(&mut self) -> Option<Instant> {
        if self.due.is_empty() || self.addresses.is_empty() || !self.lease.is_holder() {
            return None;
        }
        let due: Vec<ServiceName> = self.due.iter().cloned().collect();
        let this = &*self;
        let results: Vec<(ServiceName, Result<bool>)> = stream::iter(due)
            .map(|ingress| async move {
                let wanted = this.served.contains_key(&ingress).then_some(&this.addresses);
                let result = this.patch(&ingress, wanted).await;
                (ingress, result)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            // Thousands may take longer than the Lease.
            .take_while(|_| std::future::ready(this.lease.is_holder()))
            .collect()
            .await;
        let mut failed = None;
        for (ingress, result) in results {
            match result {
                Ok(_) => {
                    self.due.remove(&ingress);
                    if let Some(current) = self.served.get_mut(&ingress) {
                        current.clone_from(&self.addresses);
                    }
                }
                Err(error) => failed = Some((ingress, error)),
            }
        }
        let Some((ingress, error)) = failed else {
            self.backoff.reset();
            return (!self.due.is_empty()).then(Instant::now);
        };
        let (error, due) = (format!("{error:#}"), self.due.len());
        tracing::warn!(%ingress, error, due, "status of an ingress not written; retrying");
        Some(Instant::now() + self.backoff.next_delay())
    }

    /// Writes the status, or removes it. Returns whether the Ingress exists.
    async fn patch(
        &self,
        ingress: &ServiceName,
        wanted: Option<&PublishedAddresses>,
    ) -> Result<bool> {
        let ingresses: Api<Ingress> = Api::namespaced(self.client.clone(), &ingress.namespace);
        let patch = json!({"status": {"loadBalancer": {"ingress": wanted}}});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let request = ingresses.patch_status(&ingress.name, &parameters, &patch);
        match timeout(WRITE_TIMEOUT, request).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                anyhow::bail!("the API server did not reply within {} s", WRITE_TIMEOUT.as_secs())
            }
        }
    }
}
