//! What load balancers outside the cluster ask a node: is this Service served here?

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::endpoints::Endpoint;
use super::types::{AddressFamily, HealthCheck};

/// The ready endpoints on this node, by address: several ports of one endpoint count once.
#[derive(Default)]
pub struct ReadyHere(BTreeSet<IpAddr>);

impl ReadyHere {
    /// Takes in the endpoints of one service port. Those that only terminate don't count: the
    /// load balancer shall go elsewhere while they finish.
    pub fn add(&mut self, endpoints: &[Endpoint<'_>]) {
        let ready = endpoints.iter().filter(|endpoint| endpoint.ready && endpoint.backend.local);
        self.0.extend(ready.map(|endpoint| endpoint.backend.address));
    }

    pub fn health_check(&self, port: u16) -> HealthCheck {
        // With two families an endpoint has an address in each.
        let of = |family| self.0.iter().filter(|a| AddressFamily::of(a) == family).count();
        HealthCheck { port, local_endpoints: of(AddressFamily::V4).max(of(AddressFamily::V6)) }
    }
}
