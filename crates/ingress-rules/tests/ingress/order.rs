//! After any events, in any order, the meaning is that of the remaining objects.

use std::collections::BTreeMap;

use lb_ingress_rules::IngressRuleSettings;
use lb_rules::model::{Kind, Object, ObjectRef};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{World, default_settings};

const NAMESPACES: [&str; 2] = ["shop", "rival"];
const HOSTS: [&str; 4] = ["a.example.org", "b.example.org", "*.example.org", ""];
const PATHS: [&str; 3] = ["/", "/x", "/x/"];

/// An object, or its deletion; and whether the model settles after it.
type Event = (ObjectRef, Option<Object>, bool);

fn read(kind: Kind, mut value: Value) -> Object {
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.name().into();
    Object::read(kind, value).unwrap()
}

/// From few values, so that hosts, paths and Services collide.
fn ingress() -> impl Strategy<Value = Object> {
    let rule = (0..HOSTS.len(), prop::collection::vec((0..PATHS.len(), 0..3u8), 0..3));
    let rules = prop::collection::vec(rule, 0..3);
    (0..4u8, 0..2usize, rules, prop::option::of(0..3u8), 0..6u8, 0..3u8, 0..4u8).prop_map(
        |(name, namespace, rules, default, kind, day, tls)| {
            let service = |n: u8| json!({"name": format!("s{n}"), "port": {"number": 80}});
            let rules: Vec<Value> = rules
                .into_iter()
                .map(|(host, paths)| {
                    let paths: Vec<Value> = paths
                        .into_iter()
                        .map(|(path, n)| {
                            let backend = json!({"service": service(n)});
                            json!({"path": PATHS[path], "pathType": "Prefix", "backend": backend})
                        })
                        .collect();
                    json!({"host": HOSTS[host], "http": {"paths": paths}})
                })
                .collect();
            let annotations = match kind {
                0 => json!({"nginx.ingress.kubernetes.io/canary": "true", "nginx.ingress.kubernetes.io/canary-weight": "10"}),
                1 => json!({"nginx.ingress.kubernetes.io/from-to-www-redirect": "true"}),
                2 => json!({"nginx.ingress.kubernetes.io/server-alias": "b.example.org"}),
                3 => json!({"nginx.ingress.kubernetes.io/auth-type": "basic", "nginx.ingress.kubernetes.io/auth-secret": "users"}),
                _ => json!({}),
            };
            let backend = default.map(|n| json!({"service": service(n)}));
            let class = if kind == 5 { json!("other") } else { Value::Null };
            let tls = match tls {
                0 => json!([{"secretName": "missing"}]),
                _ => Value::Null,
            };
            read(Kind::Ingress, json!({
                "metadata": {
                    "name": format!("i{name}"), "namespace": NAMESPACES[namespace],
                    "annotations": annotations,
                    "creationTimestamp": format!("2026-01-0{}T00:00:00Z", day + 1),
                },
                "spec": {"rules": rules, "defaultBackend": backend, "ingressClassName": class, "tls": tls}
            }))
        },
    )
}

fn service() -> impl Strategy<Value = Object> {
    (0..3u8, 0..2usize, any::<bool>()).prop_map(|(name, namespace, right)| {
        let port = if right { 80 } else { 81 };
        read(
            Kind::Service,
            json!({
                "metadata": {"name": format!("s{name}"), "namespace": NAMESPACES[namespace]},
                "spec": {"clusterIP": "None", "ports": [{"port": port}]}
            }),
        )
    })
}

fn slice() -> impl Strategy<Value = Object> {
    (0..2u8, 0..3u8, 0..2usize, 0..4u8).prop_map(|(name, service, namespace, endpoint)| {
        // Some with a problem of their own.
        let address = if endpoint == 3 { "x".to_owned() } else { format!("10.0.0.{endpoint}") };
        let endpoint = json!({"addresses": [address], "conditions": {"ready": endpoint != 0}});
        read(Kind::EndpointSlice, json!({
            "metadata": {
                "name": format!("e{name}"), "namespace": NAMESPACES[namespace],
                "labels": {"kubernetes.io/service-name": format!("s{service}")}
            },
            "addressType": "IPv4", "ports": [{"name": "", "port": 8080}], "endpoints": [endpoint]
        }))
    })
}

fn secret() -> impl Strategy<Value = Object> {
    (0..2usize, any::<bool>()).prop_map(|(namespace, valid)| {
        let data = if valid { json!({"auth": "a:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="}) } else { json!({}) };
        read(Kind::Secret, json!({
            "metadata": {"name": "users", "namespace": NAMESPACES[namespace]}, "stringData": data
        }))
    })
}

fn class() -> impl Strategy<Value = Object> {
    any::<bool>().prop_map(|ours| {
        let controller = if ours { "millrace.io/ingress-controller" } else { "example.org/other" };
        read(
            Kind::IngressClass,
            json!({"metadata": {"name": "other"}, "spec": {"controller": controller}}),
        )
    })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let object = prop_oneof![
        6 => ingress(), 2 => service(), 2 => slice(), 1 => secret(), 1 => class()
    ];
    let event = (object, prop::bool::weighted(0.75), any::<bool>()).prop_map(
        |(object, applied, settles)| (object.reference(), applied.then_some(object), settles),
    );
    prop::collection::vec(event, 0..40)
}

fn world(share_hosts: bool) -> World {
    World::new(IngressRuleSettings { share_hosts, serve_without_class: true, ..default_settings() })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_meaning_is_that_of_the_remaining_objects(events in events(), share_hosts in any::<bool>()) {
        let mut stepwise = world(share_hosts);
        let mut last: BTreeMap<ObjectRef, Object> = BTreeMap::new();
        for (reference, object, settles) in events {
            match object {
                Some(object) => {
                    stepwise.model.apply(object.clone());
                    last.insert(reference, object);
                }
                None => {
                    stepwise.model.delete(&reference);
                    last.remove(&reference);
                }
            }
            if settles {
                stepwise.settle();
            }
        }
        stepwise.settle();

        let mut fresh = world(share_hosts);
        for object in last.values().rev() {
            fresh.model.apply(object.clone());
        }
        fresh.settle();
        prop_assert_eq!(stepwise.to_string(), fresh.to_string());
        prop_assert_eq!(&stepwise.ingresses, &fresh.ingresses);
        prop_assert!(stepwise.model.settle().is_empty());
        prop_assert_eq!(stepwise.model.secrets(), fresh.model.secrets());
    }
}
