//! Kubernetes' rules: what a Service and its EndpointSlices mean on this node.
//!
//! Pure: no I/O, no clock; the same objects always mean the same. What breaks the API's rules
//! becomes a [`Problem`], and the rest goes on.
//!
//! Tests: `tests/model/`, a file a rule: manifests above, the expected table below.

mod conflicts;
mod endpoints;
mod pools;
mod service;
mod types;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

pub use conflicts::Claims;
pub use types::{
    AddressFamily, Backend, Frontend, NodeContext, Policy, Problem, Protocol, ServiceName,
    ServicePort, ServicePortKey,
};

/// What one Service means here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    pub service_ports: BTreeMap<ServicePortKey, ServicePort>,
    pub problems: Vec<Problem>,
}

/// Resolves one Service.
pub fn resolve(service: &Service, slices: &[&EndpointSlice], node: &NodeContext) -> Resolved {
    let mut problems = Vec::new();
    let name = ServiceName::of(&service.metadata);
    let service_ports = service::service_ports(service, &name, &mut problems)
        .into_iter()
        .map(|(key, mut service_port)| {
            let endpoints = endpoints::of_port(&key, slices, node, &mut problems);
            pools::fill(&mut service_port, &endpoints, node);
            (key, service_port)
        })
        .collect();
    problems.sort();
    problems.dedup();
    Resolved { service_ports, problems }
}
