//! The kinds that are not of Kubernetes itself: `AddressPool`, `BGPPeer`, and MetalLB's. Types only.
//!
//! The CustomResourceDefinitions in `deploy/` and what `millrace standalone` serves come from these declarations.

mod address_pool;
mod bgp_peer;
mod metallb;
mod metallb_bgp;
pub mod service;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

pub use address_pool::{
    AddressPool, AddressPoolSpec, AddressPoolStatus, NodeAddressType, PoolAdvertisement,
    PoolAnnouncement, PoolNodes,
};
pub use bgp_peer::{BGPPeer, BGPPeerSpec, PeerBfd, PeerServiceAdvertisement};
pub use metallb::{
    IPAddressPool, IPAddressPoolSpec, L2Advertisement, L2AdvertisementSpec, ServiceAllocation,
};
pub use metallb_bgp::{
    BFDProfile, BFDProfileSpec, BGPAdvertisement, BGPAdvertisementSpec, Community, CommunityAlias,
    CommunitySpec, MetallbBGPPeer, MetallbBGPPeerSpec, PasswordSecret,
};

/// The Secret with the passwords of BGP peers, in the agent's namespace.
pub const PASSWORDS: &str = "millrace-bgp";

/// Where MetalLB is installed, unless a setting says otherwise.
pub const METALLB_NAMESPACE: &str = "metallb-system";

/// Millrace's own kinds, which its deployment installs.
pub fn own_kinds() -> Vec<CustomResourceDefinition> {
    vec![with_known_formats(&AddressPool::crd()), with_known_formats(&BGPPeer::crd())]
}

/// API servers and kubectl warn about formats that they do not know, such as those of unsigned
/// numbers, and do not enforce them. The same limits as known ones: a format and a maximum.
fn with_known_formats(definition: &CustomResourceDefinition) -> CustomResourceDefinition {
    fn replace(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(replace),
            Value::Object(fields) => {
                let known = match fields.get("format").and_then(Value::as_str) {
                    Some("uint8") => Some(("int32", u64::from(u8::MAX))),
                    Some("uint16") => Some(("int32", u64::from(u16::MAX))),
                    Some("uint32") => Some(("int64", u64::from(u32::MAX))),
                    _ => None,
                };
                if let Some((format, maximum)) = known {
                    fields.insert("format".to_owned(), format.into());
                    fields.entry("maximum").or_insert_with(|| maximum.into());
                }
                fields.values_mut().for_each(replace);
            }
            _ => {}
        }
    }
    let read = |value| serde_json::from_value(value).ok();
    let replaced = serde_json::to_value(definition).ok().and_then(|mut value| {
        replace(&mut value);
        read(value)
    });
    // What was a definition still is one.
    replaced.unwrap_or_else(|| definition.clone())
}

/// MetalLB's kinds. In a cluster they are there if MetalLB was installed.
pub fn of_metallb() -> Vec<CustomResourceDefinition> {
    // An advertisement of all pools has no spec, nor has a profile that changes nothing.
    let mut without_spec = [L2Advertisement::crd(), BGPAdvertisement::crd(), BFDProfile::crd()];
    for version in without_spec.iter_mut().flat_map(|kind| &mut kind.spec.versions) {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(schema) = schema {
            schema.required = None;
        }
    }
    let others = [IPAddressPool::crd(), MetallbBGPPeer::crd(), Community::crd()];
    others.iter().chain(&without_spec).map(with_known_formats).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats that the validation of CustomResourceDefinitions knows.
    #[test]
    fn numbers_have_formats_that_api_servers_know() {
        for definition in own_kinds().into_iter().chain(of_metallb()) {
            let text = serde_json::to_string(&definition).unwrap();
            assert!(!text.contains("\"format\":\"uint"), "{text}");
        }
        let peer = serde_json::to_value(&own_kinds()[1]).unwrap();
        let schema = &peer["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let asn = &schema["properties"]["spec"]["properties"]["localASN"];
        let limits = (&asn["format"], asn["maximum"].as_f64());
        assert_eq!(limits, (&Value::from("int64"), Some(f64::from(u32::MAX))), "{asn}");
    }
}
