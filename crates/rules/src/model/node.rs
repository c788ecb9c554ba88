//! The fields of a Node that the rules use. A cluster may have thousands of Nodes, and each is
//! large.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as ApiNode;

use super::eligibility::{
    is_eligible, is_healthy, is_preferred_for_load_balancers, is_shutting_down, may_lend,
};
use super::types::AddressFamily;

const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub uid: Box<str>,
    pub zone: Option<String>,
    pub addresses: NodeAddresses,
    /// Addresses by which clients outside of its network reach it. Its own interfaces may not have them.
    pub external_addresses: BTreeSet<IpAddr>,
    /// Whether its addresses may be those of load balancers.
    pub is_healthy: bool,
    /// Whether they may be if no other node is healthy.
    pub may_lend: bool,
    pub created: Option<Timestamp>,
    /// The port of its kubelet, if its status says so.
    pub kubelet_port: Option<u16>,
    /// Whether load balancers may send new traffic to it.
    pub is_eligible: bool,
    /// Whether it should announce addresses of load balancers; otherwise only if no other can.
    pub announces: bool,
    pub is_shutting_down: bool,
    /// Needed of the agent's own node only; of others they are dropped.
    pub labels: BTreeMap<String, String>,
    /// The keys of its taints, in their order; as the labels.
    pub taints: Vec<String>,
}

impl Node {
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.0.contains(&address) || self.external_addresses.contains(&address)
    }
}

impl From<ApiNode> for Node {
    fn from(node: ApiNode) -> Self {
        let labels = node.metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get(ZONE)).filter(|zone| !zone.is_empty());
        Self {
            zone: zone.cloned(),
            addresses: NodeAddresses::of(&node),
            external_addresses: list_addresses(&node, "ExternalIP").collect(),
            is_healthy: is_healthy(&node),
            may_lend: may_lend(&node),
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
            kubelet_port: kubelet_port(&node),
            is_eligible: is_eligible(&node),
            announces: is_preferred_for_load_balancers(&node),
            is_shutting_down: is_shutting_down(&node),
            taints: taint_keys(&node),
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default().into(),
            labels: node.metadata.labels.unwrap_or_default(),
        }
    }
}

/// A node's internal addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses(pub BTreeSet<IpAddr>);

impl NodeAddresses {
    pub fn of(node: &ApiNode) -> Self {
        Self(list_addresses(node, "InternalIP").collect())
    }

    /// The address to which tunnels lead for packets of a family.
    pub fn of_family(&self, family: AddressFamily) -> Option<IpAddr> {
        self.0.iter().copied().find(|address| AddressFamily::of(address) == family)
    }
}

/// The addresses of a type in a Node's status.
fn list_addresses(node: &ApiNode, type_: &str) -> impl Iterator<Item = IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of_type = addresses.filter(move |address| address.type_ == type_);
    of_type.filter_map(|address| address.address.parse::<IpAddr>().ok())
}

fn taint_keys(node: &ApiNode) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    taints.map(|taint| taint.key.clone()).collect()
}

fn kubelet_port(node: &ApiNode) -> Option<u16> {
    let daemons = node.status.as_ref()?.daemon_endpoints.as_ref()?;
    u16::try_from(daemons.kubelet_endpoint.as_ref()?.port).ok()
}
