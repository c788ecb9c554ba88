//! Two Services that claim one frontend: the older one has it.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::layout::FrontendKind;

use super::Resolved;
use super::types::{Frontend, Problem, Protocol, ServiceName, ServicePortKey};

/// How old a Service is: its creation time, then its name, as two may come at once. A Service
/// without a time, as a file has none, is as old as can be.
type Age = (Option<String>, ServiceName);

/// What clients dial, whatever the kind.
type Dialled = (std::net::IpAddr, u16, Protocol);

/// Who claims what.
#[derive(Debug, Default)]
pub struct Claims {
    resolved: BTreeMap<ServiceName, (Option<String>, Resolved)>,
    claims: BTreeMap<Dialled, BTreeSet<Age>>,
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
            let age = (created, service.clone());
            for dialled in dialled(&old) {
                let Some(claimants) = self.claims.get_mut(&dialled) else { continue };
                claimants.remove(&age);
                affected.extend(claimants.iter().map(|(_, name)| name.clone()));
                if claimants.is_empty() {
                    self.claims.remove(&dialled);
                }
            }
        }
        if let Some(resolved) = resolved {
            let age = (created.clone(), service.clone());
            for dialled in dialled(&resolved) {
                let claimants = self.claims.entry(dialled).or_default();
                affected.extend(claimants.iter().map(|(_, name)| name.clone()));
                claimants.insert(age.clone());
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
                let own = owner.is_none_or(|owner| owner == service);
                if !own && let Some(owner) = owner {
                    settled.problems.push(lost(key, frontend, owner));
                }
                own
            });
        }
        settled
    }

    fn owner(&self, key: &ServicePortKey, frontend: &Frontend) -> Option<&ServiceName> {
        let claimants = self.claims.get(&(frontend.address, frontend.port, key.protocol))?;
        claimants.first().map(|(_, name)| name)
    }
}

fn dialled(resolved: &Resolved) -> Vec<Dialled> {
    let ports = resolved.service_ports.iter();
    ports
        .flat_map(|(key, port)| port.frontends.iter().map(|f| (f.address, f.port, key.protocol)))
        .collect()
}

fn lost(key: &ServicePortKey, frontend: &Frontend, owner: &ServiceName) -> Problem {
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
    Problem {
        object: format!("Service {}", key.service),
        field: field.to_owned(),
        message: format!("{what} ({protocol}) belongs to Service {owner}, which came first"),
    }
}
