//! The rules of Kubernetes: resolves a Service and its EndpointSlices for this node.
//!
//! Pure: no I/O, no clock; the same objects always give the same result. What violates the API's
//! rules becomes a [`Problem`], and the rest is used.
//!
//! Tests: `tests/model/`, one file for each rule: manifests above, the expected table below.

mod address;
mod conflicts;
mod eligibility;
mod endpoints;
mod external_ips;
mod fields;
mod health_check;
mod kind;
mod lent_ports;
mod node;
mod node_context;
mod object;
mod pools;
mod sent_slice;
mod service;
mod slice;
mod slices;
mod source_ranges;
mod strip;
mod tunnels;
mod types;
mod weights;
mod written_slice;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;

use health_check::ReadyHere;

pub use conflicts::Claims;
pub use external_ips::{ExternalIpPolicy, ExternalIpRule};
pub use kind::Kind;
pub use lent_ports::{NODE_PROBE_PORT, PortGrant, ProtocolPort, has_lent_ports};
pub(crate) use lent_ports::{find_owner_on_nodes, is_lending};
pub use node::{Node, NodeAddresses};
pub use node_context::{LentPool, LentPorts, NodeContext};
pub use object::{Object, ObjectRef};
pub use pools::Pool;
pub use sent_slice::SentSlice;
pub(crate) use service::list_cluster_ips;
pub use service::{is_advertising_label, trim_service};
pub use slice::{AddressType, Slice};
pub use slices::Slices;
pub use tunnels::{forwarding_name, forwarding_named, is_tunnelled};
pub use types::{
    AddressFamily, Backend, Frontend, HealthCheck, Problem, Protocol, ServiceName, ServicePort,
    ServicePortKey, TrafficPolicy,
};
pub use weights::Weights;

/// A Service, resolved for this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// In the order of their keys. Shared with other owners, such as the planner. Most Services have one: a map allocates
    /// room for eleven.
    pub service_ports: Box<[(ServicePortKey, Arc<ServicePort>)]>,
    pub health_check: Option<HealthCheck>,
    pub problems: Vec<Problem>,
}

/// Resolves one Service.
pub fn resolve_service(service: &Service, slices: &[&Slice], node: &NodeContext) -> Resolved {
    let mut problems = Vec::new();
    let name = ServiceName::of(&service.metadata);
    let mut read = service::read_service(service, &name, node, &mut problems);
    let weights = if read.service_ports.is_empty() {
        Weights::default()
    } else {
        Weights::read(service, &mut problems)
    };
    let mut ready_here = ReadyHere::default();
    for (key, service_port) in &mut read.service_ports {
        let endpoints = endpoints::endpoints_of_port(key, slices, &weights, node, &mut problems);
        pools::fill_pools(service_port, &endpoints, node);
        problems.extend(tunnels::report_unreachable(service_port, &name));
        ready_here.add(&endpoints);
    }
    // Every port and family reports the problems of the same slices.
    problems.sort();
    problems.dedup();
    Resolved {
        health_check: read.health_check_port.map(|port| ready_here.health_check(port)),
        service_ports: read.service_ports.into_iter().map(share_port).collect(),
        problems,
    }
}

/// The endpoints of a service port for clients on this node, whatever the Service's policies are: those of clients that
/// connect to endpoints themselves.
pub fn view_pool(
    key: &ServicePortKey,
    slices: &[&Slice],
    weights: &Weights<'_>,
    node: &NodeContext,
    problems: &mut Vec<Problem>,
) -> Pool {
    pools::of_cluster(&endpoints::endpoints_of_port(key, slices, weights, node, problems), node)
}

fn share_port((key, port): (ServicePortKey, ServicePort)) -> (ServicePortKey, Arc<ServicePort>) {
    (key, Arc::new(port))
}
