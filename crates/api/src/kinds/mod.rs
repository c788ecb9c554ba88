//! The served kinds and their rules.
//!
//! Objects are JSON as sent by clients, without unknown fields: `codec::decode` removes them
//! before. Rules are pure, except for allocations.

mod choice;
mod config_map;
mod data;
mod endpoint_slice;
mod endpoints;
mod event;
mod ingress;
mod ingress_class;
mod json;
mod lease;
#[cfg(test)]
mod ledger;
pub mod metadata;
pub mod names;
mod namespace;
mod node;
mod registry;
mod rules;
mod secret;
mod service;
mod service_account;
pub mod table;
#[cfg(test)]
mod tests;
mod violation;

pub use registry::Kinds;
pub use rules::{Allocations, Column, Kind, Ranges, Resource, Rules, Subresource};
pub use violation::{Violation, ViolationKind};

/// The kinds of this crate, in the order of discovery. Those of a server are in `Kinds`.
pub fn all() -> &'static [Kind] {
    &ALL
}

/// By API version and kind, as in a manifest.
pub fn find_kind(api_version: &str, name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.kind == name && kind.api_version() == api_version)
}

const CORE: Kind = Kind {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    has_status: false,
    declared: None,
    rules: &event::Core,
};

static ALL: [Kind; 13] = [
    Kind {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        rules: &config_map::ConfigMap,
        ..CORE
    },
    Kind {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        rules: &endpoints::Endpoints,
        ..CORE
    },
    Kind {
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        rules: &event::Core,
        ..CORE
    },
    Kind {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        has_status: true,
        rules: &namespace::Namespace,
        ..CORE
    },
    Kind {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        has_status: true,
        rules: &node::Node,
        ..CORE
    },
    Kind { kind: "Secret", plural: "secrets", singular: "secret", rules: &secret::Secret, ..CORE },
    Kind {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        rules: &service_account::ServiceAccount,
        ..CORE
    },
    Kind {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        has_status: true,
        rules: &service::Service,
        ..CORE
    },
    Kind {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        rules: &lease::Lease,
        ..CORE
    },
    Kind {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        rules: &endpoint_slice::EndpointSlice,
        ..CORE
    },
    Kind {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        rules: &event::Grouped,
        ..CORE
    },
    Kind {
        group: "networking.k8s.io",
        kind: "Ingress",
        plural: "ingresses",
        singular: "ingress",
        short_names: &["ing"],
        has_status: true,
        rules: &ingress::Ingress,
        ..CORE
    },
    Kind {
        group: "networking.k8s.io",
        kind: "IngressClass",
        plural: "ingressclasses",
        singular: "ingressclass",
        namespaced: false,
        rules: &ingress_class::IngressClass,
        ..CORE
    },
];
