//! Two Services that claim one frontend: the older one has it, except that nobody takes a
//! ClusterIP away. Cluster addresses are given out by the cluster; externalIPs are whatever a
//! user writes, who could otherwise draw another Service's traffic (CVE-2020-8554).

use std::collections::{BTreeMap, BTreeSet};

use lb_common::layout::FrontendKind;

use super::Resolved;
use super::types::{Frontend, Problem, Protocol, ServiceName, ServicePortKey};

/// A Service's claim; the least one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    right: Right,
    /// When the Service was made. One without a time, as a file has none, is as old as can be.
    created: Option<String>,
    /// Decides between Services made at once.
    service: ServiceName,
}

/// By which right a frontend is claimed, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Right {
    ClusterIp,
    Other,
}

/// What clients dial, whatever the kind.
type Dialled = (std::net::IpAddr, u16, Protocol);

/// Who claims what.
#[derive(Debug, Default)]
pub struct Claims {
    resolved: BTreeMap<ServiceName, (Option<String>, Resolved)>,
    claims: BTreeMap<Dialled, BTreeSet<Claim>>,
}

impl Claims {
    /// Replaces what a Service means; returns the Services that gain or lose by it, itself
    /// included.
    pub fn set(
        &mut self,
        service: &ServiceName,
        created: Option<String>,
        resolved: Option<Resolved>,
    ) -> BTreeSet<ServiceName> {
        let mut affected = BTreeSet::from([service.clone()]);
        if let Some((created, old)) = self.resolved.remove(service) {
            for (dialled, right) in claimed(&old) {
                let Some(claimants) = self.claims.get_mut(&dialled) else { continue };
                let (created, service) = (created.clone(), service.clone());
                claimants.remove(&Claim { right, created, service });
                affected.extend(claimants.iter().map(|claim| claim.service.clone()));
                if claimants.is_empty() {
                    self.claims.remove(&dialled);
                }
            }
        }
        if let Some(resolved) = resolved {
            for (dialled, right) in claimed(&resolved) {
                let claimants = self.claims.entry(dialled).or_default();
                affected.extend(claimants.iter().map(|claim| claim.service.clone()));
                let (created, service) = (created.clone(), service.clone());
                claimants.insert(Claim { right, created, service });
            }
            self.resolved.insert(service.clone(), (created, resolved));
        }
        affected
    }

    /// What a Service means after conflicts: only the frontends that are its own.
    pub fn settled(&self, service: &ServiceName) -> Resolved {
        let Some((_, resolved)) = self.resolved.get(service) else {
            return Resolved::default();
        };
        let mut settled = resolved.clone();
        for (key, service_port) in &mut settled.service_ports {
            service_port.frontends.retain(|frontend| {
                let owner = self.owner(key, frontend);
                let own = owner.is_none_or(|owner| owner.service == *service);
                if !own && let Some(owner) = owner {
                    settled.problems.push(lost(key, frontend, owner));
                }
                own
            });
        }
        settled
    }

    fn owner(&self, key: &ServicePortKey, frontend: &Frontend) -> Option<&Claim> {
        self.claims.get(&(frontend.address, frontend.port, key.protocol))?.first()
    }
}

fn claimed(resolved: &Resolved) -> Vec<(Dialled, Right)> {
    let ports = resolved.service_ports.iter();
    ports
        .flat_map(|(key, port)| {
            port.frontends.iter().map(|f| ((f.address, f.port, key.protocol), right(f.kind)))
        })
        .collect()
}

fn right(kind: FrontendKind) -> Right {
    if kind == FrontendKind::ClusterIp { Right::ClusterIp } else { Right::Other }
}

fn lost(key: &ServicePortKey, frontend: &Frontend, owner: &Claim) -> Problem {
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
    let why = if owner.right < right(frontend.kind) {
        "as its cluster address"
    } else {
        "which came first"
    };
    Problem {
        object: format!("Service {}", key.service),
        field: field.to_owned(),
        message: format!("{what} ({protocol}) belongs to Service {}, {why}", owner.service),
    }
}
