//! `BGPPeer`: a router that nodes advertise addresses to.

// Columns have the same types.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The router, and how nodes connect to it.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "millrace.io",
    version = "v1alpha1",
    kind = "BGPPeer",
    doc = "A router that nodes advertise addresses of Services to, by BGP.",
    plural = "bgppeers",
    category = "millrace",
    derive = "PartialEq",
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.address"),
    printcolumn(name = "Interface", type_ = "string", json_path = ".spec.interface"),
    printcolumn(name = "Peer ASN", type_ = "integer", json_path = ".spec.peerASN"),
    printcolumn(name = "Local ASN", type_ = "integer", json_path = ".spec.localASN"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct BGPPeerSpec {
    /// The router's address. Absent: the router on the link of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 45))]
    pub address: Option<String>,
    /// The interface to the router. Without an address the router is the only one whose router advertisements arrive
    /// there (unnumbered BGP). With one it is needed only if that is link-local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 15))]
    pub interface: Option<String>,
    /// The router's TCP port. 179 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The router's autonomous system. Absent: any but that of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "peerASN")]
    #[schemars(range(min = 1, max = 4294967295_u32))]
    pub peer_asn: Option<u32>,
    /// The autonomous system of the nodes.
    #[serde(rename = "localASN")]
    #[schemars(range(min = 1, max = 4294967295_u32))]
    pub local_asn: u32,
    /// The BGP identifier of the nodes. Absent: the node's internal IPv4 address. Only useful with a node selector,
    /// because nodes need different ones.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "routerID")]
    #[schemars(length(min = 7, max = 15))]
    pub router_id: Option<String>,
    /// The nodes' address for the connection. Absent: the one that the route to the peer has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 45))]
    pub source_address: Option<String>,
    /// Whether a router of another autonomous system may be more than one hop away.
    #[serde(default)]
    pub ebgp_multi_hop: bool,
    /// Accept packets only from this number of hops or fewer (GTSM, RFC 5082). The router needs the same setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 254))]
    pub ttl_security_hops: Option<u8>,
    /// After this time without a message the session ends: 0 (never), or at least 3. The lower value of both sides
    /// counts. Messages are sent three times as often. 9 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time_seconds: Option<u16>,
    /// Key of the Secret millrace-bgp with the password (TCP MD5, RFC 2385).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub password_key: Option<String>,
    /// How long the router keeps the routes of a node whose agent restarts (RFC 4724). 0: not at all. 120 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4095))]
    pub graceful_restart_seconds: Option<u16>,
    /// Wait for the router's connection on TCP port 179 instead of opening one.
    #[serde(default)]
    pub passive: bool,
    /// Bidirectional forwarding detection (BFD): the session ends as soon as the path is broken. Absent: not used. The
    /// router needs it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<PeerBfd>,
    /// Nodes that connect to the router, by their labels. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Addresses of Services, other than those of load balancers, that the nodes advertise to the router. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub service_advertisements: Vec<PeerServiceAdvertisement>,
}

/// Cluster IPs and external IPs that are advertised, and how.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeerServiceAdvertisement {
    /// Whether cluster IPs are advertised.
    #[serde(default, rename = "clusterIPs")]
    pub cluster_ips: bool,
    /// Networks whose external IPs are advertised. Services can name any address: addresses of machines must not be in
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "externalIPs")]
    #[schemars(length(max = 64), inner(length(min = 2, max = 49)))]
    pub external_ips: Vec<String>,
    /// Namespaces of the Services, by name. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)))]
    pub namespaces: Vec<String>,
    /// Services, by their labels that begin with millrace.io/. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_selector: Option<LabelSelector>,
    /// Length of the advertised IPv4 prefixes. Addresses of Services with the policy Local are advertised by
    /// themselves.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv4PrefixLength")]
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix_length: Option<u8>,
    /// Length of the advertised IPv6 prefixes, as of IPv4.
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
}

/// How fast a broken path is found.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeerBfd {
    /// Milliseconds between packets in both directions, unless the router wants more. 100 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 60000))]
    pub interval_milliseconds: Option<u32>,
    /// The path is broken when this number of packets is missing. 3 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 255))]
    pub multiplier: Option<u8>,
    /// Wait for the router's first packet.
    #[serde(default)]
    pub passive: bool,
}
