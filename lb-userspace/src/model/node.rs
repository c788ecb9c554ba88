//! The fields of a Node that the rules use. A cluster may have thousands of Nodes, and each is
//! large.

use k8s_openapi::api::core::v1::Node as ApiNode;

use super::eligibility::is_eligible;
use super::types::NodeAddresses;

const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub uid: Box<str>,
    pub zone: Option<String>,
    pub addresses: NodeAddresses,
    /// Whether load balancers may send new traffic to it.
    pub is_eligible: bool,
}

impl From<ApiNode> for Node {
    fn from(node: ApiNode) -> Self {
        let labels = node.metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get(ZONE)).filter(|zone| !zone.is_empty());
        Self {
            zone: zone.cloned(),
            addresses: NodeAddresses::of(&node),
            is_eligible: is_eligible(&node),
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default().into(),
        }
    }
}
