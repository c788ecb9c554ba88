//! Health checks for load balancers outside the cluster: whether this node serves a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::endpoints::PortEndpoint;
use super::types::{AddressFamily, HealthCheck};

/// The ready endpoints on this node, by address: an endpoint with several ports counts once.
#[derive(Default)]
pub(crate) struct ReadyHere(BTreeSet<IpAddr>);

impl ReadyHere {
    /// Adds the endpoints of one service port. Terminating endpoints do not count: while they
    /// finish, the load balancer should use other nodes.
    pub fn add(&mut self, endpoints: &[PortEndpoint<'_>]) {
        let ready = endpoints.iter().filter(|endpoint| endpoint.ready && endpoint.backend.local);
        self.0.extend(ready.map(|endpoint| endpoint.backend.address));
    }

    pub fn health_check(&self, port: u16) -> HealthCheck {
        // With two address families an endpoint has an address in each.
        let of = |family| self.0.iter().filter(|a| AddressFamily::of(a) == family).count();
        HealthCheck { port, local_endpoints: of(AddressFamily::V4).max(of(AddressFamily::V6)) }
    }
}
