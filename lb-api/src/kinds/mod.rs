//! The kinds of objects that are served, and what is particular to each.
//!
//! Objects are JSON here, as clients sent them: fields that this build does not know are gone by
//! then (`operations::decode`). Rules are pure, but for what they take from `Allocations`.

mod choice;
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
mod secret;
mod service;
pub mod table;
#[cfg(test)]
mod tests;
mod violation;

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

pub use violation::{Violation, ViolationKind};

pub struct Kind {
    /// Empty: the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub has_status: bool,
    pub rules: &'static dyn Rules,
}

/// The part of an object that a request writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself.
    None,
    Status,
}

pub trait Rules: Sync {
    /// Fills in defaults, as a real server does on decoding.
    fn set_defaults(&self, _object: &mut Value) {}

    /// Wipes what a client may not set, keeps status on updates of the spec (and the other way
    /// round), sets the generation where the kind has one. `old` is none on creation.
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource);

    /// Every violation, with field paths as kubectl prints them. Of the metadata only the form of
    /// the name is the kind's to check; `metadata::validate` does the rest, for all kinds.
    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation>;

    /// Takes the addresses and ports the object needs and writes them into it, gives back what
    /// it no longer needs. Called within the write, after `validate`: what was taken is given
    /// back when the write fails or is a dry run.
    fn allocate(
        &self,
        _object: &mut Value,
        _old: Option<&Value>,
        _allocations: &mut dyn Allocations,
    ) -> Result<(), Violation> {
        Ok(())
    }

    /// Takes what a stored object has, also where the ranges are others now than when it was
    /// written. Violations tell what it should not have: it lies in no range, or is another's.
    fn reclaim(&self, _object: &Value, _allocations: &mut dyn Allocations) -> Vec<Violation> {
        Vec::new()
    }

    /// Gives back all that an object which is being removed holds.
    fn release(&self, _object: &Value, _allocations: &mut dyn Allocations) {}

    /// Sentences for the header `Warning`.
    fn warnings(&self, _object: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether a PUT to a name that is not there creates the object.
    fn creates_on_update(&self) -> bool {
        false
    }

    /// Whether a PUT without `resourceVersion` overwrites whatever is there.
    fn updates_unconditionally(&self) -> bool {
        true
    }

    /// Whether a DELETE that ends the object answers with it, not with a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// The kind whose objects these are another view of: they are stored as that kind, and
    /// `to_stored` and `as_shown` translate.
    fn stored_as(&self) -> Option<&'static Kind> {
        None
    }

    fn to_stored(&self, object: &Value) -> Value {
        object.clone()
    }

    fn as_shown(&self, object: &Value) -> Value {
        object.clone()
    }

    fn columns(&self) -> &'static [Column];

    /// One cell for each column.
    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value>;

    /// The value of a field that a field selector may name besides `metadata.name` and
    /// `metadata.namespace`; none if it may not name this one.
    fn field(&self, object: &Value, path: &str) -> Option<String>;
}

/// A column of the tables that kubectl prints.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    /// An OpenAPI type: `string`, `integer`, ...
    pub type_: &'static str,
    /// `name` for the column that names the object, else mostly empty.
    pub format: &'static str,
    pub description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// What only one object may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    ClusterIp(IpAddr),
    /// Of any protocol; health checks' node ports are among them.
    NodePort(u16),
}

/// What is held by whom, within one write.
pub trait Allocations {
    fn ranges(&self) -> &Ranges;

    /// Who holds it, as `namespace/name`.
    fn holder(&self, resource: Resource) -> Option<String>;

    /// True if the object being written holds it now, false if another one does.
    fn take(&mut self, resource: Resource) -> bool;

    /// Does nothing unless the object being written holds it.
    fn give_back(&mut self, resource: Resource);
}

/// What addresses and ports are taken from.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// The first is of the primary address family; at most one of each.
    pub cluster_ips: Vec<IpNet>,
    pub node_ports: RangeInclusive<u16>,
}

impl Kind {
    /// `v1`, `networking.k8s.io/v1`
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// In the order of discovery.
pub fn all() -> &'static [Kind] {
    &ALL
}

/// By what a request's path names.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| (kind.group, kind.version, kind.plural) == (group, version, plural))
}

/// By what a manifest names.
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
    rules: &event::Core,
};

static ALL: [Kind; 11] = [
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
