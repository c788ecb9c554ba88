//! The objects of the benchmark, as a cluster's controllers would have written them: Services, EndpointSlices, Nodes.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

pub const NAMESPACE: &str = "scale";
/// The range of ClusterIPs, the largest that an API server accepts.
pub const SERVICE_RANGE: &str = "10.96.0.0/12";
/// The first ClusterIP of the benchmark: those before are left to the API server's own Services.
const FIRST_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 0);
/// Addresses of endpoints that do not exist. Nothing is sent to them.
const FIRST_ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);
const FIRST_NODE: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const ZONES: usize = 3;
/// Not a UUID of the API server, which accepts what clients say about other objects.
const POD_UID: &str = "3f1c8a52-7b64-4d0e-9a2f-000000000000";

/// Port of all Services; Services that are measured use UDP, the others TCP.
pub const SERVICE_PORT: u16 = 80;
pub const ENDPOINT_PORT: u16 = 8080;

/// How many objects there are.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSize {
    pub services: usize,
    pub endpoints: usize,
    pub nodes: usize,
}

/// An object to create: the path of its collection, and the object.
pub type Creation = (String, Value);

pub fn services_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/services")
}

pub fn slices_path() -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices")
}

fn after(first: Ipv4Addr, number: usize) -> String {
    Ipv4Addr::from(u32::from(first) + number as u32).to_string()
}

fn node_name(number: usize) -> String {
    format!("node-{number:05}")
}

/// The name of a Service. In the order of numbers, which is that of lists.
pub fn service_name(number: usize) -> String {
    format!("service-{number:06}")
}

pub fn service_address(number: usize) -> String {
    after(FIRST_SERVICE, number)
}

pub fn slice_name(number: usize) -> String {
    format!("{}-1", service_name(number))
}

pub fn service_object(number: usize, protocol: &str) -> Creation {
    let name = service_name(number);
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "clusterIP": service_address(number), "selector": {"app": name},
            "ports": [{
                "name": "http", "port": SERVICE_PORT, "targetPort": ENDPOINT_PORT, "protocol": protocol,
            }],
        },
    });
    (services_path(), object)
}

/// The EndpointSlice of a Service, with fields as the controller of a cluster sets them.
pub fn slice_object(number: usize, protocol: &str, endpoints: &[Value]) -> Creation {
    let name = service_name(number);
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": slice_name(number),
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z"},
            "labels": {
                "app": name, "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "ports": [{"name": "http", "port": ENDPOINT_PORT, "protocol": protocol}],
        "endpoints": endpoints,
    });
    (slices_path(), object)
}

pub fn endpoint_object(address: &str, node: &str, zone: usize) -> Value {
    json!({
        "addresses": [address], "nodeName": node, "zone": format!("zone-{}", zone % ZONES + 1),
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {
            "kind": "Pod", "namespace": NAMESPACE, "uid": POD_UID,
            "name": format!("pod-{}", address.replace('.', "-")),
        },
    })
}

/// A Service that is not measured, and its EndpointSlice.
pub fn other_service(number: usize, size: ClusterSize) -> [Creation; 2] {
    let endpoint = |which: usize| {
        let number = number * size.endpoints + which;
        let node = number % size.nodes.max(1);
        endpoint_object(&after(FIRST_ENDPOINT, number), &node_name(node), node)
    };
    let endpoints: Vec<_> = (0..size.endpoints).map(endpoint).collect();
    [service_object(number, "TCP"), slice_object(number, "TCP", &endpoints)]
}

/// A Node that no machine belongs to.
pub fn other_node(number: usize) -> Creation {
    node_object(&node_name(number), &after(FIRST_NODE, number), number)
}

/// A Node as its kubelet registers it.
pub fn node_object(name: &str, address: &str, zone: usize) -> Creation {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": format!("Kubelet{kind}"),
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z",
        })
    };
    let resources = json!({
        "cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi",
        "hugepages-1Gi": "0", "hugepages-2Mi": "0",
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": format!("zone-{}", zone % ZONES + 1),
            },
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name},
            ],
            "allocatable": resources, "capacity": resources,
            "conditions": [
                condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", "True"),
            ],
        },
    });
    ("/api/v1/nodes".to_owned(), object)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_address_belongs_to_two_services_or_endpoints() {
        let size = ClusterSize { services: 300, endpoints: 3, nodes: 7 };
        let mut addresses = HashSet::new();
        for number in 0..size.services {
            let [(_, service), (_, slice)] = other_service(number, size);
            assert!(addresses.insert(service["spec"]["clusterIP"].to_string()));
            let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
            assert_eq!(endpoints.len(), 3);
            for endpoint in endpoints {
                assert!(addresses.insert(endpoint["addresses"][0].to_string()));
            }
        }
    }
}
