use anyhow::{Context, Result};
use lb_api::http::Limits;
use lb_api::kinds::Ranges;
use lb_api::server::{self, Server};
use lb_api::storage::Window;
use tokio::signal::unix::{SignalKind, signal};

use super::agent::{confined_runtime, options};
use super::log::Level;
use crate::agent::{self, Origin};
use crate::config::Configuration;
use crate::privileges::Privileges;
use crate::source::cluster::Access;

pub const EXAMPLES: &str = "\
Examples:
  Run on one machine, and manage Services with kubectl:
    millrace standalone --device eth0
    kubectl --kubeconfig /var/lib/millrace/kubeconfig get services -o wide

  Run only the API, without root, to validate manifests:
    millrace standalone --api-only --data-dir ./millrace-data";

pub fn run(configuration: Configuration, level: Level) -> Result<()> {
    let settings = configuration.standalone.clone();
    let server = server::Options {
        data_directory: settings.data_dir,
        bind: settings.api_bind_address,
        kubeconfig: settings.write_kubeconfig,
        node_name: configuration.agent.node_name()?,
        ranges: Ranges {
            cluster_ips: settings.service_cluster_ip_range,
            node_ports: settings.service_node_port_range,
        },
        window: Window::default(),
        limits: Limits::default(),
    };
    let privileges = Privileges::STANDALONE;
    let runtime = confined_runtime(privileges)?;
    // Threads of its own: whatever clients request, the agent and its health checks go on.
    let api = confined_runtime(privileges)?;
    runtime.spawn(level.follow());
    runtime.block_on(async {
        let server = api.spawn(Server::start(server)).await.context("API server panicked")??;
        let kubeconfig = server.kubeconfig.display();
        tracing::info!(address = %server.address, %kubeconfig, "serving the Kubernetes API");
        if settings.api_only {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            return Ok(());
        }
        // The agent can't tell this API from a cluster's.
        let access =
            Access { kubeconfig: Some(server.agent_kubeconfig.clone()), ..Access::default() };
        agent::run(options(configuration, Origin::Cluster(access), privileges)?).await
    })
}
