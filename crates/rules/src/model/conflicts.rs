//! Two Services that claim one frontend: a ClusterIP precedes the address of a load balancer, and
//! that all others; of equal claims, the older Service's. The cluster assigns ClusterIPs and the
//! addresses of load balancers. Users choose externalIPs, and could otherwise take over another
//! Service's traffic (CVE-2020-8554).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lb_common::layout::FrontendKind;

use super::types::{Frontend, Problem, Protocol, ServiceName, ServicePort, ServicePortKey};
use super::{NodeContext, Resolved};

/// A Service's claim; the least one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FrontendClaim {
    right: ClaimPriority,
    /// When the Service was created. `None`, as for Services from files, counts as the oldest.
    created: Option<Arc<str>>,
    /// Decides between Services created at the same time.
    service: ServiceName,
}

/// Kinds of claims to a frontend, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClaimPriority {
    ClusterIp,
    LoadBalancer,
    Other,
}

/// The address, port and protocol that clients connect to, of any kind of frontend.
type ClaimTarget = (std::net::IpAddr, u16, Protocol);

/// All claims to frontends.
#[derive(Debug, Default)]
pub struct Claims {
    /// Services before conflicts.
    resolved: BTreeMap<ServiceName, Resolved>,
    /// Sorted, the least first.
    claims: BTreeMap<ClaimTarget, Vec<FrontendClaim>>,
}

impl Claims {
    /// Replaces the resolution of a Service. Returns the Services whose frontends may change,
    /// including this one.
    pub fn set(
        &mut self,
        service: &ServiceName,
        created: Option<String>,
        resolved: Option<Resolved>,
    ) -> BTreeSet<ServiceName> {
        let mut affected = BTreeSet::from([service.clone()]);
        if let Some(old) = self.resolved.remove(service) {
            for (destination, right) in list_claims(&old) {
                let Some(claimants) = self.claims.get_mut(&destination) else { continue };
                claimants.retain(|claim| claim.right != right || claim.service != *service);
                affected.extend(claimants.iter().map(|claim| claim.service.clone()));
                if claimants.is_empty() {
                    self.claims.remove(&destination);
                }
            }
        }
        if let Some(resolved) = resolved {
            let created: Option<Arc<str>> = created.map(Into::into);
            for (destination, right) in list_claims(&resolved) {
                let (created, service) = (created.clone(), service.clone());
                self.claim(destination, FrontendClaim { right, created, service }, &mut affected);
            }
            self.resolved.insert(service.clone(), resolved);
        }
        affected
    }

    fn claim(
        &mut self,
        destination: ClaimTarget,
        claim: FrontendClaim,
        affected: &mut BTreeSet<ServiceName>,
    ) {
        match self.claims.entry(destination) {
            // Few frontends are claimed twice.
            Entry::Vacant(vacant) => drop(vacant.insert(vec![claim])),
            Entry::Occupied(mut others) => {
                affected.extend(others.get().iter().map(|other| other.service.clone()));
                let others = others.get_mut();
                if let Err(index) = others.binary_search(&claim) {
                    others.insert(index, claim);
                }
            }
        }
    }

    /// A Service after conflicts: with those frontends only that it owns, and without ClusterIPs that this node's
    /// interfaces have. No other Service gets those: they are left to the node.
    pub fn settled(&self, service: &ServiceName, node: &NodeContext) -> Resolved {
        let mut settled = self.resolved.get(service).cloned().unwrap_or_default();
        let is_left_to_node = |frontend: &Frontend| {
            frontend.kind == FrontendKind::ClusterIp
                && node.own_addresses.contains(&frontend.address)
        };
        for (key, service_port) in &mut settled.service_ports {
            let mut lost_frontends = Vec::new();
            for frontend in &service_port.frontends {
                let owner = self.owner(key, frontend);
                if let Some(owner) = owner.filter(|owner| owner.service != *service) {
                    settled.problems.push(lost(key, frontend, owner));
                    lost_frontends.push(*frontend);
                } else if is_left_to_node(frontend) {
                    lost_frontends.push(*frontend);
                }
            }
            if !lost_frontends.is_empty() {
                let ServicePort { frontends, assigned, .. } = Arc::make_mut(service_port);
                frontends.retain(|frontend| !lost_frontends.contains(frontend));
                assigned.retain(|address| frontends.iter().any(|it| it.address == *address));
            }
        }
        settled
    }

    fn owner(&self, key: &ServicePortKey, frontend: &Frontend) -> Option<&FrontendClaim> {
        self.claims.get(&(frontend.address, frontend.port, key.protocol))?.first()
    }
}

fn list_claims(resolved: &Resolved) -> Vec<(ClaimTarget, ClaimPriority)> {
    let ports = resolved.service_ports.iter();
    ports
        .flat_map(|(key, port)| {
            port.frontends.iter().map(|f| ((f.address, f.port, key.protocol), right(f.kind)))
        })
        .collect()
}

fn right(kind: FrontendKind) -> ClaimPriority {
    match kind {
        FrontendKind::ClusterIp => ClaimPriority::ClusterIp,
        FrontendKind::LoadBalancer => ClaimPriority::LoadBalancer,
        FrontendKind::NodePort | FrontendKind::ExternalIp | FrontendKind::NodeAddress => {
            ClaimPriority::Other
        }
    }
}

fn lost(key: &ServicePortKey, frontend: &Frontend, owner: &FrontendClaim) -> Problem {
    let field = match frontend.kind {
        FrontendKind::NodePort => "spec.ports",
        FrontendKind::ExternalIp => "spec.externalIPs",
        FrontendKind::LoadBalancer => "status.loadBalancer.ingress",
        FrontendKind::ClusterIp | FrontendKind::NodeAddress => "spec.clusterIPs",
    };
    let protocol = key.protocol.name();
    let what = match frontend.kind {
        FrontendKind::NodePort => format!("node port {}", frontend.port),
        _ => std::net::SocketAddr::new(frontend.address, frontend.port).to_string(),
    };
    let why = match owner.right {
        same if same == right(frontend.kind) => "which came first",
        ClaimPriority::ClusterIp => "as its cluster address",
        _ => "as its load balancer address",
    };
    Problem {
        object: format!("Service {}", key.service),
        field: field.to_owned(),
        message: format!("{what} ({protocol}) belongs to Service {}, {why}", owner.service),
    }
}
