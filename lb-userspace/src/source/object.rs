//! The objects that matter here, and their names.

use std::fmt::{self, Display};

use anyhow::{Result, anyhow};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The kinds of objects that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Service,
    EndpointSlice,
    Endpoints,
    Node,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Service, Self::EndpointSlice, Self::Endpoints, Self::Node];

    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
            Self::Node => "Node",
        }
    }

    pub fn api_version(self) -> &'static str {
        match self {
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::Service | Self::Endpoints | Self::Node => "v1",
        }
    }

    /// Where the API serves all objects of the kind, in all namespaces.
    pub fn path(self) -> &'static str {
        match self {
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Endpoints => "/api/v1/endpoints",
            Self::Node => "/api/v1/nodes",
        }
    }

    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let same = |known: &Self| known.name() == kind && known.api_version() == api_version;
        Self::ALL.into_iter().find(same)
    }
}

/// An object's kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    pub kind: Kind,
    /// Empty for kinds without a namespace.
    pub namespace: String,
    pub name: String,
}

impl ObjectRef {
    pub fn new(kind: Kind, namespace: Option<&str>, name: Option<&str>) -> Self {
        let namespace = match kind {
            Kind::Node => "",
            _ => namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("default"),
        };
        Self { kind, namespace: namespace.to_owned(), name: name.unwrap_or_default().to_owned() }
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(' ')?;
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
        let (namespace, name) = match kind {
            Kind::Node => ("", name),
            _ => name.split_once('/')?,
        };
        Some(Self { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// The reference of what may yet turn out not to be readable.
    pub fn of(kind: Kind, value: &Value) -> Self {
        let text = |field| value.get("metadata")?.get(field)?.as_str();
        Self::new(kind, text("namespace"), text("name"))
    }
}

impl Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        match kind {
            Kind::Node => write!(f, "Node {name}"),
            kind => write!(f, "{} {namespace}/{name}", kind.name()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Service(Box<Service>),
    EndpointSlice(Box<EndpointSlice>),
    Endpoints(Box<Endpoints>),
    Node(Box<Node>),
}

impl Object {
    /// Reads an object of a kind; the error names the field.
    pub fn read(kind: Kind, value: Value) -> Result<Self> {
        Ok(match kind {
            Kind::Service => Self::Service(read(value)?),
            Kind::EndpointSlice => Self::EndpointSlice(read(value)?),
            Kind::Endpoints => Self::Endpoints(read(value)?),
            Kind::Node => Self::Node(read(value)?),
        })
    }

    pub fn reference(&self) -> ObjectRef {
        let (kind, metadata) = match self {
            Self::Service(object) => (Kind::Service, &object.metadata),
            Self::EndpointSlice(object) => (Kind::EndpointSlice, &object.metadata),
            Self::Endpoints(object) => (Kind::Endpoints, &object.metadata),
            Self::Node(object) => (Kind::Node, &object.metadata),
        };
        ObjectRef::new(kind, metadata.namespace.as_deref(), metadata.name.as_deref())
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<Box<T>> {
    serde_path_to_error::deserialize(value)
        .map(Box::new)
        .map_err(|error| anyhow!("{}: {}", error.path(), error.inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_can_be_read_back() {
        for (kind, namespace) in [(Kind::Service, Some("shop")), (Kind::Node, None)] {
            let reference = ObjectRef::new(kind, namespace, Some("a.b"));
            assert_eq!(ObjectRef::parse(&reference.to_string()), Some(reference));
        }
        assert_eq!(ObjectRef::parse("services/web.yaml:3"), None);
        assert_eq!(ObjectRef::parse("Service without-namespace"), None);
    }
}
