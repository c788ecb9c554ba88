//! Which endpoints are in the pools of a service port.

use std::collections::BTreeSet;

use super::endpoints::PortEndpoint;
use super::node_context::NodeContext;
use super::types::{Backend, ServicePort, TrafficPolicy};

/// Endpoints for new connections, and all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    pub serving: BTreeSet<Backend>,
    pub draining: BTreeSet<Backend>,
}

/// The pool of the scope `cluster`.
pub fn of_cluster(endpoints: &[PortEndpoint<'_>], node: &NodeContext) -> Pool {
    let serving = cluster(endpoints, node);
    let draining = endpoints.iter().map(|endpoint| endpoint.backend);
    Pool { draining: draining.filter(|backend| !serving.contains(backend)).collect(), serving }
}

/// Fills the pools that its frontends use. Endpoints in neither pool are draining: those that
/// terminate, that are not ready at the moment, or that serve other zones.
pub(crate) fn fill_pools(
    service_port: &mut ServicePort,
    endpoints: &[PortEndpoint<'_>],
    node: &NodeContext,
) {
    let external = service_port.is_external();
    let wants_cluster = service_port.internal_policy == TrafficPolicy::Cluster || external;
    let wants_local = service_port.internal_policy == TrafficPolicy::Local
        || (service_port.external_policy == TrafficPolicy::Local && external);
    if wants_cluster {
        service_port.cluster = cluster(endpoints, node);
    }
    service_port.is_hinted = is_hinted(endpoints);
    if wants_local {
        service_port.local = local(endpoints);
    }
    service_port.populated = endpoints.iter().any(PortEndpoint::may_serve);
    let pools = [&service_port.cluster, &service_port.local];
    let draining = endpoints.iter().map(|endpoint| endpoint.backend);
    service_port.draining =
        draining.filter(|backend| !pools.iter().any(|pool| pool.contains(backend))).collect();
}

/// The ready endpoints that topology allows; if there are none, those that terminate and still
/// serve.
fn cluster(endpoints: &[PortEndpoint<'_>], node: &NodeContext) -> BTreeSet<Backend> {
    let ready: Vec<&PortEndpoint<'_>> =
        endpoints.iter().filter(|endpoint| endpoint.ready).collect();
    let allowed: BTreeSet<Backend> =
        near(&ready, node).into_iter().map(|endpoint| endpoint.backend).collect();
    if allowed.is_empty() { last_resort(endpoints) } else { allowed }
}

/// Whether hints may restrict the pool on some node.
fn is_hinted(endpoints: &[PortEndpoint<'_>]) -> bool {
    let mut ready = endpoints.iter().filter(|endpoint| endpoint.ready).peekable();
    ready.peek().is_some()
        && (ready.clone().all(|endpoint| endpoint.for_nodes().is_some())
            || ready.all(|endpoint| endpoint.for_zones().is_some()))
}

/// Backends on this node, for which topology does not matter.
fn local(endpoints: &[PortEndpoint<'_>]) -> BTreeSet<Backend> {
    let here: Vec<PortEndpoint<'_>> =
        endpoints.iter().filter(|endpoint| endpoint.backend.local).copied().collect();
    let ready: BTreeSet<Backend> =
        here.iter().filter(|endpoint| endpoint.ready).map(|endpoint| endpoint.backend).collect();
    if ready.is_empty() { last_resort(&here) } else { ready }
}

fn last_resort(endpoints: &[PortEndpoint<'_>]) -> BTreeSet<Backend> {
    endpoints
        .iter()
        .filter(|endpoint| endpoint.is_last_resort())
        .map(|endpoint| endpoint.backend)
        .collect()
}

/// The endpoints whose hints name this node, or its zone. All, if any has no such hint, or none
/// names this node or zone.
fn near<'e, 's>(ready: &[&'e PortEndpoint<'s>], node: &NodeContext) -> Vec<&'e PortEndpoint<'s>> {
    let named = |names: Option<&[Box<str>]>, name: &str| {
        names.is_some_and(|names| names.iter().any(|n| **n == *name))
    };
    if ready.iter().all(|endpoint| endpoint.for_nodes().is_some()) {
        let hinted: Vec<&PortEndpoint<'_>> =
            ready.iter().filter(|e| named(e.for_nodes(), &node.name)).copied().collect();
        if !hinted.is_empty() {
            return hinted;
        }
    }
    if let Some(zone) = &node.zone
        && ready.iter().all(|endpoint| endpoint.for_zones().is_some())
    {
        let hinted: Vec<&PortEndpoint<'_>> =
            ready.iter().filter(|e| named(e.for_zones(), zone)).copied().collect();
        if !hinted.is_empty() {
            return hinted;
        }
    }
    ready.to_vec()
}
