//! The frontends in the maps.

use std::collections::BTreeMap;

use lb_plan::Scope;
use lb_rules::notation::protocol_name;
use serde::Serialize;

use super::reading::Reading;
use super::services::Destination;
use super::{Selector, Traffic};

/// A frontend and its backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    pub namespace: String,
    pub service: String,
    /// The service port's name.
    pub port: String,
    pub kind: &'static str,
    pub address: String,
    pub protocol: &'static str,
    /// The backends of new connections from outside; for a ClusterIP, of those from this node.
    pub backends: Vec<String>,
    /// Traffic of the service port, which its frontends share.
    pub traffic: Traffic,
}

pub fn list_frontends(reading: &Reading, meant: &Selector) -> Vec<Frontend> {
    // Frontends of one service port and policy have the same backends.
    let mut pools: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut found: Vec<Frontend> = Vec::new();
    for (key, frontend) in &reading.frontends {
        let index = frontend.service_port;
        let Some(owner) = reading.service_ports.get(&index) else { continue };
        let destination = Destination::of(key, frontend);
        let is_port = |port: &String| *port == owner.port || *port == key.port.to_string();
        if !meant.matches(&owner.service) || !meant.port.as_ref().is_none_or(is_port) {
            continue;
        }
        let scope = if frontend.wants_local() { Scope::Local } else { Scope::Cluster };
        let backends =
            pools.entry(scope.pool_index(index)).or_insert_with(|| ends(reading, index, scope));
        found.push(Frontend {
            namespace: owner.service.namespace.clone(),
            service: owner.service.name.clone(),
            port: owner.port.clone(),
            kind: destination.kind,
            address: destination.end(),
            protocol: protocol_name(key.protocol),
            backends: backends.clone(),
            traffic: reading.service_traffic.get(&index).copied().unwrap_or_default(),
        });
    }
    // By Service first; the addresses are in order already.
    found.sort_by(|one, other| {
        (&one.namespace, &one.service).cmp(&(&other.namespace, &other.service))
    });
    found
}

fn ends(reading: &Reading, service_port: u32, scope: Scope) -> Vec<String> {
    let members = reading.members(service_port, scope);
    let mut keys: Vec<_> =
        members.keys().filter_map(|index| Some(reading.backends.get(index)?.key)).collect();
    keys.sort();
    keys.iter().map(ToString::to_string).collect()
}
