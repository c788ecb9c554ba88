//! Ports that nodes lend to Services of type LoadBalancer, on their own addresses. The assignment of addresses writes
//! them into a Service's status: for clients one entry for each address, with `ports`; for agents and the next process
//! that assigns addresses a condition with the pool and the ports.
//!
//! Invariants:
//! - A node lends only ports of its own addresses: what another Node's object says does not concern it.
//! - It lends only ports of the pool of which the Service has them, if that pool selects the node and lists them; and
//!   none that a node needs itself.
//! - A Service that gets another port has that one only when its status names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service};

use super::address::parse_global_address;
use super::node_context::NodeContext;
use super::types::{AddressFamily, Protocol};
use crate::kinds::NodeAddressType;
use crate::kinds::service::{NODE_PORTS_CONDITION, is_marked};

/// A protocol and port that clients connect to.
pub type ProtocolPort = (Protocol, u16);

/// The TCP port at which agents probe the kernels of nodes. Nothing listens there: a kernel resets each connection, also
/// while its agent stands still. No Service is served there at an external IP, which may be a node's address, or
/// at a node's address: its backends would get the probes.
pub const NODE_PROBE_PORT: u16 = 10_245;

/// Ports that nodes need themselves, of all protocols, and who listens there. No pool lends them.
const NEEDED_BY_NODES: [(RangeInclusive<u16>, &str); 23] = [
    (22..=22, "SSH"),
    (53..=53, "DNS"),
    (68..=68, "DHCP"),
    (123..=123, "NTP"),
    (179..=179, "BGP"),
    (500..=500, "IPsec"),
    (546..=546, "DHCP"),
    (2379..=2380, "etcd"),
    (3784..=3785, "BFD"),
    (4500..=4500, "IPsec"),
    (4784..=4784, "BFD"),
    (4789..=4789, "VXLAN"),
    (6080..=6080, "Millrace's tunnels"),
    (6081..=6081, "Geneve"),
    (6443..=6443, "the API server"),
    (8080..=8080, "Millrace's Ingress proxy"),
    (8132..=8134, "konnectivity"),
    (8285..=8285, "Flannel"),
    (8443..=8443, "Millrace's Ingress proxy"),
    (8472..=8472, "VXLAN"),
    (10245..=10260, "the kubelet, the control plane or Millrace"),
    (30000..=32767, "NodePorts"),
    // Linux's ephemeral ports: replies to connections of the node have them as destination. WireGuard's 51820, 51821 and
    // 51871 are among them.
    (32768..=60999, "connections of their own"),
];

/// Who listens at a port on nodes, if no Service may have it.
pub(crate) fn find_owner_on_nodes(port: u16) -> Option<&'static str> {
    let mut all = NEEDED_BY_NODES.iter();
    all.find(|(range, _)| range.contains(&port)).map(|(_, owner)| *owner)
}

/// The ports that a Service has on addresses of nodes, and the pool of which it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGrant {
    pub pool: String,
    pub ports: BTreeSet<ProtocolPort>,
}

impl PortGrant {
    /// What the status says, if Millrace has written it.
    pub fn of(service: &Service) -> Option<Self> {
        let conditions =
            service.status.as_ref().filter(|_| is_marked(service))?.conditions.as_ref()?;
        let condition = conditions.iter().find(|one| one.type_ == NODE_PORTS_CONDITION)?;
        Self::parse(&condition.message)
    }

    /// Reads what `Display` writes.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let pool = words.next()?.to_owned();
        let ports: BTreeSet<ProtocolPort> = words
            .filter_map(|word| {
                let (protocol, port) = word.split_once('/')?;
                Some((Protocol::parse(Some(protocol))?, port.parse().ok()?))
            })
            .collect();
        (!ports.is_empty()).then_some(Self { pool, ports })
    }
}

impl Display for PortGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pool)?;
        self.ports.iter().try_for_each(|(protocol, port)| write!(f, " {}/{port}", protocol.name()))
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

/// Whether a Service has ports on addresses of nodes.
pub fn has_lent_ports(service: &Service) -> bool {
    PortGrant::of(service).is_some()
}

/// The ports that a Service has on each address of this node.
pub(crate) fn ports_on_node(
    service: &Service,
    node: &NodeContext,
) -> BTreeMap<IpAddr, BTreeSet<ProtocolPort>> {
    let mut lent: BTreeMap<IpAddr, BTreeSet<ProtocolPort>> = BTreeMap::new();
    let Some(grant) = PortGrant::of(service) else { return lent };
    let mut lend = |address: IpAddr, is_external: bool, is_lent: &dyn Fn(u16) -> bool| {
        let ports = grant.ports.iter().copied();
        let ports =
            ports.filter(|(_, port)| find_owner_on_nodes(*port).is_none() && is_lent(*port));
        let ports: BTreeSet<ProtocolPort> = ports.collect();
        if ports.is_empty() {
            return;
        }
        // A provider may translate the external address to one that the node has.
        if is_external && !node.own_addresses.contains(&address) {
            let family = AddressFamily::of(&address);
            let internal = node.nodes.get(&node.name).and_then(|own| own.of_family(family));
            if let Some(internal) = internal.filter(|own| node.own_addresses.contains(own)) {
                lent.entry(internal).or_default().extend(&ports);
            }
        }
        lent.entry(address).or_default().extend(ports);
    };
    if let Some(known) = &node.lent_ports {
        // Whatever addresses the status lists: a node that is unknown to the control plane goes on serving its clients.
        for pool in known.pools.iter().filter(|pool| pool.name == grant.pool) {
            let is_lent = |port: u16| {
                !known.reserved.contains(&port)
                    && pool.ports.iter().any(|range| range.contains(&port))
            };
            let is_external = pool.address_type == NodeAddressType::ExternalIP;
            pool.addresses.iter().for_each(|address| lend(*address, is_external, &is_lent));
        }
        return lent;
    }
    for entry in lending_entries(service) {
        let address = entry.ip.as_deref().and_then(|text| parse_global_address(text).ok());
        let Some(address) = address else { continue };
        let types = types_of(address, node);
        if !types.is_empty() {
            lend(address, types.contains(&NodeAddressType::ExternalIP), &|_| true);
        }
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
