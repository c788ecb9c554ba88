//! Reads the maps of Services and backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Result;
use lb_common::header::protocol;
use lb_common::layout::{self, FrontendKind};
use lb_common::maglev::{DEFAULT_WEIGHT, Weight};
use lb_kernel::{Tables, is_own};
use lb_plan::{BackendKey, BackendState, FrontendKey, Scope, SideEntry, Snapshot};
use lb_rules::model::ServiceName;
use serde::Serialize;

use super::Traffic;

/// The contents of the tables.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Service ports with any entries, by index.
    pub service_ports: BTreeMap<u32, IndexOwner>,
    pub frontends: BTreeMap<FrontendKey, layout::Frontend>,
    /// The slots of each pool with backends, by the pool's index: indexes of backends.
    pub pools: BTreeMap<u32, Vec<u32>>,
    pub backends: BTreeMap<u32, FoundBackend>,
    /// Other than the default.
    pub weights: BTreeMap<layout::Member, Weight>,
    /// By the service port's index.
    pub source_ranges: BTreeMap<u32, BTreeSet<String>>,
    pub service_traffic: BTreeMap<u32, Traffic>,
    pub backend_traffic: BTreeMap<u32, Traffic>,
    /// By address family: 4 or 6.
    pub tunnel_nodes: BTreeMap<u8, TunnelNodes>,
}

/// Addresses of other nodes, and how many of them take packets out of tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelNodes {
    pub decapsulating: usize,
    pub all: usize,
}

/// The owner of an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexOwner {
    pub service: ServiceName,
    /// The port's name; empty if it has none.
    pub port: String,
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundBackend {
    pub key: BackendKey,
    pub state: BackendState,
    pub generation: u32,
}

impl Reading {
    pub fn of(tables: &Tables) -> Result<Self> {
        let snapshot = tables.snapshot()?;
        let pools = snapshot.pools.iter().map(|found| (found.index, tables.slots(found.pool)));
        let mut reading = Self::of_snapshot(&snapshot, pools.collect());
        for &index in reading.service_ports.keys() {
            reading.service_traffic.insert(index, tables.service_traffic(index)?.into());
        }
        for &index in reading.backends.keys() {
            reading.backend_traffic.insert(index, tables.backend_traffic(index)?.into());
        }
        let nodes = snapshot.side_entries.iter().filter_map(|side_entry| match side_entry {
            SideEntry::Peer(node) if !is_own(*node) => Some(*node),
            _ => None,
        });
        reading.count_tunnel_nodes(nodes, &tables.tunnel_peers()?);
        Ok(reading)
    }

    pub(crate) fn count_tunnel_nodes(
        &mut self,
        nodes: impl Iterator<Item = IpAddr>,
        decapsulating: &BTreeSet<IpAddr>,
    ) {
        for node in nodes {
            let count = self.tunnel_nodes.entry(if node.is_ipv4() { 4 } else { 6 }).or_default();
            count.all += 1;
            count.decapsulating += usize::from(decapsulating.contains(&node));
        }
    }

    /// Without counters.
    pub(crate) fn of_snapshot(snapshot: &Snapshot, pools: BTreeMap<u32, Vec<u32>>) -> Self {
        let mut reading = Self { pools, ..Self::default() };
        for &(key, frontend) in &snapshot.frontends {
            // Entries for whole addresses belong to no service port.
            if frontend.kind != FrontendKind::NodeAddress as u8 && key.port != 0 {
                reading.frontends.insert(key, frontend);
            }
        }
        for found in &snapshot.backends {
            if let Some((key, state)) = found.backend {
                let generation = found.generation;
                reading.backends.insert(found.index, FoundBackend { key, state, generation });
            }
        }
        for side_entry in &snapshot.side_entries {
            match side_entry {
                SideEntry::Name { service_port, name } => {
                    reading.service_ports.insert(*service_port, name.as_ref().into());
                }
                SideEntry::SourceRange { service_port, range } => {
                    let ranges = reading.source_ranges.entry(*service_port).or_default();
                    ranges.insert(range.to_string());
                }
                SideEntry::Weight { member, weight } => {
                    reading.weights.insert(*member, *weight);
                }
                _ => {}
            }
        }
        reading.name_the_nameless();
        reading
    }

    /// Names the owners in maps of an old agent that stored no names.
    pub(super) fn name_the_nameless(&mut self) {
        for (key, frontend) in &self.frontends {
            let index = frontend.service_port;
            self.service_ports.entry(index).or_insert_with(|| IndexOwner::nameless(index, key));
        }
    }

    /// The members of a pool with their numbers of slots.
    pub fn members(&self, service_port: u32, scope: Scope) -> BTreeMap<u32, u32> {
        let mut members = BTreeMap::new();
        for &backend in self.slots(service_port, scope) {
            *members.entry(backend).or_insert(0) += 1;
        }
        members
    }

    /// The weight of a backend in a pool.
    pub fn weight(&self, service_port: u32, scope: Scope, backend: u32) -> Weight {
        let member = layout::Member { pool: scope.pool_index(service_port), backend };
        self.weights.get(&member).copied().unwrap_or(DEFAULT_WEIGHT)
    }

    pub fn slots(&self, service_port: u32, scope: Scope) -> &[u32] {
        self.pools.get(&scope.pool_index(service_port)).map_or(&[], Vec::as_slice)
    }
}

impl IndexOwner {
    /// An owner in a namespace that no Service can have.
    fn nameless(index: u32, frontend: &FrontendKey) -> Self {
        Self {
            service: ServiceName::new("?", &index.to_string()),
            port: String::new(),
            protocol: frontend.protocol,
            family: if frontend.address.is_ipv4() { 4 } else { 6 },
        }
    }

    /// `IPv4` or `IPv6`.
    pub(crate) fn family_name(&self) -> &'static str {
        if self.family == 4 { "IPv4" } else { "IPv6" }
    }
}

impl From<&layout::ServicePortName> for IndexOwner {
    fn from(name: &layout::ServicePortName) -> Self {
        Self {
            service: ServiceName::new(name.namespace.as_str(), name.service.as_str()),
            port: name.port.as_str().to_owned(),
            protocol: name.protocol,
            family: name.family,
        }
    }
}

impl Default for IndexOwner {
    fn default() -> Self {
        let service = ServiceName::default();
        Self { service, port: String::new(), protocol: protocol::TCP, family: 4 }
    }
}
