//! `millrace controller`: assigns addresses to Services of type LoadBalancer.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lb_controller::ControllerOptions;
use lb_kernel::privileges::Privileges;
use lb_rules::model::ServiceName;
use lb_source::cluster::Access;

use super::agent::{cluster_access, confined_runtime};
use super::log::Level;
use crate::config::{Configuration, LoadBalancerSettings};

pub const EXAMPLES: &str = "\
Examples:
  Assign addresses of the AddressPools in the current kubeconfig's cluster:
    millrace controller

  Without AddressPools, addresses of one range:
    millrace controller --load-balancer-addresses 192.0.2.0/28

  Only to Services of the class millrace.io/load-balancer, beside a cloud's controller:
    millrace controller --load-balancer-class-required";

pub fn run_controller(configuration: &Configuration, level: Level) -> Result<()> {
    ensure!(
        configuration.origin.manifests.is_empty(),
        "--manifests: the agent itself assigns addresses to Services from manifests; no controller is needed"
    );
    let ControllerStart { options, healthz, metrics } = controller_start(configuration);
    let runtime = confined_runtime(Privileges::PROXY)?;
    runtime.spawn(level.follow());
    runtime.block_on(lb_controller::run_controller(options, healthz, metrics))
}

/// What `millrace controller` is started with.
#[derive(Debug)]
pub(crate) struct ControllerStart {
    options: ControllerOptions,
    healthz: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
}

pub(crate) fn controller_start(configuration: &Configuration) -> ControllerStart {
    let settings = &configuration.controller;
    let lease = Some(settings.controller_lease.clone());
    let access = cluster_access(&configuration.origin);
    ControllerStart {
        options: ControllerOptions {
            tunnel_key_secret: settings.tunnel_key_secret.clone(),
            ..controller_options(&configuration.load_balancer, access, lease)
        },
        healthz: settings.controller_healthz_bind_address.0,
        metrics: settings.controller_metrics_bind_address.0,
    }
}

/// `lease`: `None` if no other process can assign addresses.
pub(crate) fn controller_options(
    settings: &LoadBalancerSettings,
    access: Access,
    lease: Option<ServiceName>,
) -> ControllerOptions {
    let mut assignment = settings.assignment();
    assignment.is_alone = lease.is_none();
    ControllerOptions {
        access,
        settings: assignment,
        ranges: settings.load_balancer_addresses.clone(),
        metallb_namespace: settings.metallb_namespace.clone(),
        lease,
        tunnel_key_secret: None,
    }
}
