//! What the rules know of the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use lb_common::layout::Forwarding;

use super::external_ips::ExternalIpPolicy;
use super::node::{Node, NodeAddresses};
use crate::kinds::NodeAddressType;

/// What the rules use of this node and of the other ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    pub name: String,
    pub zone: Option<String>,
    /// How packets of clients reach other nodes, unless a Service overrides it.
    pub forwarding: Forwarding,
    /// Whether the cluster has a tunnel key: only then [`Forwarding::Auto`] uses tunnels.
    pub has_tunnel_key: bool,
    /// Addresses of this node's interfaces. ClusterIPs among them are left to its network stack: a server of the node
    /// has taken them, such as NodeLocal DNSCache.
    pub own_addresses: BTreeSet<IpAddr>,
    pub external_ips: ExternalIpPolicy,
    /// The external addresses that this node's Node object names.
    pub external_addresses: BTreeSet<IpAddr>,
    /// What Services may have of this node's own addresses; `None` while the pools are not known: then what their
    /// statuses say.
    pub lent_ports: Option<LentPorts>,
    /// Addresses of every known node, by name.
    pub nodes: BTreeMap<String, NodeAddresses>,
    /// Nodes that are dead by all signs. Their endpoints are not used while another one of the port may serve.
    pub dead_nodes: BTreeSet<String>,
}

impl NodeContext {
    /// Whether an address is an internal one of a known node.
    pub(crate) fn is_of_node(&self, address: IpAddr) -> bool {
        self.nodes.values().any(|node| node.0.contains(&address))
    }

    /// `node`: the Node object, if there is one.
    pub fn of(name: &str, node: Option<&Node>) -> Self {
        let zone = node.and_then(|node| node.zone.clone());
        let external_addresses = node.map(|node| node.external_addresses.clone());
        let external_addresses = external_addresses.unwrap_or_default();
        Self { name: name.to_owned(), zone, external_addresses, ..Self::default() }
    }
}

/// What pools lend on the addresses of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LentPorts {
    pub pools: Vec<LentPool>,
    /// Ports at which the node's own kubelet or API server listens.
    pub reserved: BTreeSet<u16>,
}

/// What one pool lends on the addresses of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentPool {
    pub name: String,
    pub address_type: NodeAddressType,
    /// At most one of each family.
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<RangeInclusive<u16>>,
}
