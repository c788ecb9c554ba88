//! From nothing to an attached agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Result, bail};
use lb_announce::SealKeys;
use lb_common::layout::TunnelKey;
use lb_controller::AssigningSource;
use lb_kernel::{
    AvailableMemory, DataPlane, Links, Pins, Prepared, ReservedPorts, Sizes, SnatPorts, Tables,
    TunnelKeys, TunnelProbes, WantedSizes, WithSockets, cgroup_root, existing_sizes,
};
use lb_network::NetworkWatch;
use lb_network::snat_ports::{PortSet, RemainingPorts};
use lb_plan::Planner;
use lb_process::notices::{NoticeLog, Notices};
use lb_rules::ipam::Pools;
use lb_rules::store::Affected;
use lb_source::cluster::{Events, ObjectSaver, StartupTaint, StatusKind, StatusWriter};
use lb_source::{Cluster, Event, Manifests, Source};
use lb_speakers::bgp::Speaker;
use lb_status::{
    AnnouncementMetrics, BfdMetrics, BgpMetrics, Condition, Health, Metrics, Reporter,
};
use lb_waits::Waits;
use tokio::sync::{mpsc, watch};
use tokio::time::Interval;

use super::announced_services::AnnouncedServicesReport;
use super::announcer::Announcer;
use super::devices::Devices;
use super::exchange::{self, Exchange};
use super::programs::{Dependents, Programs};
use super::tunnel_keys::TunnelKeyFile;
use super::{
    Agent, AgentOptions, LoadBalancer, ObjectSource, Outlets, counters, epoch_lease_renewal, until,
};

/// A source, checked as far as possible without waiting for it, and the receiver of notices about
/// its objects.
pub struct OpenedSource {
    /// With whether an earlier agent has left its maps.
    run: Box<dyn FnOnce(mpsc::UnboundedSender<Event>, bool) + Send>,
    notices: Arc<dyn Notices>,
    saver: Option<ObjectSaver>,
    startup_taint: Option<StartupTaint>,
    /// Of what this node announces.
    status_writers: Vec<StatusWriter>,
}

pub async fn open_source(
    options: &AgentOptions,
    metrics: &Metrics,
    has_tunnel_key: watch::Receiver<bool>,
) -> Result<OpenedSource> {
    match &options.origin {
        ObjectSource::Manifests(paths) => {
            let LoadBalancer { ranges, settings, state_directory, .. } = &options.load_balancer;
            let assigned = lb_controller::AssignmentMetrics::default();
            metrics.add(assigned.clone());
            let source = Manifests::open(paths.clone())?;
            let source =
                AssigningSource::new(source, settings.clone(), ranges, state_directory, assigned);
            Ok(OpenedSource {
                run: Box::new(|events, _| run_source(source, events)),
                notices: Arc::new(NoticeLog::default()),
                saver: None,
                startup_taint: None,
                status_writers: Vec::new(),
            })
        }
        ObjectSource::Cluster(access) => {
            let connection = access.open(metrics.requests()).await?;
            tracing::info!(api_server = connection.description, "watching the cluster");
            let client = connection.client.clone();
            let notices: Arc<dyn Notices> =
                Arc::new(Events::new(client.clone(), &options.node_name));
            let metallb_namespace = &options.load_balancer.metallb_namespace;
            let writer_of = |kind| {
                StatusWriter::new(client.clone(), kind, metallb_namespace, &options.node_name)
            };
            let status_writers = StatusKind::ALL.map(writer_of).to_vec();
            let startup_taint = options.startup_taint.as_deref().map(|key| {
                StartupTaint::new(client, &options.node_name, key, Arc::clone(&notices))
            });
            let source = Cluster::of(connection, &options.node_name)
                .with_forwarding(options.forwarding)
                .with_tunnel_key(has_tunnel_key)
                .with_metallb_namespace(metallb_namespace);
            let (source, saver) = match &access.state_directory {
                Some(directory) => {
                    let (source, saver) = source.with_state_directory(directory);
                    (source, Some(saver))
                }
                None => (source, None),
            };
            let run = Box::new(|events, is_restart| {
                run_source(source.with_restart(is_restart), events);
            });
            Ok(OpenedSource { run, notices, saver, startup_taint, status_writers })
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
pub struct Started<'a> {
    pub agent: Agent<WithSockets<Tables>>,
    pub events: mpsc::UnboundedReceiver<Event>,
    pub exchange: mpsc::UnboundedReceiver<Exchange>,
    pub network: mpsc::UnboundedReceiver<lb_network::NetworkEvent>,
    pub devices: Devices<'a>,
    pub announcer: Announcer,
    pub speaker: Speaker,
    pub report: Option<AnnouncedServicesReport>,
    pub saver: Option<ObjectSaver>,
}

/// Creates or adopts the maps, waits for all Services of the source and programs them, while the kernel verifies the
/// programs, and only then attaches.
pub async fn start_agent<'a>(
    pins: &'a Pins,
    source: OpenedSource,
    options: &AgentOptions,
    network: NetworkWatch,
    metrics: Arc<Metrics>,
    (key_file, key_found): (TunnelKeyFile, watch::Sender<bool>),
) -> Result<Started<'a>> {
    let has_tunnel_key = key_file.has_key();
    let (sender, mut events) = mpsc::unbounded_channel();
    (source.run)(sender, pins.existed());
    let sizes = choose_sizes(options.sizes, pins)?;
    let prepared = Prepared::open(pins, options.parameters(sizes))?;
    let tables = Tables::open(|name| pins.map(name))?;
    let (adopted, reused) = (prepared.adopted(), prepared.is_verified());
    // An agent that ended before it had attached left tables that no program reads.
    let serves = adopted && pins.has_programs()?;
    let (announcer, orders) = Announcer::new();
    let (speaker, commands) = Speaker::new();
    let condition = Arc::<Condition>::default();
    let announcement_keys = watch::Sender::new(SealKeys::default());
    let (exchange_keys, history_keys) = watch::channel(SealKeys::default());
    let (exchanged, exchange) = mpsc::unbounded_channel();
    let mut programs = Programs::verify(
        prepared,
        Dependents {
            pins,
            node_name: options.node_name.clone(),
            timing: options.announcements,
            modes: options.modes,
            log_level: options.bpf_log_level,
            privileges: options.privileges,
            restarted: serves,
            announcer: orders,
            announcement_hook: options.announcement_hook.clone(),
            may_find_dead_nodes: !options.allow_dead_nodes,
            speaker: commands,
            keys: announcement_keys.subscribe(),
            links: network.links(),
            attachments: network.attachments().clone(),
            notices: Arc::clone(&source.notices),
            metrics: Arc::clone(&metrics),
            condition: Arc::clone(&condition),
        },
    )?;
    if reused {
        // At once: what an earlier agent announced continues.
        programs.proceed().await?;
    }
    let planner = if adopted {
        tables.fill_cache()?;
        let planner = Planner::adopting(tables.snapshot()?, sizes.room());
        if let Some(adopted_tables) = planner.adopted_tables() {
            // While objects are read and resolved. The plan compares what the thread has not.
            tokio::task::spawn_blocking(|| adopted_tables.compare_all());
        }
        planner
    } else {
        Planner::with_room(sizes.room())
    };
    let planner = planner.keeping_history(options.slot_history).with_unserved(options.unserved);
    let health = Arc::new(Health::new(serves));
    metrics.set_config(options.described(has_tunnel_key));
    metrics.set_max_objects(options.metrics_max_objects);
    metrics.set_capacities(sizes.capacities());
    let pin_path = options.pin_path.clone();
    metrics.read_traffic_from(move || counters::open_counters(&pin_path));
    let history = exchange::exchange_route(history_keys.clone(), exchanged.clone());
    lb_status::start_servers(&options.addresses, &health, &metrics, history, &source.notices);
    let snat_ports = {
        let (metrics, reserved) = (Arc::clone(&metrics), ReservedPorts::open(pins)?);
        let earlier = reserved.read();
        let publish = Box::new(move |ports: &PortSet, remaining: &RemainingPorts| {
            reserved.write(ports);
            metrics.set_snat_ports(remaining.ports);
        });
        SnatPorts::follow(options.snat_ports, earlier, publish)?
    };
    let tunnel_probes = {
        let metrics = Arc::clone(&metrics);
        let publish = move |found, silent| metrics.set_tunnel_nodes(found, silent);
        TunnelProbes::follow(pins, Box::new(publish))?
    };
    lb_kernel::clear_crowded_bits(pins)?;
    lb_kernel::place_new_flows(pins)?;
    let tunnel_keys = TunnelKeys::open(pins)?;
    key_file.follow(move |secrets| {
        tunnel_keys.write(secrets.digests);
        tunnel_probes.set_key(secrets.digests[TunnelKey::Current as usize]);
        announcement_keys.send_replace(SealKeys::derive(&secrets.lines));
        exchange_keys.send_replace(exchange::exchange_keys(&secrets.lines));
        let has_key = secrets.has_key();
        key_found.send_if_modified(|found| std::mem::replace(found, has_key) != has_key);
    });
    let outlets =
        Outlets::new(Arc::clone(&source.notices), Arc::clone(&health), Arc::clone(&metrics))
            .with_condition(Arc::clone(&condition))
            .with_snat_ports(snat_ports)
            .with_announcer(announcer.publisher(), announcer.beat())
            .with_nodes(announcer.node_publisher())
            .with_speaker(speaker.commands());
    let taints = outlets.taints();
    metrics.add(AnnouncementMetrics::of(&condition));
    metrics.add(BgpMetrics::of(&condition));
    metrics.add(BfdMetrics::of(&condition));
    let reporter = Reporter {
        node_name: options.node_name.clone(),
        health: Arc::clone(&health),
        condition: Arc::clone(&condition),
        started: SystemTime::now(),
        waits: Waits::of_process(),
    };
    tokio::spawn(reporter.serve(lb_status::report_address(pins.path())?));
    // Includes removed interfaces that an earlier agent wrote.
    let mut devices: BTreeMap<u32, Option<lb_network::Device>> =
        tables.devices().into_iter().map(|index| (index, None)).collect();
    devices.extend(network.devices().iter().map(|(&index, device)| (index, Some(device.clone()))));
    let tables = WithSockets::new(tables, pins)?;
    let mut agent = Agent::new(&options.node_name, planner, tables, outlets)
        .with_forwarding(options.forwarding, has_tunnel_key)
        .with_external_ips(options.external_ips.clone())
        .with_pools(Pools::new(&options.load_balancer.ranges));

    agent.note_devices(devices);
    agent.note_node_addresses(network.node_addresses().clone());
    agent.note_own_addresses(network.own_addresses().clone());
    // The network may have changed since an earlier agent followed it.
    agent.note_network(lb_network::NetworkEvent::Epoch);
    agent.share_hops(network.shares_hops());
    let mut network = network.follow();
    let mut waiting = StartingAgent {
        agent: &mut agent,
        network: &mut network,
        programs: &mut programs,
        renewal: epoch_lease_renewal(),
    };
    waiting.store_objects(&mut events).await?;
    if adopted {
        // Programs of an earlier agent may use some of the maps, and others only new ones: both change together.
        waiting.load_programs().await?;
    }
    waiting.agent.program_changes(Affected::All);
    waiting.load_programs().await?;
    // The network may have changed meanwhile.
    agent.program_changes(Affected::default());

    let mut devices = programs.into_devices()?;
    let links = attach_processes(pins, devices.data_plane(), options.cgroup.as_deref())?;
    devices.start()?;
    links.keep();
    options.privileges.once_attached()?;
    health.note_attached();
    let report = (!source.status_writers.is_empty())
        .then(|| AnnouncedServicesReport::start(source.status_writers, &condition, &taints));
    if let Some(startup_taint) = source.startup_taint {
        tokio::spawn(startup_taint.remove_whenever_there(taints));
    }
    // This node may have joined, or lost its maps.
    if options.slot_history > 0 && !agent.has_history() {
        let (keys, port) = (history_keys.borrow().clone(), options.addresses.healthz);
        if let Some(port) = port.map(|address| address.port()).filter(|_| keys.authenticate()) {
            tokio::spawn(exchange::ask_others(agent.other_nodes(), port, keys, exchanged));
        }
    }
    let (services, service_ports) = agent.programmed_counts();
    lb_kernel::give_back_memory();
    tracing::info!(steps = agent.carried_out(), "maps programmed");
    agent.report_left_to_node();
    tracing::info!(service_ports, services, "ready");
    let saver = source.saver;
    Ok(Started { agent, events, exchange, network, devices, announcer, speaker, report, saver })
}

/// What goes on until all objects are known and the programs are loaded. The programs of an earlier agent forward
/// meanwhile, also to changed routes and from added interfaces.
struct StartingAgent<'w, 'a> {
    agent: &'w mut Agent<WithSockets<Tables>>,
    network: &'w mut mpsc::UnboundedReceiver<lb_network::NetworkEvent>,
    programs: &'w mut Programs<'a>,
    renewal: Interval,
}

impl StartingAgent<'_, '_> {
    /// Returns when all objects are known.
    async fn store_objects(&mut self, events: &mut mpsc::UnboundedReceiver<Event>) -> Result<()> {
        loop {
            tokio::select! {
                biased;
                turned = self.turn() => turned?,
                event = events.recv() => {
                    let Some(event) = event else {
                        bail!("the source of objects ended before its first list was complete");
                    };
                    let is_synced = matches!(event, Event::Synced(_));
                    drop(self.agent.store_event(event));
                    if is_synced {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns when the programs are loaded, and no change of the network is left.
    async fn load_programs(&mut self) -> Result<()> {
        while !self.programs.are_loaded() {
            self.turn().await?;
        }
        while let Ok(event) = self.network.try_recv() {
            self.note_network(event);
        }
        Ok(())
    }

    /// Waits for something other than objects, and handles it.
    async fn turn(&mut self) -> Result<()> {
        tokio::select! {
            biased;
            proceeded = self.programs.proceed() => proceeded?,
            event = self.network.recv() => match event {
                Some(event) => self.note_network(event),
                None => bail!("the watch of this machine's network has ended"),
            },
            () = until(self.agent.retry_at()) => self.agent.retry(),
            _ = self.renewal.tick() => self.agent.renew_epoch_lease(),
        }
        Ok(())
    }

    fn note_network(&mut self, event: lb_network::NetworkEvent) {
        match event {
            lb_network::NetworkEvent::Attachments(attachments) => self.programs.follow(attachments),
            event => self.agent.note_network(event),
        }
    }
}

/// Chooses the sizes of the maps, and reports them.
fn choose_sizes(wanted: WantedSizes, pins: &Pins) -> Result<Sizes> {
    let (memory, existing) = (AvailableMemory::read(), existing_sizes(pins));
    let sizes = wanted.resolve(memory, existing);
    tracing::info!(
        service_ports = sizes.room().service_ports,
        endpoints = sizes.room().backends,
        flows = sizes.flows(),
        bytes = lb_kernel::compute_memory(sizes)?,
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
