//! The served kinds and their rules.
//!
//! Objects are JSON as sent by clients, without unknown fields: `codec::decode_object` removes them
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

pub use registry::KindRegistry;
pub use rules::{
    AllocatedResource, AllocationRanges, Allocations, ApiKind, KindRules, Subresource, TableColumn,
};
pub use violation::{Violation, ViolationKind};

/// The kinds of this crate, in the order of discovery. Those of a server are in `Kinds`.
pub(crate) fn built_in_kinds() -> &'static [ApiKind] {
    &ALL
}

/// By API version and kind, as in a manifest.
pub fn find_kind(api_version: &str, name: &str) -> Option<&'static ApiKind> {
    ALL.iter().find(|kind| kind.kind == name && kind.api_version() == api_version)
}

const CORE: ApiKind = ApiKind {
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
    rules: &event::CoreEvent,
};

static ALL: [ApiKind; 13] = [
    ApiKind {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        rules: &config_map::ConfigMap,
        ..CORE
    },
    ApiKind {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        rules: &endpoints::Endpoints,
        ..CORE
    },
    ApiKind {
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        rules: &event::CoreEvent,
        ..CORE
    },
    ApiKind {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        has_status: true,
        rules: &namespace::Namespace,
        ..CORE
    },
    ApiKind {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        has_status: true,
        rules: &node::Node,
        ..CORE
    },
    ApiKind {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        rules: &secret::Secret,
        ..CORE
    },
    ApiKind {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        rules: &service_account::ServiceAccount,
        ..CORE
    },
    ApiKind {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        has_status: true,
        rules: &service::Service,
        ..CORE
    },
    ApiKind {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        rules: &lease::Lease,
        ..CORE
    },
    ApiKind {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        rules: &endpoint_slice::EndpointSlice,
        ..CORE
    },
    ApiKind {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        rules: &event::GroupedEvent,
        ..CORE
    },
    ApiKind {
        group: "networking.k8s.io",
        kind: "Ingress",
        plural: "ingresses",
        singular: "ingress",
        short_names: &["ing"],
        has_status: true,
        rules: &ingress::Ingress,
        ..CORE
    },
    ApiKind {
        group: "networking.k8s.io",
        kind: "IngressClass",
        plural: "ingressclasses",
        singular: "ingressclass",
        namespaced: false,
        rules: &ingress_class::IngressClass,
        ..CORE
    },
];
