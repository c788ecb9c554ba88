//! The kinds of MetalLB that are read for BGP: the fields that have a meaning here.

// Columns have the same types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The router, and how nodes connect to it.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metallb.io",
    version = "v1beta2",
    kind = "BGPPeer",
    root = "MetallbBGPPeer",
    doc = "A router, as MetalLB defines it.",
    plural = "bgppeers",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.peerAddress"),
    printcolumn(name = "ASN", type_ = "string", json_path = ".spec.peerASN")
)]
#[serde(rename_all = "camelCase")]
pub struct MetallbBGPPeerSpec {
    /// The autonomous system of the nodes.
    #[serde(rename = "myASN")]
    pub my_asn: u32,
    /// The router's autonomous system.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "peerASN")]
    pub peer_asn: Option<u32>,
    /// `internal` or `external` instead.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "dynamicASN")]
    pub dynamic_asn: Option<String>,
    /// The router's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_address: Option<String>,
    /// The interface to the router, without an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The nodes' address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// The router's TCP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_port: Option<u16>,
    /// A duration, such as 90s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time: Option<String>,
    /// The BGP identifier of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "routerID")]
    pub router_id: Option<String>,
    /// Nodes by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selectors: Vec<LabelSelector>,
    /// The password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The Secret with the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret: Option<PasswordSecret>,
    /// Whether the router keeps routes while the nodes' speaker restarts.
    #[serde(default)]
    pub enable_graceful_restart: bool,
    /// Whether the router may be more than one hop away.
    #[serde(default)]
    pub ebgp_multi_hop: bool,
    /// The name of a BFDProfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd_profile: Option<String>,
    /// The VRF of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// The autonomous system of the nodes towards this router, instead of `myASN`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "localASN")]
    pub local_asn: Option<u32>,
    /// Whether the session carries only the address family of its addresses.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "disableMP")]
    pub disable_mp: Option<bool>,
    /// Whether the session carries both address families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_stack_address_family: Option<bool>,
    /// Fields of another version of MetalLB. They may restrict.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// A reference to a Secret.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct PasswordSecret {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Which pools are advertised, to which peers, by which nodes, and how.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metallb.io",
    version = "v1beta1",
    kind = "BGPAdvertisement",
    doc = "An advertisement of pools by BGP, as MetalLB defines it.",
    plural = "bgpadvertisements",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "IPAddressPools", type_ = "string", json_path = ".spec.ipAddressPools"),
    printcolumn(name = "Peers", type_ = "string", json_path = ".spec.peers")
)]
#[serde(rename_all = "camelCase")]
pub struct BGPAdvertisementSpec {
    /// Names of pools. With neither names nor selectors: all pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pools: Vec<String>,
    /// Pools by their labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pool_selectors: Vec<LabelSelector>,
    /// Nodes by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selectors: Vec<LabelSelector>,
    /// Names of BGPPeers. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Length of the advertised IPv4 prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation_length: Option<u8>,
    /// Length of the advertised IPv6 prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation_length_v6: Option<u8>,
    /// LOCAL_PREF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_pref: Option<u32>,
    /// Communities, or their names in Community objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<String>,
    /// Services by their labels: those that one of the selectors selects. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
    /// Fields of another version of MetalLB. They may restrict.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// Names of communities.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metallb.io",
    version = "v1beta1",
    kind = "Community",
    doc = "Names of communities, as MetalLB defines them.",
    plural = "communities",
    namespaced,
    derive = "PartialEq"
)]
pub struct CommunitySpec {
    /// The names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<CommunityAlias>,
}

/// The name of a community.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct CommunityAlias {
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The community, such as 64512:100.
    #[serde(default)]
    pub value: String,
}

/// How fast broken paths are found.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metallb.io",
    version = "v1beta1",
    kind = "BFDProfile",
    doc = "Settings of bidirectional forwarding detection, as MetalLB defines them.",
    plural = "bfdprofiles",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct BFDProfileSpec {
    /// Milliseconds between packets of the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_interval: Option<u32>,
    /// Milliseconds between packets of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit_interval: Option<u32>,
    /// The path is broken when this number of packets is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect_multiplier: Option<u32>,
    /// Whether to wait for the router's first packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passive_mode: Option<bool>,
    /// The least TTL of packets of routers that are not on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_ttl: Option<u32>,
}
