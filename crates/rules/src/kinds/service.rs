//! What Millrace adds to Services: annotations that request addresses, and a condition.

use k8s_openapi::api::core::v1::Service;

/// Annotations with requested addresses, separated by commas.
pub const ADDRESSES: [&str; 5] = [
    "millrace.io/load-balancer-addresses",
    "metallb.io/loadBalancerIPs",
    "metallb.universe.tf/loadBalancerIPs",
    "lbipam.cilium.io/ips",
    "kube-vip.io/loadbalancerIPs",
];
/// Annotations with the name of a pool.
pub const POOL: [&str; 3] =
    ["millrace.io/address-pool", "metallb.io/address-pool", "metallb.universe.tf/address-pool"];
/// Annotations with a key; Services with the same one may share an address.
pub(crate) const SHARING_KEY: [&str; 4] = [
    "millrace.io/sharing-key",
    "metallb.io/allow-shared-ip",
    "metallb.universe.tf/allow-shared-ip",
    "lbipam.cilium.io/sharing-key",
];

/// The type of the condition that says whether a Service has its addresses.
pub const CONDITION: &str = "millrace.io/AddressAssigned";
/// The type of the condition that says which ports of nodes a Service has, and of which pool: also while no address is
/// listed.
pub const NODE_PORTS_CONDITION: &str = "millrace.io/NodePorts";

/// Whether an annotation is part of a request.
pub fn is_request(annotation: &str) -> bool {
    ADDRESSES.iter().chain(&POOL).chain(&SHARING_KEY).any(|known| *known == annotation)
}

/// Whether its condition says that Millrace assigns its addresses.
pub fn is_marked(service: &Service) -> bool {
    let conditions = service.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == CONDITION)
}
