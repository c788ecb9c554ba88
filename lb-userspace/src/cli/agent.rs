//! `millrace agent`, and the runtimes of commands.

use anyhow::Result;
use lb_agent::{KeyFile, LoadBalancer, ObjectSource};
use lb_common::layout::Timeouts;
use lb_kernel::privileges::Privileges;
use lb_kernel::{Modes, WantedSizes};
use lb_rules::model::ExternalIpPolicy;
use lb_source::cluster::Access;
use lb_status::{DEFAULT_METRICS_MAX_OBJECTS, StatusAddresses};
use tokio::runtime::{Builder, Runtime};

use super::log::Level;
use crate::config::{AgentSettings, Configuration, OriginSettings};

pub(crate) fn run_agent(configuration: Configuration, level: Level) -> Result<()> {
    let origin = agent_origin(&configuration.origin);
    let privileges = Privileges::AGENT;
    let runtime = confined_runtime(privileges)?;
    runtime.spawn(level.follow());
    runtime.block_on(lb_agent::run_agent(agent_options(configuration, origin, privileges)?))
}

pub(crate) fn agent_origin(settings: &OriginSettings) -> ObjectSource {
    match settings.manifests.as_slice() {
        [] => ObjectSource::Cluster(cluster_access(settings)),
        paths => ObjectSource::Manifests(paths.to_vec()),
    }
}

/// How to reach the cluster.
pub fn cluster_access(origin: &OriginSettings) -> Access {
    Access {
        given_kubeconfig: None,
        kubeconfig: origin.kubeconfig.clone(),
        context: origin.context.clone(),
        api_servers: origin.api_servers.clone(),
        state_directory: Some(origin.state_directory.clone()),
    }
}

/// The agent runs on the thread that blocks on it. Sources and servers run on other threads, so
/// that neither makes the other wait.
pub(crate) fn confined_runtime(privileges: Privileges) -> Result<Runtime> {
    privileges.at_the_start()?;
    let confine = move || {
        if let Err(error) = privileges.once_attached() {
            tracing::warn!(error = format!("{error:#}"), "capabilities not dropped");
        }
    };
    Ok(threads().on_thread_start(confine).build()?)
}

/// For commands, which keep their user's privileges.
pub fn build_runtime() -> Result<Runtime> {
    Ok(threads().build()?)
}

fn threads() -> Builder {
    let mut threads = Builder::new_multi_thread();
    threads.worker_threads(2).enable_all();
    threads
}

pub(crate) fn agent_options(
    configuration: Configuration,
    origin: ObjectSource,
    privileges: Privileges,
) -> Result<lb_agent::AgentOptions> {
    let Configuration { common, agent, load_balancer, origin: settings, .. } = configuration;
    let sizes = wanted_sizes(&agent);
    Ok(lb_agent::AgentOptions {
        node_name: agent.node_name()?,
        origin,
        network: lb_network::DeviceSettings {
            external: agent.devices,
            workload: agent.workload_devices,
            node_ports: agent.nodeport_addresses,
        },
        bpf_log_level: agent.bpf_log_level,
        modes: Modes { xdp: agent.xdp_mode, tc: agent.tc_mode },
        cgroup: agent.cgroup,
        forwarding: agent.forwarding,
        external_ips: ExternalIpPolicy::of(&agent.external_ips),
        unserved: agent.load_balancer_unserved,
        startup_taint: agent.startup_taint.0,
        tunnel_keys: KeyFile::of(agent.tunnel_key_file),
        slot_history: agent.slot_history,
        announcements: agent.announcements.timing(),
        allow_dead_nodes: agent.announcements.allow_dead_nodes,
        announcement_hook: agent.announcements.announcement_hook,
        sizes,
        snat_ports: agent.snat_ports,
        timeouts: Timeouts {
            tcp_established: agent.tcp_established_timeout,
            udp: agent.udp_timeout,
            udp_stream: agent.udp_stream_timeout,
        },
        cleanup_on_exit: agent.cleanup_on_exit,
        pin_path: common.pin_path,
        addresses: StatusAddresses {
            healthz: agent.healthz_bind_address.0,
            metrics: agent.metrics_bind_address.0,
        },
        metrics_max_objects: agent.metrics_max_objects.unwrap_or(DEFAULT_METRICS_MAX_OBJECTS),
        privileges,
        load_balancer: LoadBalancer {
            settings: load_balancer.assignment(),
            ranges: load_balancer.load_balancer_addresses,
            metallb_namespace: load_balancer.metallb_namespace,
            state_directory: settings.state_directory,
        },
        assignment: None,
    })
}

/// The settings for the sizes of the maps.
pub(crate) fn wanted_sizes(agent: &AgentSettings) -> WantedSizes {
    WantedSizes {
        service_ports: agent.max_service_ports,
        endpoints: agent.max_endpoints,
        flows: agent.max_flows,
        percent: agent.map_memory_percent,
    }
}
