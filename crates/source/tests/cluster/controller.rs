//! What the controller of addresses requests: no more than `deploy/kustomize/controller/role.yaml` grants.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

use lb_process::ClientRequests;
use lb_rules::kinds::METALLB_NAMESPACE;
use lb_source::ControllerCluster;
use lb_source::cluster::{Access, list_unread_metallb_kinds};
use serde_json::{Value, json};

use super::permissions::{Permission, granted, needed};
use super::pools::{POOLS, of_metallb, pool};
use super::server::{Dialect, SERVICES, Server};
use super::unread::with_kinds;
use super::{Reported, service};

const ROLE: &str = include_str!("../../../../deploy/kustomize/controller/role.yaml");

fn access(server: &Server, directory: &Path) -> Access {
    let path = directory.join("kubeconfig");
    fs::write(&path, super::access::kubeconfig(server, json!({})).to_string()).unwrap();
    Access { kubeconfig: Some(path), ..Access::default() }
}

async fn source(server: &Server) -> Reported {
    let directory = tempfile::tempdir().unwrap();
    let access = access(server, directory.path());
    let connection = access.open(&ClientRequests::default()).await.unwrap();
    Reported::of(ControllerCluster::of(connection, METALLB_NAMESPACE))
}

#[tokio::test]
async fn the_deployed_role_is_what_the_controller_needs() {
    let mut needed_by_any: BTreeSet<Permission> = BTreeSet::new();
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = Server::start().await;
        server.speak(dialect);
        server.put(super::SERVICES, service("a"));
        server.put(POOLS, pool("a"));
        let mut reported = source(&server).await;
        reported.until(|reported| reported.synced == 1).await;
        assert!(reported.is_there("AddressPool a") && reported.is_there("Service default/a"));
        server.asked(|all| all.iter().filter(|request| request.watch).count() >= 7).await;
        needed_by_any.extend(server.requests().iter().map(needed));
    }
    let server = Server::start().await;
    let resources =
        [("addresspools", "AddressPool"), ("configurationstates", "ConfigurationState")];
    with_kinds(&server, &[("v1beta1", &resources)]);
    list_unread_metallb_kinds(&super::client(&server), METALLB_NAMESPACE).await.unwrap();
    // Everybody may ask which kinds there are.
    let lists = server.requests();
    let lists = lists.iter().filter(|request| request.path.contains("/namespaces/"));
    needed_by_any.extend(lists.map(needed));
    // What it writes; Events as the agent does.
    for (group, resource, verb) in [
        ("", "services/status", "patch"),
        ("millrace.io", "addresspools/status", "patch"),
        ("", "events", "create"),
        ("", "events", "patch"),
    ] {
        needed_by_any.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
    }
    assert_eq!(granted(ROLE), needed_by_any);
}

/// A role of a former version does not grant them: only pools of nodes need them.
#[tokio::test]
async fn nodes_and_slices_that_are_refused_stop_no_other_objects() {
    let server = Server::start().await;
    for path in ["/api/v1/nodes", "/apis/discovery.k8s.io/v1/endpointslices"] {
        server.refuse(path, 403);
    }
    server.put(super::SERVICES, service("a"));
    server.put(POOLS, pool("a"));
    let mut reported = source(&server).await;
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there("AddressPool a") && reported.is_there("Service default/a"));
}

/// As a cluster returns an object that kubectl has created from MetalLB's documentation.
fn of_kubectl(name: &str, generation: u32, spec: &Value) -> Value {
    json!({
        "apiVersion": "metallb.io/v1beta1",
        "metadata": {
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": spec.to_string()},
            "creationTimestamp": "2026-03-01T09:00:00Z", "generation": generation,
            "managedFields": [{
                "apiVersion": "metallb.io/v1beta1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {".": {}}}, "manager": "kubectl-client-side-apply",
                "operation": "Update", "time": "2026-03-01T09:00:00Z"
            }],
            "name": name, "namespace": METALLB_NAMESPACE,
            "uid": format!("0b7c6a5e-1f0d-4d8e-9f61-{name:0>12}")
        },
        "spec": spec
    })
}

/// As an API server stores a Service of type LoadBalancer without an address.
fn of_load_balancer(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "annotations": annotations, "creationTimestamp": "2026-03-01T09:00:01Z",
            "name": name, "namespace": "default", "uid": format!("uid-{name}")
        },
        "spec": {
            "allocateLoadBalancerNodePorts": true, "clusterIP": "10.43.7.9",
            "clusterIPs": ["10.43.7.9"], "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"nodePort": 31080, "port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app": name}, "sessionAffinity": "None", "type": "LoadBalancer"
        },
        "status": {"loadBalancer": {}}
    })
}

/// A cluster from which MetalLB has been scaled down: its objects are still there, and a Service
/// that has an address of it keeps that one.
#[tokio::test]
async fn the_objects_of_metallb_in_a_cluster_give_addresses() {
    let server = Server::start().await;
    let pools = of_metallb("ipaddresspools");
    let lan = json!({
        "addresses": ["192.168.10.0/30", "192.168.9.1-192.168.9.5"],
        "autoAssign": true, "avoidBuggyIPs": true
    });
    server.put(&pools, of_kubectl("lan", 1, &lan));
    let leased =
        json!({"addresses": ["42.176.25.64/30"], "autoAssign": false, "avoidBuggyIPs": false});
    server.put(&pools, of_kubectl("leased", 2, &leased));
    let advertisement = json!({"ipAddressPools": ["lan"]});
    server.put(&of_metallb("l2advertisements"), of_kubectl("lan", 1, &advertisement));
    let mut old = of_load_balancer("old", &json!({"metallb.io/ip-allocated-from-pool": "lan"}));
    old["status"]["loadBalancer"] = json!({"ingress": [{"ip": "192.168.10.2", "ipMode": "VIP"}]});
    server.put(SERVICES, old);

    let directory = tempfile::tempdir().unwrap();
    let options = lb_controller::ControllerOptions {
        access: access(&server, directory.path()),
        settings: Default::default(),
        ranges: Vec::new(),
        metallb_namespace: METALLB_NAMESPACE.to_owned(),
        lease: None,
        tunnel_key_secret: None,
    };
    lb_controller::start_controller(options, &ClientRequests::default(), Default::default())
        .await
        .unwrap();
    let address = async |name: &str| {
        let assigned = |service: &Value| !service["status"]["conditions"][0].is_null();
        let service = server.object(SERVICES, &format!("default/{name}"), assigned).await;
        assert_eq!(service["status"]["conditions"][0]["reason"], "Assigned", "{service}");
        service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().unwrap().to_owned()
    };
    assert_eq!(address("old").await, "192.168.10.2");
    let began = Instant::now();
    server.put(SERVICES, of_load_balancer("new", &json!({})));
    assert_eq!(address("new").await, "192.168.10.1");
    println!("from the Service's creation until its status has an address: {:?}", began.elapsed());
    let leased = json!({"metallb.universe.tf/address-pool": "leased"});
    server.put(SERVICES, of_load_balancer("leased", &leased));
    assert_eq!(address("leased").await, "42.176.25.64");
    let wanted = json!({"metallb.io/loadBalancerIPs": "192.168.9.4"});
    server.put(SERVICES, of_load_balancer("wanted", &wanted));
    assert_eq!(address("wanted").await, "192.168.9.4");
}
