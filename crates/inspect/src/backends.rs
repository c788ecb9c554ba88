//! The backends in the maps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::maglev::Weight;
use lb_plan::{BackendKey, Scope};
use lb_rules::notation::protocol_name;
use serde::Serialize;

use super::reading::Reading;
use super::{Selector, Traffic};

/// A backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedBackend {
    pub address: String,
    pub protocol: &'static str,
    /// `serving`: it gets new connections; `draining`: it keeps those that it has.
    pub state: &'static str,
    /// Whether it is on this node.
    pub local: bool,
    /// The address of its node if that is another one, if known.
    pub node: Option<IpAddr>,
    /// Index in the maps. The generation changes when another backend gets the index.
    pub index: u32,
    pub generation: u32,
    /// Empty for draining backends: the maps do not contain their former Services.
    pub serves: Vec<Serves>,
    pub traffic: Traffic,
}

/// A pool that a backend is in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Serves {
    pub namespace: String,
    pub service: String,
    pub port: String,
    /// `cluster` or `local`.
    pub scope: &'static str,
    /// Its share of the table, relative to the others' weights.
    pub weight: Weight,
    pub slots: u32,
    /// Number of slots of the table.
    pub of_slots: usize,
}

/// The backends of the selected Services; if all are selected, also those without connections.
pub fn list_backends(reading: &Reading, meant: &Selector) -> Vec<ListedBackend> {
    let mut serves: BTreeMap<u32, Vec<Serves>> = BTreeMap::new();
    for (&index, owner) in &reading.service_ports {
        if !meant.matches(&owner.service) {
            continue;
        }
        for (scope, name) in [(Scope::Cluster, "cluster"), (Scope::Local, "local")] {
            let of_slots = reading.slots(index, scope).len();
            for (backend, slots) in reading.members(index, scope) {
                serves.entry(backend).or_default().push(Serves {
                    namespace: owner.service.namespace.clone(),
                    service: owner.service.name.clone(),
                    port: owner.port.clone(),
                    scope: name,
                    weight: reading.weight(index, scope, backend),
                    slots,
                    of_slots,
                });
            }
        }
    }
    let mut found: Vec<(BackendKey, ListedBackend)> = Vec::new();
    for (&index, backend) in &reading.backends {
        let serves = serves.remove(&index);
        if serves.is_none() && !meant.is_everything() {
            continue;
        }
        let flags = backend.state;
        let state = match (flags.draining, &serves) {
            (true, _) => "draining",
            (false, Some(_)) => "serving",
            // Temporarily, between two steps of a plan.
            (false, None) => "unused",
        };
        found.push((
            backend.key,
            ListedBackend {
                address: backend.key.to_string(),
                protocol: protocol_name(backend.key.protocol),
                state,
                local: flags.local,
                node: flags.node,
                index,
                generation: backend.generation,
                serves: serves.unwrap_or_default(),
                traffic: reading.backend_traffic.get(&index).copied().unwrap_or_default(),
            },
        ));
    }
    found.sort_by_key(|(key, _)| *key);
    found.into_iter().map(|(_, backend)| backend).collect()
}
