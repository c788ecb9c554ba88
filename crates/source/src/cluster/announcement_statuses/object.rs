//! The shape of MetalLB's `ServiceL2Status` and `ServiceBGPStatus`. Pure.
//!
//! Invariant: a name contains node, namespace and Service, so an object of one is never taken for that of another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::ListParams;
use kube::core::Request;
use lb_rules::model::ServiceName;
use serde::Deserialize;
use serde_json::{Value, json};

/// The API version of both kinds.
const API_VERSION: &str = "metallb.io/v1beta1";
/// As MetalLB labels its own.
const NODE_LABEL: &str = "metallb.io/node";
const NAME_LABEL: &str = "metallb.io/service-name";
const NAMESPACE_LABEL: &str = "metallb.io/service-namespace";
/// Objects without it are MetalLB's.
const MANAGER_LABEL: &str = "app.kubernetes.io/managed-by";
/// The value of that label, and the manager of fields.
pub(super) const MANAGER: &str = "millrace";
/// Values of labels.
const LONGEST_LABEL: usize = 63;
/// Names of objects.
const LONGEST_NAME: usize = 253;

/// The interfaces on which a Service is announced, or its BGP peers. Equal ones are shared.
pub type AnnouncedThrough = Arc<BTreeSet<String>>;
/// What a node announces in one way.
pub type AnnouncedServices = BTreeMap<ServiceName, AnnouncedThrough>;

/// How Services are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusKind {
    /// `ServiceL2Status`: on links, by ARP and neighbour discovery.
    Layer2,
    /// `ServiceBGPStatus`: to BGP peers.
    Bgp,
}

impl StatusKind {
    pub const ALL: [Self; 2] = [Self::Layer2, Self::Bgp];

    pub fn name(self) -> &'static str {
        match self {
            Self::Layer2 => "ServiceL2Status",
            Self::Bgp => "ServiceBGPStatus",
        }
    }

    pub fn resource(self) -> &'static str {
        match self {
            Self::Layer2 => "servicel2statuses",
            Self::Bgp => "servicebgpstatuses",
        }
    }

    /// The objects that one node writes at most. The addresses of a link are spread over its nodes, but every node may
    /// advertise all Services by BGP: a thousand nodes write a thousand objects for one Service.
    pub(super) fn most_objects(self) -> usize {
        match self {
            Self::Layer2 => 10_000,
            Self::Bgp => 100,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Layer2 => "l2",
            Self::Bgp => "bgp",
        }
    }
}

/// The objects of one kind in MetalLB's namespace.
#[derive(Clone, Debug)]
pub(super) struct StatusObjects {
    pub kind: StatusKind,
    pub namespace: String,
    pub node_name: String,
}

/// The objects of this node, as the API server lists them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListedStatuses {
    pub usable: AnnouncedServices,
    /// Names of those that this process can't go on with: of another name than it gives them, of a former Node of the
    /// name, or not readable.
    pub strays: BTreeSet<String>,
}

#[derive(Deserialize)]
struct SentName {
    metadata: SentNameMetadata,
}

#[derive(Deserialize)]
struct SentNameMetadata {
    name: String,
}

#[derive(Deserialize)]
struct SentStatus {
    metadata: SentMetadata,
    #[serde(default)]
    status: SentFields,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentMetadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<SentOwner>,
}

#[derive(Deserialize)]
struct SentOwner {
    uid: String,
}

#[derive(Default, Deserialize)]
struct SentFields {
    #[serde(default)]
    interfaces: Vec<SentInterface>,
    #[serde(default)]
    peers: BTreeSet<String>,
}

#[derive(Deserialize)]
struct SentInterface {
    #[serde(default)]
    name: String,
}

impl StatusObjects {
    /// Why this node can't have objects.
    pub fn check_node_name(&self) -> Result<(), String> {
        if is_node_name(&self.node_name) {
            return Ok(());
        }
        Err(format!("the name of the node is no value of a label of {LONGEST_LABEL} characters"))
    }

    pub fn requests(&self) -> Request {
        let Self { kind, namespace, .. } = self;
        Request::new(format!("/apis/{API_VERSION}/namespaces/{namespace}/{}", kind.resource()))
    }

    /// Selects this node's objects, and none of MetalLB.
    pub fn own_objects(&self) -> ListParams {
        let selector = format!("{MANAGER_LABEL}={MANAGER},{NODE_LABEL}={}", self.node_name);
        ListParams::default().labels(&selector)
    }

    /// Selects an object of this node by its name and labels; nothing, if another writer owns it.
    pub fn own_object(&self, name: &str) -> ListParams {
        self.own_objects().fields(&format!("metadata.name={name}"))
    }

    /// Selects the objects of all nodes that MetalLB or others have made.
    pub fn others_objects() -> ListParams {
        ListParams::default().labels(&format!("{MANAGER_LABEL}!={MANAGER}"))
    }

    pub fn object_name(&self, service: &ServiceName) -> String {
        let prefix = self.kind.prefix();
        // The names of namespaces and Services have no dots.
        format!("{prefix}-{}.{}.{}", self.node_name, service.namespace, service.name)
    }

    /// All but the status. The API server deletes the object with its Node.
    pub fn build_object(&self, service: &ServiceName, node_uid: &str) -> Value {
        let owner =
            json!({"apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": node_uid});
        json!({
            "apiVersion": API_VERSION, "kind": self.kind.name(),
            "metadata": {
                "name": self.object_name(service), "namespace": self.namespace,
                "labels": {
                    MANAGER_LABEL: MANAGER, NODE_LABEL: self.node_name,
                    NAME_LABEL: service.name, NAMESPACE_LABEL: service.namespace
                },
                "ownerReferences": [owner]
            }
        })
    }

    pub fn build_status(&self, service: &ServiceName, through: &BTreeSet<String>) -> Value {
        let mut status = json!({
            "node": self.node_name,
            "serviceName": service.name, "serviceNamespace": service.namespace
        });
        match self.kind {
            StatusKind::Layer2 => {
                let interfaces = through.iter().map(|name| json!({"name": name}));
                status["interfaces"] = interfaces.collect();
            }
            StatusKind::Bgp => status["peers"] = json!(through),
        }
        json!({
            "apiVersion": API_VERSION, "kind": self.kind.name(),
            "metadata": {"name": self.object_name(service), "namespace": self.namespace},
            "status": status
        })
    }

    /// Adds an object of the list of this node's objects. `owner`: the uid of the Node.
    pub fn read_listed(&self, json: &[u8], owner: &str, listed: &mut ListedStatuses) {
        let Ok(SentName { metadata: SentNameMetadata { name } }) = serde_json::from_slice(json)
        else {
            return;
        };
        match serde_json::from_slice(json).ok().and_then(|sent| self.read_usable(sent, owner)) {
            Some((service, through)) => drop(listed.usable.insert(service, through)),
            None => drop(listed.strays.insert(name)),
        }
    }

    fn read_usable(
        &self,
        SentStatus { metadata, status }: SentStatus,
        owner: &str,
    ) -> Option<(ServiceName, AnnouncedThrough)> {
        let label = |key: &str| metadata.labels.get(key).map(String::as_str);
        let service = ServiceName::new(label(NAMESPACE_LABEL)?, label(NAME_LABEL)?);
        let is_owned = metadata.owner_references.iter().any(|one| one.uid == owner);
        if !is_owned || metadata.name != self.object_name(&service) {
            return None;
        }
        let through = match self.kind {
            StatusKind::Layer2 => status.interfaces.into_iter().map(|one| one.name).collect(),
            StatusKind::Bgp => status.peers,
        };
        Some((service, Arc::new(through)))
    }
}

/// Whether a node can have the name, and a label and the names of objects contain it.
fn is_node_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(is_allowed)
        && name.ends_with(is_allowed)
        && name.len() <= LONGEST_LABEL
        && name.split('.').all(|part| part.starts_with(is_allowed) && part.ends_with(is_allowed))
        && name.chars().all(|c| is_allowed(c) || c == '-' || c == '.')
}

// Prefix, hyphen, two dots, and three names.
const _: () = assert!("bgp".len() + 3 + 3 * LONGEST_LABEL <= LONGEST_NAME);

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(kind: StatusKind, node: &str) -> StatusObjects {
        let (namespace, node_name) = ("metallb-system".to_owned(), node.to_owned());
        StatusObjects { kind, namespace, node_name }
    }

    fn through(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Tools that read MetalLB's objects read these.
    #[test]
    fn statuses_have_the_fields_and_labels_of_metallb() {
        let web = ServiceName::new("shop", "web");
        let of_link = objects(StatusKind::Layer2, "worker0");
        let object = of_link.build_object(&web, "1234");
        assert_eq!(object["apiVersion"], "metallb.io/v1beta1");
        assert_eq!(object["kind"], "ServiceL2Status");
        assert_eq!(object["metadata"]["name"], "l2-worker0.shop.web");
        assert_eq!(
            object["metadata"]["labels"],
            json!({
                "app.kubernetes.io/managed-by": "millrace", "metallb.io/node": "worker0",
                "metallb.io/service-name": "web", "metallb.io/service-namespace": "shop"
            })
        );
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "worker0", "uid": "1234"}]);
        assert_eq!(object["metadata"]["ownerReferences"], owner);
        assert_eq!(
            of_link.build_status(&web, &through(&["eth0", "eth1"]))["status"],
            json!({
                "node": "worker0", "serviceName": "web", "serviceNamespace": "shop",
                "interfaces": [{"name": "eth0"}, {"name": "eth1"}]
            })
        );
        let by_bgp = objects(StatusKind::Bgp, "worker0");
        assert_eq!(by_bgp.object_name(&web), "bgp-worker0.shop.web");
        let status = by_bgp.build_status(&web, &through(&["tor-a", "tor-b"]));
        assert_eq!(status["status"]["peers"], json!(["tor-a", "tor-b"]));
    }

    #[test]
    fn what_is_written_is_read_again_and_what_is_not_is_a_stray() {
        let web = ServiceName::new("shop", "web");
        for kind in StatusKind::ALL {
            let objects = objects(kind, "worker0.example");
            let name = objects.object_name(&web);
            let read = |object: &Value| {
                let mut listed = ListedStatuses::default();
                objects.read_listed(object.to_string().as_bytes(), "1234", &mut listed);
                listed
            };
            let usable = |names: &[&str]| ListedStatuses {
                usable: BTreeMap::from([(web.clone(), through(names).into())]),
                strays: BTreeSet::new(),
            };
            let stray = |name: &str| ListedStatuses {
                usable: BTreeMap::new(),
                strays: BTreeSet::from([name.to_owned()]),
            };
            let mut object = objects.build_object(&web, "1234");
            assert_eq!(read(&object), usable(&[]), "without a status");
            object["status"] = objects.build_status(&web, &through(&["a", "b"]))["status"].clone();
            assert_eq!(read(&object), usable(&["a", "b"]));
            assert_eq!(read(&objects.build_object(&web, "5678")), stray(&name), "former Node");
            for (field, value) in [("interfaces", json!(7)), ("peers", json!({}))] {
                let mut unreadable = object.clone();
                unreadable["status"][field] = value;
                assert_eq!(read(&unreadable), stray(&name), "{field}");
            }
            object["metadata"]["name"] = "l2-x7fq2".into();
            assert_eq!(read(&object), stray("l2-x7fq2"));
            assert_eq!(read(&json!({"metadata": 7})), ListedStatuses::default());
        }
    }

    #[test]
    fn only_nodes_whose_name_is_a_label_have_objects() {
        let long = "x".repeat(64);
        for name in ["", "../b", "b/../../c", "B", "b.", ".b", "b..c", "b-", "b?c", "b c", &long] {
            assert!(objects(StatusKind::Bgp, name).check_node_name().is_err(), "{name:?}");
        }
        assert!(objects(StatusKind::Bgp, "ip-10-0-0-1.eu.internal").check_node_name().is_ok());
    }
}
