//! The rules of Ingress: turns Ingresses, IngressClasses, Services, EndpointSlices and Secrets into the proxy's rules,
//! upstreams and certificates.
//!
//! Pure: no I/O, no clock. The result depends on the objects and on the last good certificates, not on the order in which they came.
//! What violates rules becomes a [`Problem`] of an object and field, and the rest works.
//!
//! Incremental: an Ingress is resolved by itself, and what all Ingresses say about a host is combined by host. A change
//! of an object recomputes only what refers to it.
//!
//! `snapshot` applies results to the configuration of `lb_proxy`; `explain` and `report` say for people what is decided.
//!
//! Tests: `tests/ingress/`, one file for each rule: manifests above, the expected table below.

pub mod annotations;
mod class;
mod delta;
pub mod explain;
mod hosts;
mod named_secrets;
mod objects;
mod paths;
pub mod report;
mod resolve;
mod resolved;
mod secrets;
mod services;
mod settings;
pub mod snapshot;
pub mod snippets;
mod state;
mod upstreams;

pub use delta::{Delta, UpstreamTarget};
pub use named_secrets::{MOST_NAMED, NamedSecrets};
pub use settings::IngressRuleSettings;
pub use state::Model;
