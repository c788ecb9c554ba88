//! The Services in the maps.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use lb_common::layout::{self, Forwarding};
use lb_common::maglev::Weight;
use lb_plan::{FrontendKey, Scope, table_checksum};
use lb_rules::model::{ServiceName, forwarding_name};
use lb_rules::notation::{frontend_kind_name, protocol_name};
use serde::Serialize;

use super::reading::{IndexOwner, Reading, TunnelNodes};
use super::{Selector, Traffic};

/// A Service in the data plane.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedService {
    pub namespace: String,
    pub name: String,
    pub ports: Vec<ListedPort>,
}

/// A service port.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedPort {
    /// Empty if it has none.
    pub name: String,
    pub protocol: &'static str,
    pub family: &'static str,
    /// Index in the maps.
    pub index: u32,
    pub frontends: Vec<Destination>,
    pub internal_traffic_policy: &'static str,
    pub external_traffic_policy: &'static str,
    /// `null`: no session affinity.
    pub session_affinity_seconds: Option<u32>,
    /// Empty: all sources are allowed.
    pub source_ranges: Vec<String>,
    pub forwarding: &'static str,
    /// With forwarding `auto`: other nodes, and those that are reached through tunnels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel_nodes: Option<TunnelNodes>,
    /// Backends in the whole cluster.
    pub cluster_pool: ListedPool,
    /// Backends on this node.
    pub local_pool: ListedPool,
    pub traffic: Traffic,
}

/// An address and port that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    pub kind: &'static str,
    /// `null` for a node port, which is open on this node's addresses.
    pub address: Option<IpAddr>,
    pub port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedPool {
    /// Size of its table; 0 without backends.
    pub slots: usize,
    /// Checksum of the table: nodes with the same backends have the same. Empty without backends.
    pub checksum: String,
    pub backends: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub address: String,
    pub weight: Weight,
    pub slots: u32,
    /// Whether it is on this node.
    pub local: bool,
}

impl ListedPort {
    /// All its backends, in one pool or the other.
    pub fn backends(&self) -> impl Iterator<Item = &Member> {
        let cluster = &self.cluster_pool.backends;
        let only_local = |member: &&Member| cluster.iter().all(|m| m.address != member.address);
        cluster.iter().chain(self.local_pool.backends.iter().filter(only_local))
    }

    pub(crate) fn is_called(&self, port: &str) -> bool {
        self.name == port || self.frontends.iter().any(|f| f.port.to_string() == port)
    }
}

impl Destination {
    pub fn of(key: &FrontendKey, frontend: &layout::Frontend) -> Self {
        let address = (!key.is_node_port()).then_some(key.address);
        Self { kind: frontend_kind_name(frontend.kind), address, port: key.port }
    }

    /// Address and port; a node port as `*:30080`.
    pub fn end(&self) -> String {
        match self.address {
            Some(address) => SocketAddr::new(address, self.port).to_string(),
            None => format!("*:{}", self.port),
        }
    }
}

/// The selected Services, by namespace and name.
pub fn list_services(reading: &Reading, meant: &Selector) -> Vec<ListedService> {
    let mut frontends: BTreeMap<u32, Vec<(&FrontendKey, &layout::Frontend)>> = BTreeMap::new();
    for found in &reading.frontends {
        frontends.entry(found.1.service_port).or_default().push(found);
    }
    let mut services: BTreeMap<&ServiceName, Vec<(&IndexOwner, u32)>> = BTreeMap::new();
    for (&index, owner) in &reading.service_ports {
        if meant.matches(&owner.service) {
            services.entry(&owner.service).or_default().push((owner, index));
        }
    }
    let service = |(name, mut ports): (&ServiceName, Vec<(&IndexOwner, u32)>)| {
        ports.sort();
        let ports = ports.into_iter().map(|(owner, index)| {
            port(reading, owner, index, frontends.get(&index).map_or(&[], Vec::as_slice))
        });
        let is_meant = |port: &ListedPort| meant.port.as_ref().is_none_or(|p| port.is_called(p));
        ListedService {
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            ports: ports.filter(is_meant).collect(),
        }
    };
    services.into_iter().map(service).filter(|service| !service.ports.is_empty()).collect()
}

fn port(
    reading: &Reading,
    owner: &IndexOwner,
    index: u32,
    frontends: &[(&FrontendKey, &layout::Frontend)],
) -> ListedPort {
    // All frontends have the same settings of the service port; only those of lent ports are always masqueraded.
    let any = frontends.first().map(|(_, frontend)| **frontend);
    let policy =
        |is_local: Option<u8>| if is_local.unwrap_or(0) != 0 { "Local" } else { "Cluster" };
    let forwarding = frontends.iter().map(|(_, frontend)| frontend.forwarding).max();
    let forwarding = Forwarding::of_number(forwarding.unwrap_or(0));
    let affinity = any.map(|frontend| frontend.affinity).filter(|seconds| *seconds > 0);
    ListedPort {
        name: owner.port.clone(),
        protocol: protocol_name(owner.protocol),
        family: owner.family_name(),
        index,
        frontends: frontends.iter().map(|(key, frontend)| Destination::of(key, frontend)).collect(),
        internal_traffic_policy: policy(any.map(|frontend| frontend.internal_local)),
        external_traffic_policy: policy(any.map(|frontend| frontend.external_local)),
        session_affinity_seconds: affinity,
        source_ranges: reading
            .source_ranges
            .get(&index)
            .map_or(Vec::new(), |ranges| ranges.iter().cloned().collect()),
        forwarding: forwarding.map_or("?", forwarding_name),
        tunnel_nodes: (forwarding == Some(Forwarding::Auto))
            .then(|| reading.tunnel_nodes.get(&owner.family).copied().unwrap_or_default()),
        cluster_pool: pool(reading, index, Scope::Cluster),
        local_pool: pool(reading, index, Scope::Local),
        traffic: reading.service_traffic.get(&index).copied().unwrap_or_default(),
    }
}

fn pool(reading: &Reading, service_port: u32, scope: Scope) -> ListedPool {
    let members = reading.members(service_port, scope);
    let mut members: Vec<_> = members
        .into_iter()
        .filter_map(|(index, slots)| {
            let weight = reading.weight(service_port, scope, index);
            Some((reading.backends.get(&index)?, weight, slots))
        })
        .collect();
    members.sort_by_key(|(backend, ..)| backend.key);
    let member = |(backend, weight, slots): (&super::reading::FoundBackend, Weight, u32)| Member {
        address: backend.key.to_string(),
        weight,
        slots,
        local: backend.state.local,
    };
    let slots = reading.slots(service_port, scope).len();
    let weighted = members.iter().map(|(backend, weight, _)| (backend.key.identity(), *weight));
    let checksum = match table_checksum(slots as u32, weighted) {
        0 => String::new(),
        checksum => format!("{checksum:016x}"),
    };
    ListedPool { slots, checksum, backends: members.into_iter().map(member).collect() }
}
