//! The kinds that are not of Kubernetes itself: `AddressPool`, and MetalLB's. Types only.
//!
//! The CustomResourceDefinitions in `deploy/` and what `millrace standalone` serves come from these declarations.

mod address_pool;
mod metallb;
pub mod service;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use address_pool::{AddressPool, AddressPoolSpec, AddressPoolStatus, PoolAnnouncement};
pub use metallb::{
    IPAddressPool, IPAddressPoolSpec, L2Advertisement, L2AdvertisementSpec, ServiceAllocation,
};

/// Where MetalLB is installed, unless a setting says otherwise.
pub const METALLB_NAMESPACE: &str = "metallb-system";

/// Millrace's own kinds, which its deployment installs.
pub fn own() -> Vec<CustomResourceDefinition> {
    vec![AddressPool::crd()]
}

/// MetalLB's kinds. In a cluster they are there if MetalLB was installed.
pub fn of_metallb() -> Vec<CustomResourceDefinition> {
    // An advertisement of all pools has no spec.
    let mut advertisement = L2Advertisement::crd();
    for version in &mut advertisement.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(schema) = schema {
            schema.required = None;
        }
    }
    vec![IPAddressPool::crd(), advertisement]
}
