//! The model's result does not depend on the order of objects.

// All of this file is a test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use lb_rules::model::{Claims, NodeContext, Resolved, ServiceName, Slice, resolve_service};
use proptest::prelude::*;
use serde_json::{Value, json};

/// From few values, so that several slices have the same endpoints.
fn endpoint() -> impl Strategy<Value = Value> {
    let condition = prop::option::of(any::<bool>());
    let hint = prop::option::of(0..3u8);
    (0..4u8, 0..3u8, prop::array::uniform3(condition), prop::array::uniform2(hint)).prop_map(
        |(address, node, [ready, serving, terminating], [for_node, for_zone])| {
            let node_hints: Vec<Value> =
                for_node.iter().map(|n| json!({"name": format!("node-{n}")})).collect();
            let zone_hints: Vec<Value> =
                for_zone.iter().map(|z| json!({"name": format!("zone-{z}")})).collect();
            json!({
                "addresses": [format!("10.244.0.{}", address + 1)],
                "nodeName": format!("node-{node}"),
                "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                "hints": {"forNodes": node_hints, "forZones": zone_hints},
            })
        },
    )
}

fn slice() -> impl Strategy<Value = Value> {
    (prop::collection::vec(endpoint(), 0..6), 0..2u16).prop_map(|(endpoints, port)| {
        json!({
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080 + port}],
            "endpoints": endpoints,
        })
    })
}

/// Slices, and the same ones with slices and endpoints in another order.
fn slices_twice() -> impl Strategy<Value = [Vec<Value>; 2]> {
    let slices = prop::collection::vec(slice(), 0..4);
    slices.prop_flat_map(|slices| {
        let endpoints = |slice: &Value| slice["endpoints"].as_array().cloned().unwrap_or_default();
        let shuffled: Vec<_> = slices
            .iter()
            .cloned()
            .map(|slice| {
                Just(endpoints(&slice)).prop_shuffle().prop_map(move |endpoints| {
                    let mut slice = slice.clone();
                    slice["endpoints"] = endpoints.into();
                    slice
                })
            })
            .collect();
        (Just(slices), shuffled.prop_flat_map(|slices| Just(slices).prop_shuffle()))
            .prop_map(|(first, second)| [first, second])
    })
}

fn service(name: &str, spec: Value) -> Service {
    let metadata = json!({"name": name, "namespace": "default"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn meaning(service: &Service, slices: &[Value]) -> Resolved {
    let read = |slice: &Value| serde_json::from_value::<EndpointSlice>(slice.clone()).unwrap();
    let slices: Vec<Slice> = slices.iter().map(|slice| Slice::from(&read(slice))).collect();
    let slices: Vec<&Slice> = slices.iter().collect();
    let node = NodeContext {
        name: "node-0".to_owned(),
        zone: Some("zone-0".to_owned()),
        ..NodeContext::default()
    };
    resolve_service(service, &slices, &node)
}

/// Events of Services with few addresses and ports, which are deleted at times.
fn events() -> impl Strategy<Value = Vec<(u8, Option<[u8; 3]>)>> {
    let claim = prop::option::weighted(0.8, prop::array::uniform3(0..3u8));
    prop::collection::vec((0..4u8, claim), 0..20)
}

fn name(service: u8) -> ServiceName {
    ServiceName::new("default", &format!("service-{service}"))
}

fn claim(service: u8, [address, port, _]: [u8; 3]) -> Resolved {
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIP": format!("10.96.0.{}", service + 1),
        // Its own ClusterIP, or that of another Service.
        "externalIPs": [format!("203.0.113.{}", address + 1), format!("10.96.0.{}", address + 1)],
        "ports": [{"name": "http", "port": 80, "nodePort": 30000 + i32::from(port)}],
    });
    let mut service = self::service(&name(service).name, spec);
    let assigned = json!({"ingress": [{"ip": format!("203.0.113.{}", port + 1)}]});
    service.status = serde_json::from_value(json!({"loadBalancer": assigned})).unwrap();
    meaning(&service, &[])
}

fn created([.., day]: [u8; 3]) -> Option<String> {
    Some(format!("2026-01-0{}", day + 1))
}

proptest! {
    #[test]
    fn the_order_of_slices_and_endpoints_does_not_matter([first, second] in slices_twice()) {
        let spec = json!({
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000,
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        });
        let service = service("web", spec);
        prop_assert_eq!(meaning(&service, &first), meaning(&service, &second));
    }

    #[test]
    fn what_services_claim_is_settled_alike_in_any_order(events in events()) {
        // In the order of events, updating only the Services that each event concerns.
        let mut claims = Claims::default();
        let mut settled = BTreeMap::new();
        let mut last = BTreeMap::new();
        for (service, event) in events {
            let resolved = event.map(|event| claim(service, event));
            for concerned in claims.set(&name(service), event.and_then(created), resolved) {
                let result = claims.settled(&concerned, &NodeContext::default());
                settled.insert(concerned, result);
            }
            last.insert(service, event);
        }

        // From nothing to the same state in reverse order.
        let mut fresh = Claims::default();
        for (&service, event) in last.iter().rev() {
            let resolved = event.map(|event| claim(service, event));
            fresh.set(&name(service), event.and_then(created), resolved);
        }
        for service in last.keys().copied().map(name) {
            let result = fresh.settled(&service, &NodeContext::default());
            prop_assert_eq!(&settled[&service], &result, "{}", service);
        }
    }
}
