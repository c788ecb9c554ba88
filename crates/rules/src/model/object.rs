//! The objects that the agent and the Ingress controller read, and references to them.

use std::fmt::{self, Display};

use anyhow::{Result, anyhow};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node as ApiNode, Secret, Service};
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::kind::Kind;
use super::sent_slice::SentSlice;
use super::service::trim_unused;
use super::strip::strip_unused_fields;
use super::{Node, Slice};
use crate::kinds::{
    AddressPool, BFDProfile, BGPAdvertisement, BGPPeer, Community, IPAddressPool, L2Advertisement,
    MetallbBGPPeer,
};

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
        let namespace = if kind.is_namespaced() {
            namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("default")
        } else {
            ""
        };
        Self { kind, namespace: namespace.to_owned(), name: name.unwrap_or_default().to_owned() }
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(' ')?;
        let is_namespaced = name.contains('/');
        let is_same = |known: &Kind| known.name() == kind && known.is_namespaced() == is_namespaced;
        let kind = Kind::ALL.into_iter().find(is_same)?;
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        Some(Self { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// The reference of an object that may turn out to be unreadable.
    pub fn of(kind: Kind, value: &Value) -> Self {
        let text = |field| value.get("metadata")?.get(field)?.as_str();
        Self::new(kind, text("namespace"), text("name"))
    }
}

impl Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if kind.is_namespaced() {
            write!(f, "{} {namespace}/{name}", kind.name())
        } else {
            write!(f, "{} {name}", kind.name())
        }
    }
}

/// Only the fields of an object that the rules use: the agent holds all objects of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Service(Box<Service>),
    EndpointSlice(Box<Slice>),
    Endpoints(Box<Endpoints>),
    Node(Box<Node>),
    Ingress(Box<Ingress>),
    IngressClass(Box<IngressClass>),
    Secret(Box<Secret>),
    Namespace(Box<Namespace>),
    AddressPool(Box<AddressPool>),
    IpAddressPool(Box<IPAddressPool>),
    L2Advertisement(Box<L2Advertisement>),
    BgpPeer(Box<BGPPeer>),
    MetallbBgpPeer(Box<MetallbBGPPeer>),
    BgpAdvertisement(Box<BGPAdvertisement>),
    Community(Box<Community>),
    BfdProfile(Box<BFDProfile>),
}

impl Object {
    /// Reads an object of a kind; the error names the field.
    pub fn read(kind: Kind, mut value: Value) -> Result<Self> {
        strip_unused_fields(kind, &mut value);
        Ok(match kind {
            Kind::Service => {
                let mut service: Box<Service> = Box::new(read_value(value)?);
                trim_unused(&mut service);
                Self::Service(service)
            }
            Kind::EndpointSlice => {
                let SentSlice { slice, .. } = read_from(&value)?;
                Self::EndpointSlice(Box::new(slice))
            }
            Kind::Endpoints => Self::Endpoints(Box::new(read_value(value)?)),
            Kind::Node => Self::Node(Box::new(read_value::<ApiNode>(value)?.into())),
            Kind::Ingress => Self::Ingress(Box::new(read_value(value)?)),
            Kind::IngressClass => Self::IngressClass(Box::new(read_value(value)?)),
            Kind::Secret => Self::Secret(Box::new(read_value(value)?)),
            Kind::Namespace => Self::Namespace(Box::new(read_value(value)?)),
            Kind::AddressPool => Self::AddressPool(Box::new(read_value(value)?)),
            Kind::IpAddressPool => Self::IpAddressPool(Box::new(read_value(value)?)),
            Kind::L2Advertisement => Self::L2Advertisement(Box::new(read_value(value)?)),
            Kind::BgpPeer => Self::BgpPeer(Box::new(read_value(value)?)),
            Kind::MetallbBgpPeer => Self::MetallbBgpPeer(Box::new(read_value(value)?)),
            Kind::BgpAdvertisement => Self::BgpAdvertisement(Box::new(read_value(value)?)),
            Kind::Community => Self::Community(Box::new(read_value(value)?)),
            Kind::BfdProfile => Self::BfdProfile(Box::new(read_value(value)?)),
        })
    }

    pub fn reference(&self) -> ObjectRef {
        let (kind, metadata): (Kind, &ObjectMeta) = match self {
            Self::Service(object) => (Kind::Service, &object.metadata),
            Self::EndpointSlice(slice) => {
                let name = &slice.name;
                return ObjectRef::new(
                    Kind::EndpointSlice,
                    Some(&name.namespace),
                    Some(&name.name),
                );
            }
            Self::Endpoints(object) => (Kind::Endpoints, &object.metadata),
            Self::Node(node) => return ObjectRef::new(Kind::Node, None, Some(&node.name)),
            Self::Ingress(object) => (Kind::Ingress, &object.metadata),
            Self::IngressClass(object) => (Kind::IngressClass, &object.metadata),
            Self::Secret(object) => (Kind::Secret, &object.metadata),
            Self::Namespace(object) => (Kind::Namespace, &object.metadata),
            Self::AddressPool(object) => (Kind::AddressPool, &object.metadata),
            Self::IpAddressPool(object) => (Kind::IpAddressPool, &object.metadata),
            Self::L2Advertisement(object) => (Kind::L2Advertisement, &object.metadata),
            Self::BgpPeer(object) => (Kind::BgpPeer, &object.metadata),
            Self::MetallbBgpPeer(object) => (Kind::MetallbBgpPeer, &object.metadata),
            Self::BgpAdvertisement(object) => (Kind::BgpAdvertisement, &object.metadata),
            Self::Community(object) => (Kind::Community, &object.metadata),
            Self::BfdProfile(object) => (Kind::BfdProfile, &object.metadata),
        };
        ObjectRef::new(kind, metadata.namespace.as_deref(), metadata.name.as_deref())
    }
}

fn read_value<T: DeserializeOwned>(value: Value) -> Result<T> {
    read_from(value)
}

fn read_from<'de, T: Deserialize<'de>>(
    value: impl Deserializer<'de, Error = serde_json::Error>,
) -> Result<T> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| anyhow!("{}: {}", error.path(), error.inner()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unused_fields_are_not_held() {
        let bare = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "1"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
            "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "a"}],
            "addressType": "IPv4",
            "status": {}
        });
        let mut full = bare.clone();
        let metadata = &mut full["metadata"];
        metadata["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        metadata["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"});
        metadata["labels"] = json!({"app.kubernetes.io/managed-by": "Helm"});
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1"}]);
        full["spec"]["selector"] = json!({"app": "web"});
        let condition = json!({
            "type": "a", "status": "True", "reason": "", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"
        });
        full["status"]["conditions"] = json!([condition]);
        full["status"]["loadBalancer"] = Value::Null;
        full["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "web-1"});
        for kind in [Kind::Service, Kind::EndpointSlice] {
            let read = |value: &Value| Object::read(kind, value.clone()).expect("an object");
            assert_eq!(read(&full), read(&bare), "{}", kind.name());
        }
    }

    /// The API server stores nulls in fields that the API's own types require.
    #[test]
    fn null_equals_absent() {
        let condition = json!({
            "type": "a", "status": "True", "reason": null, "message": "",
            "lastTransitionTime": null
        });
        let managed = json!([{"manager": null, "time": "never"}]);
        let metadata = json!({
            "name": "web", "namespace": "shop", "labels": null, "annotations": {"a": null},
            "creationTimestamp": null, "managedFields": managed
        });
        let bare = json!({"name": "web", "namespace": "shop"});
        let pairs = [
            (
                Kind::Service,
                json!({"metadata": metadata, "status": {
                    "conditions": [condition],
                    "loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": null}]}
                }, "spec": {"ports": [{"port": 80, "name": null}], "clusterIPs": null}}),
                json!({"metadata": bare, "status": {
                    "loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}
                }, "spec": {"ports": [{"port": 80}]}}),
            ),
            (
                Kind::EndpointSlice,
                json!({"metadata": metadata, "addressType": "IPv4", "ports": null, "endpoints": [
                    {"addresses": ["10.244.0.1"], "conditions": {"ready": null},
                     "hints": {"forZones": null}, "targetRef": null}
                ]}),
                json!({"metadata": bare, "addressType": "IPv4", "endpoints": [
                    {"addresses": ["10.244.0.1"], "conditions": {}, "hints": {}}
                ]}),
            ),
            (
                Kind::Node,
                json!({"metadata": metadata,
                    "spec": {"taints": [{"key": "a", "effect": "NoSchedule", "timeAdded": null}]},
                    "status": {"addresses": null, "conditions": [condition]}}),
                json!({"metadata": bare, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            ),
        ];
        for (kind, with_nulls, without) in pairs {
            let read = |value| Object::read(kind, value).expect("nulls are not errors");
            assert_eq!(read(with_nulls), read(without), "{}", kind.name());
        }
    }

    #[test]
    fn a_reference_can_be_read_back() {
        let kinds = [
            (Kind::Service, Some("shop")),
            (Kind::Ingress, Some("shop")),
            (Kind::Node, None),
            (Kind::IngressClass, None),
            // Two kinds of one name.
            (Kind::BgpPeer, None),
            (Kind::MetallbBgpPeer, Some("metallb-system")),
        ];
        for (kind, namespace) in kinds {
            let reference = ObjectRef::new(kind, namespace, Some("a.b"));
            assert_eq!(ObjectRef::parse(&reference.to_string()), Some(reference));
        }
        assert_eq!(ObjectRef::parse("services/web.yaml:3"), None);
        assert_eq!(ObjectRef::parse("Service without-namespace"), None);
    }
}
