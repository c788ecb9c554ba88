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

pub use address_pool::{
    AddressPool, AddressPoolSpec, AddressPoolStatus, PoolAdvertisement, PoolAnnouncement,
};
pub use bgp_peer::{BGPPeer, BGPPeerSpec, PeerBfd};
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
pub fn own() -> Vec<CustomResourceDefinition> {
    vec![AddressPool::crd(), BGPPeer::crd()]
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
    others.into_iter().chain(without_spec).collect()
}
