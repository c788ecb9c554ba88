//! The last reported Services, endpoints and Nodes, and the Services that a change concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{
    Kind, Node, NodeAddresses, Object, ObjectRef, ServiceName, Slice, Slices, has_lent_ports,
    list_cluster_ips, trim_service,
};
use k8s_openapi::api::core::v1::{Endpoints, Service};

#[derive(Debug, Default)]
pub struct Store {
    services: BTreeMap<ServiceName, Box<Service>>,
    slices: Slices,
    /// Legacy Endpoints, converted to slices.
    mirrored: BTreeMap<ServiceName, Vec<Slice>>,
    nodes: BTreeMap<String, Node>,
    /// Nodes of which a field that the rules use has changed.
    moved_nodes: BTreeSet<String>,
}

/// The Services that a change may concern.
#[derive(Debug, PartialEq, Eq)]
pub enum Affected {
    Services(BTreeSet<ServiceName>),
    All,
}

impl Store {
    /// Ignores objects of other kinds.
    pub fn apply(&mut self, object: Object) -> Affected {
        let reference = object.reference();
        match object {
            Object::Service(mut service) => {
                trim_service(&mut service);
                let name = name_of(&reference);
                self.services.insert(name.clone(), service);
                Affected::one(name)
            }
            Object::EndpointSlice(slice) => Affected::Services(self.slices.apply(*slice)),
            Object::Endpoints(endpoints) => self.apply_endpoints(&reference, &endpoints),
            Object::Node(node) => {
                let before = self.nodes.insert(reference.name.clone(), *node);
                let after = self.nodes.get(&reference.name).map(node_facts);
                // Nodes change often; Services depend on few of their fields.
                if before.is_none_or(|before| Some(node_facts(&before)) != after) {
                    self.moved_nodes.insert(reference.name);
                }
                Affected::nothing()
            }
            _ => Affected::nothing(),
        }
    }

    pub fn delete(&mut self, reference: &ObjectRef) -> Affected {
        let name = name_of(reference);
        match reference.kind {
            Kind::Service => {
                self.services.remove(&name);
                Affected::one(name)
            }
            Kind::EndpointSlice => Affected::Services(self.slices.remove(&name)),
            Kind::Endpoints => {
                self.mirrored.remove(&name);
                Affected::one(name)
            }
            Kind::Node => {
                self.nodes.remove(&reference.name);
                self.moved_nodes.insert(reference.name.clone());
                Affected::nothing()
            }
            _ => Affected::nothing(),
        }
    }

    fn apply_endpoints(&mut self, reference: &ObjectRef, endpoints: &Endpoints) -> Affected {
        let name = name_of(reference);
        self.mirrored.insert(
            name.clone(),
            lb_mirroring::mirror_endpoints(endpoints).iter().map(Slice::from).collect(),
        );
        Affected::one(name)
    }

    pub fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name).map(Box::as_ref)
    }

    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// All Services, as far as they are held.
    pub fn held_services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(Box::as_ref)
    }

    /// All slices of Services, without those of legacy Endpoints.
    pub fn held_slices(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().flat_map(|(_, slices)| slices)
    }

    /// The slices of a Service; those of legacy Endpoints only if there are no others.
    pub fn slices(&self, service: &ServiceName) -> Vec<&Slice> {
        match self.slices.of(service) {
            Some(slices) => slices.iter().collect(),
            None => self.mirrored.get(service).into_iter().flatten().collect(),
        }
    }

    pub fn slice(&self, namespace: &str, name: &str) -> Option<&Slice> {
        self.slices.get(&ServiceName::new(namespace, name))
    }

    /// The object's uid; empty if it is not known.
    pub fn uid(&self, reference: &ObjectRef) -> &str {
        let uid = match reference.kind {
            Kind::Service => {
                let service = self.services.get(&name_of(reference));
                service.and_then(|service| service.metadata.uid.as_deref())
            }
            Kind::EndpointSlice => {
                let slice = self.slice(&reference.namespace, &reference.name);
                slice.map(|slice| &*slice.uid)
            }
            Kind::Node => {
                let node = self.nodes.get(&reference.name);
                node.map(|node| &*node.uid)
            }
            // Kept only as slices, or not at all.
            _ => None,
        };
        uid.unwrap_or_default()
    }

    /// The nodes that were added, changed or removed since the last call. Their Services are looked
    /// up for all of them at once: a cluster has many nodes, and many more endpoints.
    pub fn take_moved_nodes(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.moved_nodes)
    }

    /// The Services with endpoints on some nodes.
    pub fn services_on(&self, nodes: &BTreeSet<String>) -> BTreeSet<ServiceName> {
        // Otherwise every change would visit all endpoints and find none.
        if nodes.is_empty() {
            return BTreeSet::new();
        }
        let is_there = |slice: &Slice| {
            let mut places = slice.endpoints.iter().filter_map(|e| e.node_name.as_deref());
            places.any(|node| nodes.contains(node))
        };
        let of_slices = self.slices.iter().filter(|(_, slices)| slices.iter().any(is_there));
        let of_mirrored = self.mirrored.iter().filter(|(_, slices)| slices.iter().any(is_there));
        of_slices.map(|(name, _)| name).chain(of_mirrored.map(|(name, _)| name)).cloned().collect()
    }

    /// The Services with one of these ClusterIPs.
    pub fn services_at(&self, cluster_ips: &BTreeSet<IpAddr>) -> BTreeSet<ServiceName> {
        if cluster_ips.is_empty() {
            return BTreeSet::new();
        }
        self.services_that(|service| {
            list_cluster_ips(service).any(|address| cluster_ips.contains(&address))
        })
    }

    /// The Services with ports on addresses of nodes.
    pub fn services_on_nodes(&self) -> BTreeSet<ServiceName> {
        self.services_that(has_lent_ports)
    }

    fn services_that(&self, has: impl Fn(&Service) -> bool) -> BTreeSet<ServiceName> {
        let found = self.services.iter().filter(|(_, service)| has(service));
        found.map(|(name, _)| name.clone()).collect()
    }

    /// The addresses of all nodes, by name.
    pub fn node_addresses(&self) -> BTreeMap<String, NodeAddresses> {
        self.nodes.iter().map(|(name, node)| (name.clone(), node.addresses.clone())).collect()
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }
}

impl Default for Affected {
    fn default() -> Self {
        Self::nothing()
    }
}

impl Affected {
    /// The union of both.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Services(mut first), Self::Services(second)) => {
                first.extend(second);
                Self::Services(first)
            }
            _ => Self::All,
        }
    }

    fn nothing() -> Self {
        Self::Services(BTreeSet::new())
    }

    fn one(name: ServiceName) -> Self {
        Self::Services(BTreeSet::from([name]))
    }
}

/// The fields of a Node that the meaning of a Service depends on.
fn node_facts(node: &Node) -> (Option<String>, NodeAddresses, BTreeSet<IpAddr>) {
    (node.zone.clone(), node.addresses.clone(), node.external_addresses.clone())
}

fn name_of(reference: &ObjectRef) -> ServiceName {
    ServiceName::new(&reference.namespace, &reference.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SERVICE_NAME: &str = "kubernetes.io/service-name";

    fn object(value: serde_json::Value) -> Object {
        let kind = Kind::of(value["apiVersion"].as_str().unwrap(), value["kind"].as_str().unwrap());
        Object::read(kind.unwrap(), value).unwrap()
    }

    fn slice(name: &str, service: &str) -> Object {
        object(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": {SERVICE_NAME: service}}, "endpoints": []
        }))
    }

    fn services(names: &[&str]) -> Affected {
        Affected::Services(names.iter().map(|name| ServiceName::new("default", name)).collect())
    }

    #[test]
    fn a_slice_concerns_its_service_and_the_one_it_leaves() {
        let mut store = Store::default();
        assert_eq!(store.apply(slice("a", "web")), services(&["web"]));
        assert_eq!(store.apply(slice("a", "api")), services(&["api", "web"]));
        assert!(store.slices(&ServiceName::new("default", "web")).is_empty());
        let reference = slice("a", "api").reference();
        assert_eq!(store.delete(&reference), services(&["api"]));
        assert_eq!(store.delete(&reference), services(&[]));
    }

    #[test]
    fn nodes_concern_services_with_endpoints_there_only_when_they_move() {
        let node = |zone: &str, address: &str, ready: &str| {
            object(json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {
                    "addresses": [{"type": "InternalIP", "address": address}],
                    "conditions": [{"type": "Ready", "status": ready}]
                }
            }))
        };
        let mut store = Store::default();
        let mut moves = |object| {
            assert_eq!(store.apply(object), Affected::nothing());
            !store.take_moved_nodes().is_empty()
        };
        assert!(moves(node("z1", "10.7.0.1", "False")));
        assert!(!moves(node("z1", "10.7.0.1", "True")));
        assert!(moves(node("z2", "10.7.0.1", "True")));
        assert!(moves(node("z2", "10.7.0.2", "True")));
        store.delete(&node("z2", "10.7.0.2", "True").reference());
        assert_eq!(store.take_moved_nodes(), BTreeSet::from(["a".to_owned()]));

        for (service, node) in [("web", "a"), ("api", "b")] {
            store.apply(object(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "addressType": "IPv4", "metadata": {"name": node, "labels": {SERVICE_NAME: service}},
                "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": node}]
            })));
        }
        let concerned =
            |node: &str| Affected::Services(store.services_on(&BTreeSet::from([node.to_owned()])));
        assert_eq!(concerned("a"), services(&["web"]));
        assert_eq!(concerned("b"), services(&["api"]));
        assert_eq!(concerned("c"), services(&[]));
    }

    /// As the model reads them: old Services may have leading zeros, or IPv4 in the form of IPv6.
    #[test]
    fn cluster_ips_of_old_services_are_found() {
        let mut store = Store::default();
        for (name, written) in
            [("a", "010.96.0.010"), ("b", "::ffff:10.96.0.10"), ("c", "10.96.0.10"), ("d", "None")]
        {
            store.apply(object(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"clusterIP": written, "clusterIPs": [written]}
            })));
        }
        let at = |address: &str| store.services_at(&BTreeSet::from([address.parse().unwrap()]));
        let names: Vec<String> = at("10.96.0.10").iter().map(ToString::to_string).collect();
        assert_eq!(names, ["default/a", "default/b", "default/c"]);
        assert!(at("10.96.0.8").is_empty(), "not octal");
    }

    #[test]
    fn slices_of_one_name_in_two_namespaces_are_two() {
        let mut store = Store::default();
        let elsewhere = |service: &str| {
            object(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "addressType": "IPv4", "endpoints": [],
                "metadata": {"name": "a", "namespace": "b", "labels": {SERVICE_NAME: service}}
            }))
        };
        store.apply(slice("a", "web"));
        store.apply(elsewhere("web"));
        store.delete(&elsewhere("web").reference());
        assert_eq!(store.slices(&ServiceName::new("default", "web")).len(), 1);
    }

    #[test]
    fn legacy_endpoints_count_only_without_slices() {
        let mut store = Store::default();
        let web = ServiceName::new("default", "web");
        store.apply(object(json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web"},
            "subsets": [{"addresses": [{"ip": "10.244.0.1"}], "ports": [{"port": 8080}]}]
        })));
        assert_eq!(store.slices(&web).len(), 1);
        store.apply(slice("a", "web"));
        assert_eq!(store.slices(&web)[0].name.name, "a");
    }
}
