//! The rules of Kubernetes: what objects mean for this node.
//!
//! - `model`: a Service and its EndpointSlices → service ports with frontends and pools
//! - `ipam`: pools of addresses, and which Service gets which address
//! - `kinds`: the kinds that are not of Kubernetes itself
//! - `store`: the last reported objects, and the Services that a change concerns
//! - `documents`: objects from the text of manifests
//! - `duration`: times as Kubernetes writes them
//! - `notation`, `reasons`: names of what the data plane knows only as numbers, and what they mean
//!
//! # Invariants
//! - Pure: no I/O and no clock. The same objects always give the same result.
//! - What violates the rules of the API becomes a [`Problem`](model::Problem), and the rest is used.

pub mod documents;
pub mod duration;
pub mod ipam;
pub mod kinds;
pub mod model;
pub mod notation;
pub mod reasons;
pub mod store;
