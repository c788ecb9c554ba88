//! `AddressPool`: addresses for Services of type LoadBalancer.

// Columns have the same types.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The addresses, which Services may have them, and where they are announced.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "millrace.io",
    version = "v1alpha1",
    kind = "AddressPool",
    doc = "Addresses that Services of type LoadBalancer get, and where they are announced.",
    plural = "addresspools",
    shortname = "apool",
    category = "millrace",
    status = "AddressPoolStatus",
    derive = "PartialEq",
    printcolumn(name = "Addresses", type_ = "string", json_path = ".spec.addresses"),
    printcolumn(name = "Auto Assign", type_ = "boolean", json_path = ".spec.autoAssign"),
    printcolumn(
        name = "Used",
        type_ = "integer",
        json_path = ".status.usedIPv4",
        description = "IPv4 addresses that Services have"
    ),
    printcolumn(
        name = "Free",
        type_ = "integer",
        json_path = ".status.freeIPv4",
        description = "IPv4 addresses that no Service has"
    ),
    printcolumn(
        name = "Used6",
        type_ = "integer",
        json_path = ".status.usedIPv6",
        description = "IPv6 addresses that Services have"
    ),
    printcolumn(
        name = "Free6",
        type_ = "integer",
        json_path = ".status.freeIPv6",
        description = "IPv6 addresses that no Service has"
    ),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AddressPoolSpec {
    /// Networks (192.0.2.0/28), ranges (192.0.2.10-192.0.2.20) and single addresses, of IPv4 and IPv6. Of a pool of nodes:
    /// the only addresses of nodes that count; absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(
            length(min = 2, max = 96),
            regex(pattern = r"^[0-9a-fA-F:.]+(/[0-9]{1,3}| *- *[0-9a-fA-F:.]+)?$")
        )
    )]
    pub addresses: Vec<String>,
    /// The pool stands for the nodes' own addresses: its Services get ports of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<PoolNodes>,
    /// Whether Services get addresses of this pool without requesting them. If not, they name the pool or an address.
    #[serde(default = "pool_default_true")]
    pub auto_assign: bool,
    /// Whether IPv4 addresses that end with .0 or .255 are left out: some old devices refuse them.
    #[serde(default, rename = "avoidBuggyIPs")]
    pub avoid_buggy_ips: bool,
    /// Pools with higher numbers are tried first; of equal ones, first those with selectors.
    #[serde(default)]
    pub priority: i32,
    /// Services that may have addresses of this pool, by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_selector: Option<LabelSelector>,
    /// Namespaces whose Services may have addresses of this pool, by their labels. Absent: all. The label
    /// kubernetes.io/metadata.name is the namespace's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Whether nodes answer ARP requests and neighbor solicitations for addresses of this pool. Set it to false if routers
    /// learn the addresses in another way only, such as BGP.
    #[serde(default = "pool_default_true")]
    pub announce: bool,
    /// Which nodes announce addresses of this pool, and on which interfaces. Absent: all nodes, on interfaces with a
    /// prefix that contains the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub announcements: Vec<PoolAnnouncement>,
    /// Whether nodes advertise addresses of this pool to BGP peers, if there are any.
    #[serde(default = "pool_default_true")]
    pub advertise: bool,
    /// How addresses of this pool are advertised to BGP peers, and by which nodes. Several that apply to a node add up.
    /// Absent: each address by itself, by all nodes, to all peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub advertisements: Vec<PoolAdvertisement>,
}

/// Nodes whose own addresses Services share, each with ports of its own.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolNodes {
    /// Which of a node's addresses: ExternalIP or InternalIP.
    pub address_type: NodeAddressType,
    /// Nodes, by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Ports (443) and ranges of ports (8000-8999) that Services may have. No Service gets ports of the kubelet, the API
    /// server and Millrace, nor NodePorts.
    #[schemars(length(min = 1, max = 64))]
    pub ports: Vec<IntOrString>,
}

/// As in the status of a Node.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum NodeAddressType {
    ExternalIP,
    InternalIP,
}

/// Nodes and interfaces that announce addresses.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolAnnouncement {
    /// Nodes, by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Interfaces: names, or patterns such as eth*. Absent: those with a prefix that contains the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 64)))]
    pub interfaces: Vec<String>,
}

/// Routes that nodes advertise to BGP peers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolAdvertisement {
    /// Nodes, by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Names of BGPPeers. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    pub peers: Vec<String>,
    /// Length of the advertised IPv4 prefixes. The prefix of an address is advertised while a Service with the address
    /// has endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv4PrefixLength")]
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix_length: Option<u8>,
    /// Length of the advertised IPv6 prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6PrefixLength")]
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix_length: Option<u8>,
    /// LOCAL_PREF, for peers in the same autonomous system. 100 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_preference: Option<u32>,
    /// Communities: 64512:100, large:64512:1:2, or a well-known name such as no-export.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 64)))]
    pub communities: Vec<String>,
    /// Whether routers are asked to weight nodes by their ready endpoints (link-bandwidth extended community), for
    /// Services with the external traffic policy Local. With the policy Cluster all nodes are equal.
    #[serde(default)]
    pub link_bandwidth: bool,
}

/// How many addresses of a pool are used.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressPoolStatus {
    /// IPv4 addresses that Services have.
    #[serde(default, rename = "usedIPv4")]
    pub used_ipv4: i64,
    /// IPv4 addresses that no Service has.
    #[serde(default, rename = "freeIPv4")]
    pub free_ipv4: i64,
    /// IPv6 addresses that Services have.
    #[serde(default, rename = "usedIPv6")]
    pub used_ipv6: i64,
    /// IPv6 addresses that no Service has. 9007199254740991 (2^53 - 1) if there are more.
    #[serde(default, rename = "freeIPv6")]
    pub free_ipv6: i64,
}

fn pool_default_true() -> bool {
    true
}
