//! Follows the kernel's notifications, and reports the changes that follow from them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lb_limits::{Backoff, Rate, RateLimiter};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use super::addresses::{Device, list_devices, list_node_addresses, list_own_addresses};
use super::attachments::{Attachments, plan_attachments};
use super::links::{AnnouncingLink, list_announcing_links};
use super::notices::NetworkSubscription;
use super::requests::RouteFacts;
use super::selection::{DeviceSelector, DeviceSettings};
use super::snapshot::{ChangeEffect, Snapshot};
use super::socket::is_overrun;

/// A single change is reported at once, and those of a burst together.
const REPORT_RATE: Rate = Rate::new(Duration::from_millis(100), 1);

/// Delays between attempts to read everything again; doubled from the first to the last.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
const LAST_RETRY_DELAY: Duration = Duration::from_secs(5);

const FULL_EFFECT: ChangeEffect =
    ChangeEffect { next_hops: true, facts: true, default_routes: false };

/// A change of the network. Of simultaneous changes the epoch is sent last, so that next hops are
/// resolved with the new devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// Added and changed devices; `None`: removed.
    Devices(BTreeMap<u32, Option<Device>>),
    Attachments(Attachments),
    /// The addresses with NodePorts.
    NodeAddresses(BTreeSet<IpAddr>),
    /// All addresses of this node.
    OwnAddresses(BTreeSet<IpAddr>),
    /// Whether next hops depend on the destination only.
    SharedHops(bool),
    /// Next hops must be resolved again.
    Epoch,
}

type EventSender = UnboundedSender<NetworkEvent>;

/// Nothing receives events any more.
#[derive(Debug)]
struct ReceiverClosed;

/// This machine's network.
pub struct NetworkWatch {
    settings: DeviceSettings,
    notices: NetworkSubscription,
    snapshot: Snapshot,
    view: DerivedView,
    /// As it was reported last.
    shares_hops: bool,
    /// For the announcement of addresses, which must not wait for the handler of the events.
    links: watch::Sender<Vec<AnnouncingLink>>,
}

/// What is derived from a snapshot.
#[derive(Default)]
struct DerivedView {
    attachments: Attachments,
    devices: BTreeMap<u32, Device>,
    node_addresses: BTreeSet<IpAddr>,
    own_addresses: BTreeSet<IpAddr>,
}

impl NetworkWatch {
    /// Reads the present state. Fails if a configured device does not exist, or if no device faces
    /// clients.
    pub async fn open(settings: DeviceSettings) -> Result<Self> {
        let (notices, snapshot) = NetworkSubscription::subscribe().await?;
        let view = DerivedView::of(&snapshot, &settings, &BTreeSet::new());
        view.check(&snapshot, &settings)?;
        let links = watch::Sender::new(list_announcing_links(&snapshot, &view.attachments));
        let shares_hops = snapshot.shares_hops();
        Ok(Self { settings, notices, snapshot, view, shares_hops, links })
    }

    pub fn attachments(&self) -> &Attachments {
        &self.view.attachments
    }

    /// By index.
    pub fn devices(&self) -> &BTreeMap<u32, Device> {
        &self.view.devices
    }

    /// The addresses with NodePorts.
    pub fn node_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.view.node_addresses
    }

    /// All addresses of this node.
    pub fn own_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.view.own_addresses
    }

    /// Whether next hops depend on the destination only.
    pub fn shares_hops(&self) -> bool {
        self.shares_hops
    }

    /// The interfaces on which addresses can be announced, and their changes.
    pub fn links(&self) -> watch::Receiver<Vec<AnnouncingLink>> {
        self.links.subscribe()
    }

    /// Sends changes until the receiver is dropped.
    pub fn follow(self) -> UnboundedReceiver<NetworkEvent> {
        let (sender, events) = unbounded_channel();
        tokio::spawn(self.run(sender));
        events
    }

    async fn run(mut self, events: EventSender) {
        let mut reports = RateLimiter::new(REPORT_RATE);
        let mut unsent = ChangeEffect::default();
        loop {
            let due = (unsent != ChangeEffect::default()).then(|| reports.due(Instant::now()));
            tokio::select! {
                readable = self.notices.readable() => {
                    let taken_in = readable.and_then(|()| self.notices.take_in(&mut self.snapshot));
                    unsent = unsent.and(match taken_in {
                        Ok(effect) => effect,
                        Err(error) => self.begin_anew(error).await,
                    });
                }
                () = wait_until(due) => {}
                () = events.closed() => return,
            }
            let now = Instant::now();
            if unsent == ChangeEffect::default() || !reports.take(now) {
                continue;
            }
            if unsent.default_routes {
                unsent = unsent.and(self.reread_default_routes().await);
            }
            if self.send_changes(unsent, &events).is_err() {
                return;
            }
            unsent = ChangeEffect::default();
        }
    }

    /// Subscribes again and reads everything: notifications were lost, so anything may have
    /// changed.
    async fn begin_anew(&mut self, error: io::Error) -> ChangeEffect {
        if is_overrun(&error) {
            tracing::info!("netlink notifications lost; reading the network state again");
        } else {
            let error = format!("{error:#}");
            tracing::warn!(error, "netlink socket failed; reading the network state again");
            // A socket that fails again and again must not use up the CPU.
            sleep(FIRST_RETRY_DELAY).await;
        }
        let mut backoff = Backoff::new(FIRST_RETRY_DELAY, LAST_RETRY_DELAY);
        loop {
            let delay = backoff.fail();
            match NetworkSubscription::subscribe().await {
                Ok((notices, snapshot)) => {
                    (self.notices, self.snapshot) = (notices, snapshot);
                    return FULL_EFFECT;
                }
                Err(error) => {
                    let (error, retry_ms) = (format!("{error:#}"), delay.as_millis());
                    tracing::warn!(error, retry_ms, "network state not read; retrying");
                }
            }
            sleep(delay).await;
        }
    }

    /// If they can't be read, everything is read again.
    async fn reread_default_routes(&mut self) -> ChangeEffect {
        match RouteFacts::read().await {
            Ok(routes) => {
                routes.put_into(&mut self.snapshot);
                ChangeEffect { facts: true, ..ChangeEffect::default() }
            }
            Err(error) => self.begin_anew(io::Error::other(format!("{error:#}"))).await,
        }
    }

    /// Sends the parts that differ from those sent before.
    fn send_changes(
        &mut self,
        effect: ChangeEffect,
        events: &EventSender,
    ) -> Result<(), ReceiverClosed> {
        let send = |event| events.send(event).map_err(|_| ReceiverClosed);
        if effect.facts {
            let before = self.view.attachments.external().map(|device| device.index).collect();
            let view = DerivedView::of(&self.snapshot, &self.settings, &before);
            let links = list_announcing_links(&self.snapshot, &view.attachments);
            self.links.send_if_modified(|sent| {
                let changed = *sent != links;
                *sent = links;
                changed
            });
            let old = std::mem::replace(&mut self.view, view);
            let devices = changed(&old.devices, &self.view.devices);
            if !devices.is_empty() {
                send(NetworkEvent::Devices(devices))?;
            }
            if old.attachments != self.view.attachments {
                send(NetworkEvent::Attachments(self.view.attachments.clone()))?;
            }
            if old.node_addresses != self.view.node_addresses {
                send(NetworkEvent::NodeAddresses(self.view.node_addresses.clone()))?;
            }
            if old.own_addresses != self.view.own_addresses {
                send(NetworkEvent::OwnAddresses(self.view.own_addresses.clone()))?;
            }
        }
        if self.shares_hops != self.snapshot.shares_hops() {
            self.shares_hops = !self.shares_hops;
            send(NetworkEvent::SharedHops(self.shares_hops))?;
        }
        if effect.next_hops {
            send(NetworkEvent::Epoch)?;
        }
        Ok(())
    }
}

impl DerivedView {
    fn of(snapshot: &Snapshot, settings: &DeviceSettings, external_before: &BTreeSet<u32>) -> Self {
        let attachments = plan_attachments(snapshot, settings, external_before);
        Self {
            devices: list_devices(snapshot),
            node_addresses: list_node_addresses(snapshot, &attachments, &settings.node_ports),
            own_addresses: list_own_addresses(snapshot),
            attachments,
        }
    }

    /// Whether the configuration makes sense on this machine.
    fn check(&self, snapshot: &Snapshot, settings: &DeviceSettings) -> Result<()> {
        let known = || {
            let names: BTreeSet<&str> =
                snapshot.links.values().map(|link| link.name.as_str()).collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        };
        if let Some(name) = self.attachments.missing.first() {
            bail!("there is no device {name} here.\nKnown devices: {}", known());
        }
        for (device, refusal) in &self.attachments.refused {
            let named = DeviceSelector::Name(device.name.clone());
            if settings.external.contains(&named) || settings.workload.contains(&named) {
                bail!("{} can't be served: {refusal}", device.name);
            }
        }
        if self.attachments.facing_clients().next().is_none() {
            let wanted: Vec<String> = settings.external.iter().map(|s| s.to_string()).collect();
            let refused = self.attachments.refused.iter();
            let refused: String = refused.map(|(d, why)| format!("\n{}: {why}", d.name)).collect();
            bail!(
                "no interface for clients: --devices {} selects none that can be served (`auto`: those \
                 with a default route).{refused}\n\
                 Name one with --devices. Interfaces here: {}",
                wanted.join(" --devices "),
                known()
            );
        }
        Ok(())
    }
}

fn changed(
    old: &BTreeMap<u32, Device>,
    new: &BTreeMap<u32, Device>,
) -> BTreeMap<u32, Option<Device>> {
    let gone = old.keys().filter(|index| !new.contains_key(index)).map(|&index| (index, None));
    let here = new.iter().filter(|&(index, device)| old.get(index) != Some(device));
    gone.chain(here.map(|(&index, device)| (index, Some(device.clone())))).collect()
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => pending().await,
    }
}
