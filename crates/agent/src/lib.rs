//! The agent: connects the sources of objects with the kernel's tables.
//!
//! - `control`: the loop's state: takes in events, plans in portions, writes, reports
//! - `start`, `devices`, `programs`: starts, attaches to interfaces, opens what needs privileges
//! - `announcer`, `advertiser`: announce addresses on links and by BGP; `announced_services`: has that written as objects
//! - `exchange`: learns earlier owners of slots from other nodes
//! - `outlets`, `tally`, `counters`, `latency`, `reported_problems`: what is reported, and to which log, metric or Event
//!
//! # Invariants
//! - All decisions are made in one loop, on the main thread; sources, servers and speakers run concurrently.
//! - What is not programmed attracts no packets: announcements follow the write.
//! - A failure before everything is programmed undoes what was done.

mod advertiser;
mod announced_services;
mod announcement_objects;
mod announcer;
mod control;
mod counters;
mod devices;
mod exchange;
mod latency;
mod node_ports;
mod outlets;
mod programs;
mod reported_problems;
mod retry;
mod start;
mod tally;
mod tunnel_keys;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use lb_announce::ElectionTiming;
use lb_common::layout::{Forwarding, Timeouts};
use lb_kernel::privileges::Privileges;
use lb_kernel::settings::BpfLogLevel;
use lb_kernel::{Modes, Opened, Parameters, Pins, Sizes, WantedSizes, check_preflight};
use lb_network::NetworkWatch;
use lb_network::snat_ports::SnatRange;
use lb_plan::UnservedPolicy;
use lb_process::ending::EndSignals;
use lb_process::raise_file_limit;
use lb_process::service_manager::{Watchdog, machine_is_stopping, notify_service_manager};
use lb_rules::ipam::{self, Range};
use lb_rules::model::{ExternalIpPolicy, forwarding_name};
use lb_source::cluster::Access;
use lb_status::{Metrics, StatusAddresses};
use lb_waits::{Resource, Wait, Waits};
use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

pub use announcer::HookTarget;
pub use control::Agent;
pub use outlets::Outlets;
pub use tunnel_keys::KeyFile;

use exchange::Exchange;
use start::{Started, open_source, start_agent};
use tunnel_keys::TunnelKeyFile;

/// Interval at which a waiting agent checks whether the other one has ended.
const HELD_RETRY: Duration = Duration::from_millis(50);
/// A fifth of the lease.
const EPOCH_LEASE_RENEWAL: Duration = Duration::from_secs(1);

/// The source of Services.
#[derive(Debug)]
pub enum ObjectSource {
    Manifests(Vec<PathBuf>),
    Cluster(Access),
}

#[derive(Debug)]
pub struct AgentOptions {
    pub origin: ObjectSource,
    pub network: lb_network::DeviceSettings,
    pub node_name: String,
    pub modes: Modes,
    /// The programs' log level.
    pub bpf_log_level: BpfLogLevel,
    /// The control group whose processes can connect to Services; `None`: all processes of the
    /// node.
    pub cgroup: Option<PathBuf>,
    /// How packets of clients outside reach other nodes' backends, unless a Service overrides it.
    pub forwarding: Forwarding,
    /// Which external IPs of Services are served.
    pub external_ips: ExternalIpPolicy,
    /// What happens to packets to an assigned address that no port of a Service takes.
    pub unserved: UnservedPolicy,
    /// The taint to remove from this agent's Node once Services work.
    pub startup_taint: Option<String>,
    /// The file with the tunnel keys.
    pub tunnel_keys: KeyFile,
    /// Times of the announcement of addresses.
    pub announcements: ElectionTiming,
    /// What is called when this node takes or gives up an address.
    pub announcement_hook: Option<HookTarget>,
    /// Whether endpoints of dead nodes get new connections as those of others.
    pub allow_dead_nodes: bool,
    pub sizes: WantedSizes,
    /// Ports for SNAT, except those that this node uses itself.
    pub snat_ports: SnatRange,
    /// How packets between clients and pods of this node pass the node.
    /// How long idle flows are kept.
    pub timeouts: Timeouts,
    /// How long the earlier owners of slots are remembered, in seconds; 0: not at all.
    pub slot_history: u32,
    pub cleanup_on_exit: bool,
    pub pin_path: PathBuf,
    /// Listen addresses for health and metrics.
    pub addresses: StatusAddresses,
    /// Limit for service ports, and for backends, whose traffic the metrics export.
    pub metrics_max_objects: usize,
    pub privileges: Privileges,
    pub load_balancer: LoadBalancer,
    /// Metrics of the assignment of addresses, if this process does that.
    pub assignment: Option<lb_controller::AssignmentMetrics>,
}

/// Pools of addresses, and their assignment to Services from manifests.
#[derive(Clone, Debug)]
pub struct LoadBalancer {
    pub ranges: Vec<Range>,
    pub settings: ipam::IpamSettings,
    pub metallb_namespace: String,
    /// Where assigned addresses are remembered.
    pub state_directory: PathBuf,
}

impl AgentOptions {
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
            ObjectSource::Manifests(_) => "manifests",
            ObjectSource::Cluster(_) => "cluster",
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
pub async fn run_agent(options: AgentOptions) -> Result<()> {
    check_preflight()?;
    let cgroup = options.cgroup.as_deref().map(lb_kernel::resolve_cgroup).transpose()?;
    let options = AgentOptions { cgroup, ..options };
    raise_file_limit();
    tokio::spawn(Waits::of_process().log());
    let metrics = Arc::new(Metrics::new());
    if let Some(assignment) = &options.assignment {
        metrics.add(assignment.clone());
    }
    let tunnel_keys = TunnelKeyFile::open(options.tunnel_keys.clone())?;
    let (key_found, mut has_tunnel_key) = watch::channel(tunnel_keys.has_key());
    let source = open_source(&options, &metrics, has_tunnel_key.clone()).await?;
    let network = NetworkWatch::open(options.network.clone()).await?;
    let mut ending = EndSignals::new()?;

    let pins = tokio::select! {
        pins = held(&options.pin_path) => pins?,
        () = ending.requested() => return Ok(()),
    };
    let started = tokio::select! {
        started = start_agent(
            &pins, source, &options, network, Arc::clone(&metrics), (tunnel_keys, key_found),
        ) => started.map(Some),
        () = ending.requested() => Ok(None),
    };
    let Started {
        mut agent,
        mut events,
        mut exchange,
        mut network,
        mut devices,
        mut announcer,
        speaker,
        report,
        saver,
    } = match started {
        Ok(Some(started)) => started,
        ended => {
            // The links of this start are detached.
            let ended = ended.map(drop);
            if !pins.existed()
                && let Err(error) = lb_kernel::remove_data_plane(pins)
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
    let mut watchdog = Watchdog::start();
    let mut renewal = epoch_lease_renewal();
    let mut watched_nodes = announcer.watched_nodes();
    let ended = loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => agent.take_in(event, &mut events),
                None => break Err(anyhow::anyhow!("the source of objects has ended")),
            },
            () = until(agent.retry_at()) => agent.retry(),
            event = network.recv() => match event {
                Some(lb_network::NetworkEvent::Attachments(attachments)) => devices.follow(&attachments),
                Some(event) => agent.take_in_network(event),
                None => break Err(anyhow::anyhow!("the watch of this machine's network has ended")),
            },
            Some(exchanged) = exchange.recv() => match exchanged {
                Exchange::Asked(reply) if reply.is_closed() => {}
                Exchange::Asked(reply) => drop(reply.send(agent.known_history())),
                Exchange::Learned(known) => agent.learn_history(known),
            },
            Ok(()) = has_tunnel_key.changed() => {
                let has_key = *has_tunnel_key.borrow_and_update();
                metrics.set_config(options.described(has_key));
                agent.set_tunnel_key(has_key);
            }
            Ok(()) = watched_nodes.changed() => {
                let watched = watched_nodes.borrow_and_update().clone();
                let (alive, dead) = (watched.alive, watched.dead.len());
                agent.set_dead_nodes(watched.dead);
                // Last: what is counted as dead gets no new connections.
                metrics.set_watched_nodes(alive, dead);
            }
            () = devices.retry_due() => devices.attach_missing(),
            _ = renewal.tick() => agent.renew_epoch_lease(),
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
        if let Some(report) = report {
            report.withdraw().await;
        }
        tracing::info!("addresses handed over to other nodes");
    }
    agent.end_epoch_lease();
    if !options.cleanup_on_exit
        && !is_end
        && let Some(saver) = saver
        && let Some(versions) = saver.versions()
    {
        agent.store_pending(&mut events);
        saver.save(versions, agent.objects());
    }
    drop((agent, devices));
    if options.cleanup_on_exit {
        lb_kernel::remove_data_plane(pins)?;
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
    let mut wait: Option<Wait> = None;
    loop {
        match Pins::try_open(path)? {
            Opened::Here(pins) => return Ok(pins),
            Opened::InUse(holder) if wait.is_none() => {
                let subject = format!("the lock on {}", path.display());
                let begun = Waits::of_process().begin(Resource::Lock, subject);
                begun.explain(holder.map_or_else(
                    || "another agent holds it; stop it".to_owned(),
                    |pid| format!("the agent with process id {pid} holds it; stop that one"),
                ));
                wait = Some(begun);
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

fn epoch_lease_renewal() -> Interval {
    let mut renewal = interval(EPOCH_LEASE_RENEWAL);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    renewal
}

/// Never returns if there is no such moment.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
