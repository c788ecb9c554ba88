//! Ports that nodes lend to Services of type LoadBalancer, on their own addresses. The assignment of addresses writes
//! them into a Service's status, one entry for each address, with `ports`; agents read them there.
//!
//! Invariants:
//! - A node lends only ports of its own addresses: what another Node's object says does not concern it.
//! - It lends only ports that a pool lists which selects it, and none that a node needs itself.
//! - A Service that gets another port has that one only when its status names it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, PortStatus, Service};

use super::address::parse_global_address;
use super::types::{AddressFamily, NodeContext, Protocol};
use crate::kinds::NodeAddressType;
use crate::kinds::service::is_marked;

/// A protocol and port that clients connect to.
pub(crate) type ProtocolPort = (Protocol, u16);

/// Ports that nodes need themselves, and who listens there. No pool lends them.
const NEEDED_BY_NODES: [(RangeInclusive<u16>, &str); 8] = [
    (179..=179, "BGP"),
    (2379..=2380, "etcd"),
    (3784..=3785, "BFD"),
    (4784..=4784, "BFD"),
    (6080..=6080, "Millrace's tunnels"),
    (6443..=6443, "the API server"),
    (10245..=10260, "the kubelet, the control plane or Millrace"),
    (30000..=32767, "NodePorts"),
];

/// Who listens at a port on nodes, if no Service may have it.
pub(crate) fn find_owner_on_nodes(port: u16) -> Option<&'static str> {
    let mut all = NEEDED_BY_NODES.iter();
    all.find(|(range, _)| range.contains(&port)).map(|(_, owner)| *owner)
}

/// The ports that pools lend on the addresses of one node, by the type of address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LentPorts(pub Vec<(NodeAddressType, RangeInclusive<u16>)>);

impl LentPorts {
    fn contains(&self, types: &BTreeSet<NodeAddressType>, port: u16) -> bool {
        self.0.iter().any(|(type_, range)| types.contains(type_) && range.contains(&port))
    }
}

/// The entries of a Service's status that lend ports, if Millrace has written it.
fn lending_entries(service: &Service) -> impl Iterator<Item = &LoadBalancerIngress> {
    let status = service.status.as_ref().filter(|_| is_marked(service));
    let entries = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    entries.into_iter().flatten().filter(|entry| is_lending(entry))
}

/// Whether an entry lends ports of a node's address. Millrace writes no `ports` of others.
pub(crate) fn is_lending(entry: &LoadBalancerIngress) -> bool {
    entry.ports.as_ref().is_some_and(|ports| !ports.is_empty())
}

/// Whether a Service's status has addresses of nodes.
pub fn has_lent_ports(service: &Service) -> bool {
    lending_entries(service).next().is_some()
}

/// The ports that a Service's status says it has on addresses of nodes.
pub(crate) fn list_lent_ports(service: &Service) -> BTreeSet<ProtocolPort> {
    lending_entries(service).flat_map(granted_ports).collect()
}

fn granted_ports(entry: &LoadBalancerIngress) -> impl Iterator<Item = ProtocolPort> {
    let granted = entry.ports.iter().flatten().filter(|port| port.error.is_none());
    granted.filter_map(read_port)
}

fn read_port(port: &PortStatus) -> Option<ProtocolPort> {
    Some((Protocol::parse(Some(&port.protocol))?, u16::try_from(port.port).ok()?))
}

/// The ports that a Service has on each address of this node.
pub(crate) fn ports_on_node(
    service: &Service,
    node: &NodeContext,
) -> BTreeMap<IpAddr, BTreeSet<ProtocolPort>> {
    let mut lent: BTreeMap<IpAddr, BTreeSet<ProtocolPort>> = BTreeMap::new();
    for entry in lending_entries(service) {
        let address = entry.ip.as_deref().and_then(|text| parse_global_address(text).ok());
        let Some(address) = address else { continue };
        let types = types_of(address, node);
        let is_lent = |port: u16| {
            let lends = |lent: &LentPorts| lent.contains(&types, port);
            find_owner_on_nodes(port).is_none() && node.lent_ports.as_ref().is_none_or(lends)
        };
        let ports: BTreeSet<ProtocolPort> =
            granted_ports(entry).filter(|(_, port)| is_lent(*port)).collect();
        if types.is_empty() || ports.is_empty() {
            continue;
        }
        // A provider may translate the external address to one that the node has.
        if !node.own_addresses.contains(&address) && types.contains(&NodeAddressType::ExternalIP) {
            let family = AddressFamily::of(&address);
            let internal = node.nodes.get(&node.name).and_then(|own| own.of_family(family));
            if let Some(internal) = internal.filter(|own| node.own_addresses.contains(own)) {
                lent.entry(internal).or_default().extend(&ports);
            }
        }
        lent.entry(address).or_default().extend(ports);
    }
    lent
}

/// What an address is to this node; nothing: another's.
fn types_of(address: IpAddr, node: &NodeContext) -> BTreeSet<NodeAddressType> {
    let is_internal = node.nodes.get(&node.name).is_some_and(|own| own.0.contains(&address));
    let is_external = node.external_addresses.contains(&address);
    let types = [
        is_external.then_some(NodeAddressType::ExternalIP),
        is_internal.then_some(NodeAddressType::InternalIP),
    ];
    types.into_iter().flatten().collect()
}
