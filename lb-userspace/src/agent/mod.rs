//! The agent: connects the sources of objects with the kernel's tables.

mod advertiser;
mod announcer;
mod complaints;
mod control;
mod counters;
mod devices;
mod file_limit;
mod latency;
mod node_ports;
mod outlets;
mod retry;
mod tally;
mod tunnel_keys;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use clap::ValueEnum;
use lb_common::layout::{Forwarding, Timeouts, TunnelKey};
use sd_notify::NotifyState;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::announce::{Keys, Timing};
use crate::bgp::{self, Speaker};
use crate::controller::{self, Assigning};
use crate::ending::Ending;
use crate::ipam::{self, Pools, Range};
use crate::kernel::{
    self, Announcements, BfdSessions, DataPlane, Links, Memory, Modes, Opened, Parameters, Pins,
    ReservedPorts, Sizes, SnatPorts, Tables, TunnelKeys, TunnelProbes, WantedSizes, WithSockets,
    cgroup_root, existing_sizes, preflight,
};
use crate::memory;
use crate::model::forwarding_name;
use crate::network::{self, NetworkWatch};
use crate::notices::{Log, Notices};
use crate::plan::Planner;
use crate::privileges::Privileges;
use crate::serve::{
    self, Addresses, AnnouncementMetrics, BfdMetrics, BgpMetrics, Health, Metrics, Reporter,
};
use crate::service_manager::{Watchdog, machine_is_stopping, notify_service_manager};
use crate::settings::BpfLogLevel;
use crate::snat_ports::{PortSet, Remaining, SnatRange};
use crate::source::cluster::{Access, Events};
use crate::source::{Cluster, Event, Manifests, Source};
use crate::store::Affected;

pub use control::Agent;
pub use file_limit::raise_file_limit;
pub use outlets::Outlets;
pub use tunnel_keys::KeyFile;

use announcer::Announcer;
use devices::Devices;
use tunnel_keys::TunnelKeyFile;

/// Interval at which a waiting agent checks whether the other one has ended.
const HELD_RETRY: Duration = Duration::from_millis(50);
/// A fifth of what it renews.
const SHARED_HOPS_RENEWAL: Duration = Duration::from_secs(1);

/// The source of Services.
pub enum Origin {
    Manifests(Vec<PathBuf>),
    Cluster(Access),
}

pub struct Options {
    pub origin: Origin,
    pub network: network::Settings,
    pub node_name: String,
    pub modes: Modes,
    /// The programs' log level.
    pub bpf_log_level: BpfLogLevel,
    /// The control group whose processes can connect to Services; `None`: all processes of the
    /// node.
    pub cgroup: Option<PathBuf>,
    /// How packets of clients outside reach other nodes' backends, unless a Service overrides it.
    pub forwarding: Forwarding,
    /// The file with the tunnel keys.
    pub tunnel_keys: KeyFile,
    /// Times of the announcement of addresses.
    pub announcements: Timing,
    pub sizes: WantedSizes,
    /// Ports for SNAT, except those that this node uses itself.
    pub snat_ports: SnatRange,
    /// How long idle flows are kept.
    pub timeouts: Timeouts,
    /// How long the earlier owners of slots are remembered, in seconds; 0: not at all.
    pub slot_history: u32,
    pub cleanup_on_exit: bool,
    pub pin_path: PathBuf,
    /// Listen addresses for health and metrics.
    pub addresses: Addresses,
    /// Limit for service ports, and for backends, whose traffic the metrics export.
    pub metrics_max_objects: usize,
    pub privileges: Privileges,
    pub load_balancer: LoadBalancer,
    /// Metrics of the assignment of addresses, if this process does that.
    pub assignment: Option<controller::Metrics>,
}

/// Pools of addresses, and their assignment to Services from manifests.
#[derive(Clone, Debug)]
pub struct LoadBalancer {
    pub ranges: Vec<Range>,
    pub settings: ipam::Settings,
    pub metallb_namespace: String,
    /// Where assigned addresses are remembered.
    pub state_directory: PathBuf,
}

impl Options {
    /// Settings of the data plane.
    fn parameters(&self, sizes: Sizes) -> Parameters {
        Parameters {
            sizes,
            snat_ports: self.snat_ports,
            timeouts: self.timeouts,
            log_level: self.bpf_log_level,
        }
    }

    /// Settings that the metrics export, to compare nodes.
    fn described(&self, has_tunnel_key: bool) -> Vec<(&'static str, String)> {
        // Without a key `auto` uses no tunnels.
        let forwarding = match self.forwarding {
            Forwarding::Auto if !has_tunnel_key => Forwarding::Masquerade,
            forwarding => forwarding,
        };
        let source = match &self.origin {
            Origin::Manifests(_) => "manifests",
            Origin::Cluster(_) => "cluster",
        };
        vec![
            ("source", source.to_owned()),
            ("xdp_mode", option_name(self.modes.xdp)),
            ("tc_mode", option_name(self.modes.tc)),
            ("forwarding", forwarding_name(forwarding).to_owned()),
        ]
    }
}

/// As written on the command line.
fn option_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Runs until it gets a signal. A failure before everything is programmed undoes what was done.
pub async fn run(options: Options) -> Result<()> {
    preflight()?;
    raise_file_limit();
    let metrics = Arc::new(Metrics::new());
    if let Some(assignment) = &options.assignment {
        metrics.add(assignment.clone());
    }
    let tunnel_keys = TunnelKeyFile::open(options.tunnel_keys.clone())?;
    let (key_found, mut has_tunnel_key) = watch::channel(tunnel_keys.has_key());
    let source = open(&options, &metrics, has_tunnel_key.clone()).await?;
    let network = NetworkWatch::open(options.network.clone()).await?;
    let mut ending = Ending::new()?;

    let pins = tokio::select! {
        pins = held(&options.pin_path) => pins?,
        () = ending.requested() => return Ok(()),
    };
    let started = tokio::select! {
        started = start(
            &pins, source, &options, &network, Arc::clone(&metrics), (tunnel_keys, key_found),
        ) => started.map(Some),
        () = ending.requested() => Ok(None),
    };
    let Started { mut agent, mut events, mut devices, mut announcer, speaker } = match started {
        Ok(Some(started)) => started,
        ended => {
            // The links of this start are detached.
            let ended = ended.map(drop);
            if !pins.existed()
                && let Err(error) = kernel::remove(pins)
            {
                let error = format!("{error:#}");
                tracing::warn!(error, "maps and programs not removed after a failed start");
            }
            return ended;
        }
    };

    let (services, service_ports) = agent.programmed_counts();
    let status =
        format!("{service_ports} service ports of {services} Services programmed at startup");
    notify_service_manager(&[NotifyState::Ready, NotifyState::Status(&status)]);
    let mut watchdog = Watchdog::new();
    let mut network_events = network.follow();
    let mut renewal = interval(SHARED_HOPS_RENEWAL);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => agent.take_in(event, &mut events),
                None => break Err(anyhow::anyhow!("the source of objects has ended")),
            },
            () = until(agent.retry_at()) => agent.retry(),
            event = network_events.recv() => match event {
                Some(network::Event::Attachments(attachments)) => devices.follow(&attachments),
                Some(event) => agent.take_in_network(event),
                None => break Err(anyhow::anyhow!("this machine's network is followed no longer")),
            },
            Ok(()) = has_tunnel_key.changed() => {
                let has_key = *has_tunnel_key.borrow_and_update();
                metrics.set_config(options.described(has_key));
                agent.set_tunnel_key(has_key);
            }
            () = devices.retry_due() => devices.attach_missing(),
            _ = renewal.tick() => agent.renew_hops(),
            () = watchdog.due() => notify_service_manager(&[NotifyState::Watchdog]),
            () = ending.requested() => break Ok(()),
        }
    };
    notify_service_manager(&[NotifyState::Stopping]);
    // Another agent that follows takes everything over. Otherwise other nodes must.
    let is_end = agent.is_shutting_down() || machine_is_stopping().await;
    if options.cleanup_on_exit || is_end {
        speaker.shut_down().await;
        announcer.hand_over().await;
        tracing::info!("addresses handed over to other nodes");
    }
    drop((agent, devices));
    if options.cleanup_on_exit {
        kernel::remove(pins)?;
        tracing::info!("shutting down; programs detached, maps and programs removed");
    } else {
        tracing::info!(
            "shutting down; maps and programs stay attached until `millrace cleanup` removes them"
        );
    }
    ended
}

/// Waits for the pin directory until no other agent holds it: a new agent may start before the old
/// one ends. The kernel keeps forwarding.
async fn held(path: &Path) -> Result<Pins> {
    let mut reported = false;
    loop {
        match Pins::try_open(path)? {
            Opened::Here(pins) => return Ok(pins),
            Opened::InUse(holder) if !reported => {
                reported = true;
                let status = "waiting until another agent ends, to take over from it";
                notify_service_manager(&[NotifyState::Status(status)]);
                tracing::warn!(
                    pid = holder,
                    pin_path = %path.display(),
                    fix = "stop the other agent, or give this one another --pin-path",
                    "another agent is running; waiting for it to exit"
                );
            }
            Opened::InUse(_) => {}
        }
        tokio::time::sleep(HELD_RETRY).await;
    }
}

/// A source, checked as far as possible without waiting for it, and the receiver of notices about
/// its objects.
struct OpenedSource {
    run: Box<dyn FnOnce(mpsc::UnboundedSender<Event>) + Send>,
    notices: Arc<dyn Notices>,
}

async fn open(
    options: &Options,
    metrics: &Metrics,
    has_tunnel_key: watch::Receiver<bool>,
) -> Result<OpenedSource> {
    match &options.origin {
        Origin::Manifests(paths) => {
            let LoadBalancer { ranges, settings, state_directory, .. } = &options.load_balancer;
            let assigned = controller::Metrics::default();
            metrics.add(assigned.clone());
            let source = Manifests::open(paths.clone())?;
            let source =
                Assigning::new(source, settings.clone(), ranges, state_directory, assigned);
            Ok(OpenedSource {
                run: Box::new(|events| run_source(source, events)),
                notices: Arc::new(Log::default()),
            })
        }
        Origin::Cluster(access) => {
            let connection = access.open(metrics.requests()).await?;
            tracing::info!(api_server = connection.description, "watching the cluster");
            let notices = Events::new(connection.client.clone(), &options.node_name);
            let source = Cluster::of(connection, &options.node_name)
                .with_forwarding(options.forwarding)
                .with_tunnel_key(has_tunnel_key)
                .with_metallb_namespace(&options.load_balancer.metallb_namespace);
            let run = Box::new(|events| run_source(source, events));
            Ok(OpenedSource { run, notices: Arc::new(notices) })
        }
    }
}

/// Runs in a task until the process ends.
fn run_source<S: Source + Send + 'static>(source: S, events: mpsc::UnboundedSender<Event>) {
    tokio::spawn(async move {
        if let Err(error) = source.run(events).await {
            tracing::error!(error = format!("{error:#}"), "source of objects failed");
        }
    });
}

/// What runs once everything is programmed and attached.
struct Started<'a> {
    agent: Agent<WithSockets<Tables>>,
    events: mpsc::UnboundedReceiver<Event>,
    devices: Devices<'a>,
    announcer: Announcer,
    speaker: Speaker,
}

/// Loads the programs, waits for all objects of the source, programs them, and only then attaches.
async fn start<'a>(
    pins: &'a Pins,
    source: OpenedSource,
    options: &Options,
    network: &NetworkWatch,
    metrics: Arc<Metrics>,
    (key_file, key_found): (TunnelKeyFile, watch::Sender<bool>),
) -> Result<Started<'a>> {
    let has_tunnel_key = key_file.has_key();
    // It sends objects while the kernel verifies the programs.
    let (sender, mut events) = mpsc::unbounded_channel();
    (source.run)(sender);
    let sizes = choose_sizes(options.sizes, pins)?;
    let mut data_plane = DataPlane::load_with(pins, options.parameters(sizes))?;
    if options.bpf_log_level != BpfLogLevel::Off {
        data_plane.follow_messages()?;
    }
    let tables = data_plane.tables()?;
    let planner = if data_plane.adopted() {
        tables.fill_cache()?;
        Planner::adopting(tables.snapshot()?, sizes.room())
    } else {
        Planner::with_room(sizes.room())
    };
    let planner = planner.keeping_history(options.slot_history);
    // An agent that ended before it had attached left tables that no program reads.
    let serves = data_plane.adopted() && pins.has_programs()?;
    let health = Arc::new(Health::new(serves));
    metrics.set_config(options.described(has_tunnel_key));
    metrics.set_max_objects(options.metrics_max_objects);
    metrics.set_capacities(sizes.capacities());
    let pin_path = options.pin_path.clone();
    metrics.read_traffic_from(move || counters::open(&pin_path));
    serve::start(&options.addresses, &health, &metrics, &source.notices);
    let snat_ports = {
        let (metrics, reserved) = (Arc::clone(&metrics), ReservedPorts::open(pins)?);
        let publish = Box::new(move |ports: &PortSet, remaining: &Remaining| {
            reserved.write(ports);
            metrics.set_snat_ports(remaining.ports);
        });
        SnatPorts::follow(options.snat_ports, publish)?
    };
    let tunnel_probes = {
        let metrics = Arc::clone(&metrics);
        let publish = move |found, silent| metrics.set_tunnel_nodes(found, silent);
        TunnelProbes::follow(pins, Box::new(publish))?
    };
    let tunnel_keys = TunnelKeys::open(pins)?;
    let announcement_keys = watch::Sender::new(Keys::default());
    let keys = announcement_keys.subscribe();
    key_file.follow(move |secrets| {
        tunnel_keys.write(secrets.digests);
        tunnel_probes.set_key(secrets.digests[TunnelKey::Current as usize]);
        announcement_keys.send_replace(Keys::derive(&secrets.lines));
        let has_key = secrets.has_key();
        key_found.send_if_modified(|found| std::mem::replace(found, has_key) != has_key);
    });
    let outlets =
        Outlets::new(Arc::clone(&source.notices), Arc::clone(&health), Arc::clone(&metrics))
            .with_snat_ports(snat_ports);
    let condition = Arc::clone(&outlets.condition);
    let announcements = Announcements::open(pins, &mut data_plane)?;
    let transmitter = announcements.transmitter();
    // Before all objects are known, which may take long: what an earlier agent announced continues.
    let announcer = Announcer::start(announcer::Start {
        node_name: options.node_name.clone(),
        timing: options.announcements,
        kernel: announcements,
        links: network.links(),
        keys,
        notices: source.notices,
        condition: Arc::clone(&condition),
        privileges: options.privileges,
    })?;
    let speaker = Speaker::start(bgp::Start {
        restarted: serves,
        privileges: options.privileges,
        bfd: Some(BfdSessions::open(pins)?),
        transmitter: Some(transmitter),
        publish: {
            let condition = Arc::clone(&condition);
            Box::new(move |view| condition.set_bgp(view))
        },
    })?;
    let outlets = outlets.with_announcer(announcer.publisher()).with_speaker(speaker.commands());
    metrics.add(AnnouncementMetrics::of(&condition));
    metrics.add(BgpMetrics::of(&condition));
    metrics.add(BfdMetrics::of(&condition));
    let reporter = Reporter {
        node_name: options.node_name.clone(),
        health: Arc::clone(&health),
        condition: Arc::clone(&condition),
        started: SystemTime::now(),
    };
    tokio::spawn(reporter.serve(serve::report_address(pins.path())?));
    // Includes removed interfaces that an earlier agent wrote.
    let mut devices: BTreeMap<u32, Option<network::Device>> =
        tables.devices().into_iter().map(|index| (index, None)).collect();
    devices.extend(network.devices().iter().map(|(&index, device)| (index, Some(device.clone()))));
    let tables = WithSockets::new(tables, pins)?;
    let mut agent = Agent::new(&options.node_name, planner, tables, outlets)
        .with_forwarding(options.forwarding, has_tunnel_key)
        .with_pools(Pools::new(&options.load_balancer.ranges));

    loop {
        match events.recv().await {
            Some(Event::Synced) => break,
            Some(event) => drop(agent.store_event(event)),
            None => bail!("the source of objects ended before its first list was complete"),
        }
    }
    agent.note_devices(devices);
    agent.share_hops(network.shares_hops());
    agent.program_changes(Affected::All, Some(network.node_addresses().clone()));

    let links = attach_processes(pins, &mut data_plane, options.cgroup.as_deref())?;
    let attachments = network.attachments();
    let devices = Devices::start(pins, data_plane, options.modes, attachments, metrics, condition)?;
    links.keep();
    options.privileges.once_attached()?;
    health.attached();
    let (services, service_ports) = agent.programmed_counts();
    memory::give_back();
    tracing::info!(steps = agent.carried_out(), "maps programmed");
    tracing::info!(service_ports, services, "ready");
    Ok(Started { agent, events, devices, announcer, speaker })
}

/// Chooses the sizes of the maps, and reports them.
fn choose_sizes(wanted: WantedSizes, pins: &Pins) -> Result<Sizes> {
    let (memory, existing) = (Memory::read(), existing_sizes(pins));
    let sizes = wanted.resolve(memory, existing);
    tracing::info!(
        service_ports = sizes.room().service_ports,
        endpoints = sizes.room().backends,
        flows = sizes.flows(),
        bytes = kernel::memory(sizes)?,
        node_memory_bytes = memory.total,
        memory_limit_bytes = memory.limit,
        kept = existing == Some(sizes),
        "sizes of the maps"
    );
    Ok(sizes)
}

/// Attaches to the processes of this node, or of one of its control groups.
fn attach_processes<'a>(
    pins: &'a Pins,
    data_plane: &mut DataPlane,
    cgroup: Option<&Path>,
) -> Result<Links<'a>> {
    let mut links = Links::new(pins);
    let root = if cgroup.is_none() { cgroup_root()? } else { None };
    match cgroup.or(root.as_deref()) {
        Some(cgroup) => {
            links.attach_processes(data_plane, cgroup)?;
            tracing::info!(cgroup = %cgroup.display(), "attached to cgroup");
        }
        None => {
            links.detach_processes()?;
            tracing::warn!(
                fix = "mount -t cgroup2 none DIRECTORY, or set --cgroup",
                "no cgroup2 file system mounted; processes of the node itself cannot reach services"
            );
        }
    }
    Ok(links)
}

/// Never returns if there is no such moment.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
