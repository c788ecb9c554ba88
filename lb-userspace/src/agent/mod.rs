//! The agent: from what the sources tell to what the kernel holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nix::ifaddrs::getifaddrs;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::kernel::{Attachments, DataPlane, Pins, Sizes, Tables, XdpMode, preflight};
use crate::model::{Claims, NodeContext, Problem, ServiceName, ServicePortKey, resolve};
use crate::plan::{Change, Planner};
use crate::source::{Event, Manifests, Source};
use crate::store::{Affected, Store};

pub struct Options {
    pub manifests: Vec<PathBuf>,
    pub devices: Vec<String>,
    pub node_name: String,
    /// Empty: the devices' own addresses.
    pub nodeport_addresses: Vec<IpAddr>,
    pub xdp_mode: XdpMode,
    pub sizes: Sizes,
    pub cleanup_on_exit: bool,
    pub pin_path: PathBuf,
}

/// Runs until it is told to end. What fails before everything is in force undoes itself.
pub async fn run(options: Options) -> Result<()> {
    preflight()?;
    let source = Manifests::open(options.manifests)?;
    let node_addresses = node_addresses(&options.nodeport_addresses, &options.devices)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let existed = options.pin_path.exists();
    let pins = Pins::open(&options.pin_path)?;
    let started = start(
        &pins,
        source,
        &options.devices,
        &options.node_name,
        node_addresses,
        options.xdp_mode,
        options.sizes,
    );
    let (mut agent, mut events) = match started.await {
        Ok(started) => started,
        Err(error) => {
            if !existed && let Err(error) = pins.remove() {
                tracing::warn!("{error:#}");
            }
            return Err(error);
        }
    };

    let ended = loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => agent.take_in(event, &mut events),
                None => break Err(anyhow::anyhow!("the source of objects has ended")),
            },
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
        }
    };
    drop(agent);
    if options.cleanup_on_exit {
        pins.remove()?;
        tracing::info!("detached and removed everything");
    } else {
        tracing::info!("ending; the kernel goes on forwarding (`millrace cleanup` ends that)");
    }
    ended
}

/// Loads, waits for everything the source knows, puts it in force, and only then attaches.
async fn start(
    pins: &Pins,
    source: Manifests,
    devices: &[String],
    node_name: &str,
    node_addresses: BTreeSet<IpAddr>,
    xdp_mode: XdpMode,
    sizes: Sizes,
) -> Result<(Agent, mpsc::UnboundedReceiver<Event>)> {
    let mut data_plane = DataPlane::load(pins, sizes)?;
    let tables = data_plane.tables()?;
    let planner = if data_plane.adopted() {
        tracing::info!("adopting the maps of an earlier agent");
        Planner::adopting(tables.snapshot()?)
    } else {
        Planner::new()
    };
    let mut agent = Agent {
        store: Store::default(),
        claims: Claims::default(),
        planner,
        tables,
        node: NodeContext::of(node_name, None),
        in_force: BTreeMap::new(),
        reported: BTreeMap::new(),
    };

    let (sender, mut events) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        if let Err(error) = source.run(sender).await {
            tracing::error!("{error:#}");
        }
    });
    loop {
        match events.recv().await {
            Some(Event::Synced) => break,
            Some(event) => drop(agent.store_event(event)),
            None => bail!("the source of objects ended before it had told everything"),
        }
    }
    agent.put_in_force(Affected::All, Some(node_addresses));

    let mut attachments = Attachments::new(pins);
    for device in devices {
        let attached = attachments.attach(&mut data_plane, device, xdp_mode)?;
        tracing::info!("attached to {device}: {} in, {} out", attached.ingress, attached.egress);
    }
    attachments.detach_others(devices)?;
    attachments.keep();
    tracing::info!(
        "ready: {} service ports of {} Services in force",
        agent.in_force.values().map(BTreeSet::len).sum::<usize>(),
        agent.in_force.len(),
    );
    Ok((agent, events))
}

struct Agent {
    store: Store,
    claims: Claims,
    planner: Planner,
    tables: Tables,
    node: NodeContext,
    /// The service ports of each Service that have been planned.
    in_force: BTreeMap<ServiceName, BTreeSet<ServicePortKey>>,
    /// What has been complained about and is still wrong, by Service.
    reported: BTreeMap<ServiceName, BTreeSet<Problem>>,
}

impl Agent {
    /// Takes in an event and all that wait behind it: a burst becomes one change, a lone event
    /// waits for nothing.
    fn take_in(&mut self, first: Event, events: &mut mpsc::UnboundedReceiver<Event>) {
        let mut affected = self.store_event(first);
        while let Ok(event) = events.try_recv() {
            affected = both(affected, self.store_event(event));
        }
        self.put_in_force(affected, None);
    }

    fn store_event(&mut self, event: Event) -> Affected {
        match event {
            Event::Applied(object) => self.store.apply(object),
            Event::Deleted(reference) => self.store.delete(&reference),
            Event::Problem(problem) => {
                tracing::warn!("{problem}");
                Affected::Services(BTreeSet::new())
            }
            Event::Synced => Affected::Services(BTreeSet::new()),
        }
    }

    fn put_in_force(&mut self, affected: Affected, node_addresses: Option<BTreeSet<IpAddr>>) {
        let services = match affected {
            Affected::Services(services) => services,
            Affected::All => {
                let name = self.node.name.clone();
                self.node = NodeContext::of(&name, self.store.node(&name));
                self.store.services().chain(self.in_force.keys()).cloned().collect()
            }
        };
        let mut concerned = BTreeSet::new();
        for service in &services {
            concerned.extend(self.resolve(service));
        }
        let mut change = Change { node_addresses, ..Change::default() };
        for service in &concerned {
            self.collect(service, &mut change);
        }
        let plan = self.planner.plan(change);
        for problem in &plan.problems {
            tracing::error!("{problem}");
        }
        for step in plan.steps() {
            if let Err(error) = self.tables.apply(step) {
                tracing::error!("{error:#}");
            }
        }
        if !plan.is_empty() {
            tracing::info!("{} Services changed: {} steps", concerned.len(), plan.steps().count());
        }
    }

    /// Works out anew what a Service means; returns whom that concerns.
    fn resolve(&mut self, name: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(service) = self.store.service(name) else {
            return self.claims.set(name, None, None);
        };
        let created = service.metadata.creation_timestamp.as_ref();
        let created = created.map(|time| time.0.to_string());
        let resolved = resolve(service, &self.store.slices(name), &self.node);
        self.claims.set(name, created, Some(resolved))
    }

    fn collect(&mut self, name: &ServiceName, change: &mut Change) {
        let settled = self.claims.settled(name);
        self.report(name, settled.problems);
        let keys: BTreeSet<ServicePortKey> = settled.service_ports.keys().cloned().collect();
        let before = if keys.is_empty() {
            self.in_force.remove(name)
        } else {
            self.in_force.insert(name.clone(), keys)
        };
        let gone = before.into_iter().flatten().map(|key| (key, None));
        change.service_ports.extend(gone);
        let wanted = settled.service_ports.into_iter().map(|(key, port)| (key, Some(port)));
        change.service_ports.extend(wanted);
    }

    /// Complains once about each thing, and again if it was mended in between.
    fn report(&mut self, service: &ServiceName, problems: Vec<Problem>) {
        let now: BTreeSet<Problem> = problems.into_iter().collect();
        let before = self.reported.remove(service).unwrap_or_default();
        for problem in now.difference(&before) {
            tracing::warn!("{problem}");
        }
        if !now.is_empty() {
            self.reported.insert(service.clone(), now);
        }
    }
}

fn both(first: Affected, second: Affected) -> Affected {
    match (first, second) {
        (Affected::Services(mut first), Affected::Services(second)) => {
            first.extend(second);
            Affected::Services(first)
        }
        _ => Affected::All,
    }
}

/// Where NodePorts are open: as told, else on the addresses of the devices.
fn node_addresses(told: &[IpAddr], devices: &[String]) -> Result<BTreeSet<IpAddr>> {
    if !told.is_empty() {
        return Ok(told.iter().copied().collect());
    }
    let all = getifaddrs().context("this node's addresses can't be read")?;
    Ok(all
        .filter(|interface| devices.contains(&interface.interface_name))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        // Link-local addresses are each device's own, and no way to a Service.
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect())
}
