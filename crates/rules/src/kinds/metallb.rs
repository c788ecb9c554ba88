//! The kinds of MetalLB that are read: the fields that have a meaning for layer 2.

// Columns have the same types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The addresses, and which Services may have them.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "metallb.io",
    version = "v1beta1",
    kind = "IPAddressPool",
    doc = "A pool of addresses, as MetalLB defines it.",
    plural = "ipaddresspools",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "Auto Assign", type_ = "boolean", json_path = ".spec.autoAssign"),
    printcolumn(name = "Avoid Buggy IPs", type_ = "boolean", json_path = ".spec.avoidBuggyIPs"),
    printcolumn(name = "Addresses", type_ = "string", json_path = ".spec.addresses")
)]
#[serde(rename_all = "camelCase")]
pub struct IPAddressPoolSpec {
    /// Networks in CIDR notation, and ranges of two addresses.
    pub addresses: Vec<String>,
    /// Whether Services get addresses of this pool without requesting them.
    #[serde(default = "default_true")]
    pub auto_assign: bool,
    /// Whether IPv4 addresses that end with .0 or .255 are left out.
    #[serde(default, rename = "avoidBuggyIPs")]
    pub avoid_buggy_ips: bool,
    /// Which Services may have addresses of this pool, and the order of pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_allocation: Option<ServiceAllocation>,
    /// Fields of another version of MetalLB. They may restrict.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// Which Services may have addresses of a pool.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAllocation {
    /// Pools with lower numbers are tried first; 0 is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Names of namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Namespaces by their labels: those that one of the selectors selects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace_selectors: Vec<LabelSelector>,
    /// Services by their labels: those that one of the selectors selects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
    /// Fields of another version of MetalLB. They may restrict.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// Which pools are announced on the link, by which nodes, and on which interfaces.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metallb.io",
    version = "v1beta1",
    kind = "L2Advertisement",
    doc = "An announcement of pools on the link, as MetalLB defines it.",
    plural = "l2advertisements",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "IPAddressPools", type_ = "string", json_path = ".spec.ipAddressPools"),
    printcolumn(
        name = "IPAddressPool Selectors",
        type_ = "string",
        json_path = ".spec.ipAddressPoolSelectors"
    ),
    printcolumn(name = "Interfaces", type_ = "string", json_path = ".spec.interfaces")
)]
#[serde(rename_all = "camelCase")]
pub struct L2AdvertisementSpec {
    /// Names of pools. With neither names nor selectors: all pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pools: Vec<String>,
    /// Pools by their labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pool_selectors: Vec<LabelSelector>,
    /// Nodes by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selectors: Vec<LabelSelector>,
    /// Names of interfaces. Absent: those with a prefix that contains the address; on a node without any, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Services by their labels: those that one of the selectors selects. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
    /// Fields of another version of MetalLB. They may restrict.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

fn default_true() -> bool {
    true
}
