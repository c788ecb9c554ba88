//! The description of a kind, and the interface of its rules: defaults, validation, allocation,
//! table rows.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use super::violation::Violation;

pub struct ApiKind {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub has_status: bool,
    /// The schema of a kind that the embedder declares (`declared`). The types of the other kinds
    /// are in `schema`.
    pub declared: Option<&'static Value>,
    pub rules: &'static dyn KindRules,
}

impl ApiKind {
    /// The field `apiVersion`, for example `v1` or `networking.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// The part of an object that a request writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself.
    None,
    Status,
}

pub trait KindRules: Sync {
    /// Sets defaults, as an API server does while decoding.
    fn set_defaults(&self, _object: &mut Value) {}

    /// Clears fields that clients cannot set, keeps the status on updates of the spec and vice
    /// versa, and sets the generation if the kind has one. `old` is `None` for a new object.
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource);

    /// All violations, with field paths as kubectl prints them. Of the metadata, only the form of
    /// the name is checked here; `metadata::validate_metadata` checks the rest for all kinds.
    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation>;

    /// Takes the addresses and ports that the object needs and writes them into it, and releases
    /// those that it no longer needs. Called within the write, after `validate`. If the write fails
    /// or is a dry run, all of this is undone.
    fn allocate(
        &self,
        _object: &mut Value,
        _old: Option<&Value>,
        _allocations: &mut dyn Allocations,
    ) -> Result<(), Violation> {
        Ok(())
    }

    /// Takes what a stored object holds, even if the ranges have changed since. Returns a violation
    /// for each address or port that it should not hold, because it is in no range or is held by
    /// another object.
    fn reclaim(&self, _object: &Value, _allocations: &mut dyn Allocations) -> Vec<Violation> {
        Vec::new()
    }

    /// Releases everything that a removed object holds.
    fn release(&self, _object: &Value, _allocations: &mut dyn Allocations) {}

    /// Sentences for the header `Warning`.
    fn warnings(&self, _object: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// A sentence for the header `Warning` of every response, if the kind is deprecated.
    fn deprecation(&self) -> Option<&'static str> {
        None
    }

    /// Whether a PUT creates a missing object.
    fn creates_on_update(&self) -> bool {
        false
    }

    /// Whether a PUT without `resourceVersion` overwrites any revision.
    fn updates_unconditionally(&self) -> bool {
        true
    }

    /// Whether all objects of a namespace, or of a kind without namespaces, can be deleted by one request.
    fn deletes_collections(&self) -> bool {
        true
    }

    /// Whether a DELETE returns the deleted object instead of a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// The kind that these objects are another view of, and are stored as. `to_stored` and
    /// `as_shown` convert them.
    fn stored_as(&self) -> Option<&'static ApiKind> {
        None
    }

    fn to_stored(&self, object: &Value) -> Value {
        object.clone()
    }

    fn as_shown(&self, object: &Value) -> Value {
        object.clone()
    }

    fn columns(&self) -> &'static [TableColumn];

    /// One cell for each column.
    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value>;

    /// The value of a field that field selectors may use in addition to `metadata.name` and
    /// `metadata.namespace`. `None` for other fields.
    fn field(&self, object: &Value, path: &str) -> Option<String>;
}

/// A column of the tables that kubectl prints.
#[derive(Debug, Clone, Copy)]
pub struct TableColumn {
    pub name: &'static str,
    /// An OpenAPI type: `string`, `integer`, ...
    pub type_: &'static str,
    /// `name` for the column with the object's name, otherwise usually empty.
    pub format: &'static str,
    pub description: &'static str,
    /// 0: always shown. 1: with `-o wide`.
    pub priority: i32,
}

/// An address or a port, which only one object can hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocatedResource {
    ClusterIp(IpAddr),
    /// A node port of all protocols. Includes health check node ports.
    NodePort(u16),
}

/// The holders of addresses and ports, within one write.
pub trait Allocations {
    fn ranges(&self) -> &AllocationRanges;

    /// The holder as `namespace/name`.
    fn holder(&self, resource: AllocatedResource) -> Option<String>;

    /// Returns true if the object being written holds the resource now, false if another does.
    fn take(&mut self, resource: AllocatedResource) -> bool;

    /// Releases the resource if the object being written holds it.
    fn give_back(&mut self, resource: AllocatedResource);
}

/// The ranges that addresses and ports are taken from.
#[derive(Debug, Clone)]
pub struct AllocationRanges {
    /// At most one for each address family. The first is of the primary family.
    pub cluster_ips: Vec<IpNet>,
    pub node_ports: RangeInclusive<u16>,
}
