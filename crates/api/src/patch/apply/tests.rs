//! Compares these writes with the results of a cluster's API server.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kinds;

fn service() -> &'static ApiKind {
    kinds::find_kind("v1", "Service").expect("a served kind")
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).expect("a time")
}

fn object(spec: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": spec,
    })
}

fn applied(live: Option<&Value>, spec: Value, manager: &str) -> Result<Value, String> {
    apply_as(live, &object(spec), manager, false).map_err(|conflicts| conflicts.to_string())
}

fn apply_as(
    live: Option<&Value>,
    object: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyConflicts> {
    apply_server_side(service(), live, object, manager, force, Subresource::None, at(0))
}

fn updated(live: Option<&Value>, object: &Value, manager: &str) -> Value {
    update_managed_fields(service(), live, object, manager, Subresource::None, at(0))
}

/// The managers and the fields that they own.
fn owners(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries
        .iter()
        .map(|entry| {
            let manager = format!(
                "{}/{}{}",
                entry["manager"].as_str().unwrap_or_default(),
                entry["operation"].as_str().unwrap_or_default(),
                entry["subresource"].as_str().unwrap_or_default()
            );
            (manager, entry["fieldsV1"].clone())
        })
        .collect()
}

#[test]
fn a_creator_owns_the_created_object() {
    let mut new = object(json!({
        "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }],
        "selector": { "app": "web" },
        "type": "ClusterIP",
    }));
    new["metadata"]["labels"] = json!({ "app": "web" });
    new["metadata"]["uid"] = json!("4f1b");
    let created = updated(None, &new, "kubectl-create");
    assert_eq!(
        created["metadata"]["managedFields"],
        json!([{
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": { "f:labels": { ".": {}, "f:app": {} } },
                "f:spec": {
                    "f:ports": {
                        ".": {},
                        "k:{\"port\":80,\"protocol\":\"TCP\"}": {
                            ".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {},
                        },
                    },
                    "f:selector": {},
                    "f:type": {},
                },
            },
            "manager": "kubectl-create",
            "operation": "Update",
            "time": "2023-11-14T22:13:20Z",
        }])
    );
}

#[test]
fn an_applier_owns_entries_but_not_the_maps() {
    let mut new = object(json!({ "ports": [{ "port": 80, "name": "http" }] }));
    new["metadata"]["labels"] = json!({ "app": "web" });
    new["metadata"]["finalizers"] = json!(["a/b"]);
    let created = apply_as(None, &new, "me", false).expect("no conflict");
    assert_eq!(
        owners(&created),
        json!({ "me/Apply": {
            "f:metadata": { "f:finalizers": { "v:\"a/b\"": {} }, "f:labels": { "f:app": {} } },
            "f:spec": { "f:ports": {
                "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:name": {}, "f:port": {} },
            } },
        } })
    );
    assert_eq!(created["spec"], new["spec"]);
}

#[test]
fn fields_no_longer_applied_are_removed() {
    let ports = |ports: Value| json!({ "ports": ports, "sessionAffinity": "ClientIP" });
    let mut live = applied(
        None,
        ports(json!([{ "port": 80, "name": "a" }, { "port": 81, "name": "b" }])),
        "me",
    )
    .expect("no conflict");
    // No manager owns what the server set.
    live["spec"]["clusterIP"] = json!("10.96.0.9");
    live["spec"]["ports"][0]["nodePort"] = json!(30000);
    live["spec"]["ports"][1]["nodePort"] = json!(30001);
    let now =
        applied(Some(&live), json!({ "ports": [{ "port": 80 }] }), "me").expect("no conflict");
    assert_eq!(
        now["spec"],
        json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80, "nodePort": 30000 }] })
    );
}

#[test]
fn fields_with_another_owner_stay() {
    let live = applied(None, json!({ "type": "ClusterIP", "externalName": "a" }), "me")
        .expect("no conflict");
    let live = applied(Some(&live), json!({ "externalName": "a" }), "you").expect("the same value");
    let now = applied(Some(&live), json!({}), "me").expect("no conflict");
    assert_eq!(now["spec"], json!({ "externalName": "a" }));
    assert_eq!(
        owners(&now),
        json!({
            "me/Apply": { "f:spec": {} },
            "you/Apply": { "f:spec": { "f:externalName": {} } },
        })
    );
}

#[test]
fn a_different_value_for_an_owned_field_is_a_conflict() {
    let live = applied(None, json!({ "externalName": "a", "type": "X" }), "me").expect("new");
    let conflict = applied(Some(&live), json!({ "externalName": "b" }), "you");
    assert_eq!(
        conflict.expect_err("a conflict"),
        "Apply failed with 1 conflict: conflict with \"me\": .spec.externalName"
    );

    let two = object(json!({ "externalName": "b", "type": "Y" }));
    let conflicts = apply_as(Some(&live), &two, "you", false).expect_err("conflicts");
    assert_eq!(
        conflicts.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"me\":\n- .spec.externalName\n- .spec.type"
    );
    assert_eq!(
        conflicts.causes()[1],
        json!({ "reason": "FieldManagerConflict", "message": "conflict with \"me\"", "field": ".spec.type" })
    );

    let forced = apply_as(Some(&live), &two, "you", true).expect("forced");
    assert_eq!(forced["spec"], two["spec"]);
    assert_eq!(
        owners(&forced),
        json!({ "you/Apply": { "f:spec": { "f:externalName": {}, "f:type": {} } } })
    );
}

#[test]
fn a_conflict_with_an_update_has_its_version() {
    let live =
        updated(None, &object(json!({ "ports": [{ "port": 80, "targetPort": 8080 }] })), "ed");
    let other = json!({ "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 9090 }] });
    assert_eq!(
        applied(Some(&live), other, "me").expect_err("a conflict"),
        "Apply failed with 1 conflict: conflict with \"ed\" using v1: \
         .spec.ports[port=80,protocol=\"TCP\"].targetPort"
    );
}

#[test]
fn changing_a_field_takes_ownership() {
    let live = applied(None, json!({ "externalName": "a", "type": "X" }), "me").expect("new");
    let mut changed = live.clone();
    changed["spec"]["type"] = json!("Y");
    let now = updated(Some(&live), &changed, "editor");
    assert_eq!(
        owners(&now),
        json!({
            "me/Apply": { "f:spec": { "f:externalName": {} } },
            "editor/Update": { "f:spec": { "f:type": {} } },
        })
    );

    let mut removed = now.clone();
    removed["spec"].as_object_mut().expect("a spec").remove("externalName");
    let now = updated(Some(&now), &removed, "editor");
    assert_eq!(owners(&now), json!({ "editor/Update": { "f:spec": { "f:type": {} } } }));
}

#[test]
fn clients_that_send_no_managed_fields_do_not_remove_them() {
    let live = updated(None, &object(json!({ "type": "X" })), "a");
    let mut sent = live.clone();
    sent["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    assert_eq!(updated(Some(&live), &sent, "b"), live);

    sent["metadata"]["managedFields"] = json!([{}]);
    assert_eq!(updated(Some(&live), &sent, "b")["metadata"].get("managedFields"), None);
}

#[test]
fn many_updaters_become_few() {
    let mut live = updated(None, &object(json!({ "type": "X" })), "first");
    for number in 0..30 {
        let mut changed = live.clone();
        changed["metadata"]["labels"][format!("l{number}")] = json!("x");
        let name = format!("m{number}");
        live = update_managed_fields(
            service(),
            Some(&live),
            &changed,
            &name,
            Subresource::None,
            at(number),
        );
    }
    let managed = ManagedFields::of_object(&live);
    assert_eq!(managed.0.len(), 10);
    let oldest = managed.0.iter().find(|entry| entry.manager.name == "ancient-changes");
    let paths = oldest.expect("the oldest are merged").fields.list_paths();
    assert!(paths.contains(&".metadata.labels.l0".to_owned()), "{paths:?}");
    assert!(paths.contains(&".metadata.labels.l20".to_owned()), "{paths:?}");
    assert_eq!(managed.0.last().map(|entry| entry.manager.name.as_str()), Some("m29"));
}

#[test]
fn status_and_spec_have_managers_of_their_own() {
    let live = updated(None, &object(json!({ "type": "LoadBalancer" })), "creator");
    let mut changed = live.clone();
    changed["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    let now = update_managed_fields(
        service(),
        Some(&live),
        &changed,
        "balancer",
        Subresource::Status,
        at(5),
    );
    assert_eq!(
        owners(&now)["balancer/Updatestatus"],
        json!({ "f:status": { "f:loadBalancer": { ".": {}, "f:ingress": {} } } })
    );
    assert_eq!(owners(&now)["creator/Update"], owners(&live)["creator/Update"]);
}

#[test]
fn fields_from_before_the_first_apply_have_an_owner() {
    let live = object(json!({ "type": "X", "externalName": "a" }));
    let now = applied(Some(&live), json!({ "type": "X" }), "me").expect("the same value");
    assert_eq!(
        owners(&now),
        json!({
            "me/Apply": { "f:spec": { "f:type": {} } },
            "before-first-apply/Update": { "f:spec": { "f:externalName": {}, "f:type": {} } },
        })
    );
    let conflict = applied(Some(&live), json!({ "type": "Y" }), "me").expect_err("a conflict");
    assert!(conflict.contains("before-first-apply"), "{conflict}");
}

#[test]
fn kubectl_takes_over_what_it_applied_on_the_client_side() {
    let mut sent = object(json!({ "type": "X", "externalName": "a" }));
    let last = sent.to_string();
    sent["metadata"]["annotations"] = json!({ LAST_APPLIED: last });
    let live = updated(None, &sent, "kubectl-client-side-apply");
    let next = object(json!({ "type": "Y", "externalName": "a" }));
    let now = apply_as(Some(&live), &next, "kubectl", false).expect("its own");
    assert_eq!(now["spec"]["type"], "Y");
    let annotation = last_applied_annotation(&now).expect("kept");
    assert_eq!(annotation, next);
    assert!(apply_as(Some(&live), &next, "other", false).is_err());

    let mut touched = live.clone();
    touched["spec"]["type"] = json!("Z");
    let touched = updated(Some(&live), &touched, "editor");
    assert!(apply_as(Some(&touched), &next, "kubectl", false).is_err());
}

#[test]
fn list_items_go_where_the_applier_has_them() {
    let ports = |numbers: &[i64]| {
        let ports: Vec<Value> = numbers
            .iter()
            .map(|port| json!({ "port": port, "protocol": "TCP", "name": format!("p{port}") }))
            .collect();
        json!({ "ports": ports })
    };
    let numbers = |object: &Value| -> Vec<i64> {
        let ports = object["spec"]["ports"].as_array().expect("ports");
        ports.iter().filter_map(|port| port["port"].as_i64()).collect()
    };
    for (name, live, applied_ports, expected) in [
        ("new ones come behind", vec![1, 2], vec![3], vec![1, 2, 3]),
        ("order of the applier", vec![1, 2, 3], vec![3, 1], vec![2, 3, 1]),
        ("between", vec![1, 3], vec![1, 2, 3], vec![1, 2, 3]),
        ("others keep their places", vec![9, 1, 8, 2], vec![1, 2], vec![9, 1, 8, 2]),
    ] {
        let live = updated(None, &object(ports(&live)), "other");
        let now = applied(Some(&live), ports(&applied_ports), "me").expect(name);
        assert_eq!(numbers(&now), expected, "{name}");
    }
}

#[test]
fn the_other_view_of_a_kind_keeps_its_managers() {
    let events = kinds::find_kind("events.k8s.io/v1", "Event").expect("a served kind");
    let mut live = json!({ "metadata": { "name": "e" }, "note": "a" });
    let foreign = json!({
        "manager": "core", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "time": "2023-11-14T22:13:20Z", "fieldsV1": { "f:message": {}, "f:type": {} },
    });
    live["metadata"]["managedFields"] = json!([foreign.clone()]);
    let mut changed = live.clone();
    changed["type"] = json!("Normal");
    let now = update_managed_fields(events, Some(&live), &changed, "b", Subresource::None, at(1));
    assert_eq!(now["metadata"]["managedFields"][0], foreign);
    assert_eq!(owners(&now)["b/Update"], json!({ "f:type": {} }));
}

/// Specs that fit together: fields, a keyed list, a map.
fn any_object() -> impl Strategy<Value = Value> {
    let port = (80_i64..84, prop::option::of(1_i64..3), prop::bool::ANY).prop_map(
        |(number, target, is_udp)| {
            let mut port =
                json!({ "port": number, "protocol": if is_udp { "UDP" } else { "TCP" } });
            if let Some(target) = target {
                port["targetPort"] = json!(target);
            }
            port
        },
    );
    let ports = prop::collection::vec(port, 0..5).prop_map(|mut ports| {
        let mut seen = std::collections::BTreeSet::new();
        ports.retain(|port| seen.insert((port["port"].to_string(), port["protocol"].to_string())));
        ports
    });
    let labels = prop::collection::btree_map("[abc]", "[xy]", 0..3);
    let finalizers = prop::collection::btree_set("[abc]", 0..3);
    let kind = prop::option::of("[XY]");
    (ports, labels, finalizers, kind).prop_map(|(ports, labels, finalizers, kind)| {
        let mut spec = json!({});
        if !ports.is_empty() {
            spec["ports"] = json!(ports);
        }
        if let Some(kind) = kind {
            spec["type"] = json!(kind);
        }
        let mut object = object(spec);
        if !labels.is_empty() {
            object["metadata"]["labels"] = json!(labels);
        }
        if !finalizers.is_empty() {
            object["metadata"]["finalizers"] = json!(finalizers);
        }
        object
    })
}

/// Applied values must be equal, except for the order of lists.
fn contains(object: &Value, part: &Value) -> bool {
    match (object, part) {
        (Value::Object(object), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| object.get(name).is_some_and(|object| contains(object, part))),
        (Value::Array(object), Value::Array(part)) => {
            part.iter().all(|part| object.iter().any(|object| contains(object, part)))
        }
        (object, part) => object == part,
    }
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(live in any_object(), new in any_object()) {
        let live = updated(None, &live, "other");
        let once = apply_as(Some(&live), &new, "me", true).expect("forced");
        let twice = apply_as(Some(&once), &new, "me", false).expect("nothing changes");
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn applied_fields_are_in_the_object(live in any_object(), new in any_object()) {
        let live = updated(None, &live, "other");
        let now = apply_as(Some(&live), &new, "me", true).expect("forced");
        prop_assert!(contains(&now, &new), "{} is not in {}", new, now);
    }

    #[test]
    fn a_sole_applier_gets_exactly_what_it_applies(first in any_object(), second in any_object()) {
        let live = apply_as(None, &first, "me", false).expect("no other manager");
        let now = apply_as(Some(&live), &second, "me", false).expect("no other manager");
        let fresh = apply_as(None, &second, "me", false).expect("no other manager");
        prop_assert_eq!(owners(&now), owners(&fresh));
        let lists_in_order = |object: &Value| {
            let mut object = unmanaged(object);
            for path in ["/spec/ports", "/metadata/finalizers"] {
                if let Some(Value::Array(items)) = object.pointer_mut(path) {
                    items.sort_by_key(Value::to_string);
                }
            }
            object
        };
        prop_assert_eq!(lists_in_order(&now), lists_in_order(&fresh));
    }

    #[test]
    fn no_field_has_two_updaters(first in any_object(), second in any_object()) {
        let live = updated(None, &first, "a");
        let now = updated(Some(&live), &second, "b");
        let managed = ManagedFields::of_object(&now);
        if let [one, other] = managed.0.as_slice() {
            prop_assert!(one.fields.intersection(&other.fields).is_empty());
        }
        let all = managed.0.iter().fold(FieldSet::default(), |all, one| all.union(&one.fields));
        let there = typed::collect_fields(&unmanaged(&now), TypeNode::root(service()));
        let gone = all.with_named_parents().difference(&there.with_named_parents());
        prop_assert!(gone.is_empty(), "{:?} are owned but not there", gone.list_paths());
    }
}

/// Not measured: with a search for each item this would need hours.
#[test]
fn long_lists_are_merged_by_maps() {
    const MANY: usize = 20_000;
    let finalizers = |order: Box<dyn Iterator<Item = usize>>| -> Value {
        let values: Vec<String> = order.map(|n| format!("a/{n}")).collect();
        let mut object = object(json!({}));
        object["metadata"]["finalizers"] = json!(values);
        object
    };
    let first = apply_as(None, &finalizers(Box::new(0..MANY)), "a", false).expect("applied");
    let second =
        apply_as(Some(&first), &finalizers(Box::new((0..MANY).rev())), "b", true).expect("applied");
    let merged = second["metadata"]["finalizers"].as_array().expect("a list");
    assert_eq!(merged.len(), MANY);
    assert_eq!(merged[0], format!("a/{}", MANY - 1));
}

#[test]
fn many_updating_managers_of_a_client_are_merged_into_one() {
    let mut object = object(json!({ "externalName": "a" }));
    let entries: Vec<Value> = (0..5000)
        .map(|n| {
            json!({
                "manager": format!("m{n}"), "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "time": format!("2020-01-01T00:{:02}:00Z", n % 60),
                "fieldsV1": { "f:metadata": { "f:labels": { format!("f:l{n}"): {} } } },
            })
        })
        .collect();
    object["metadata"]["managedFields"] = json!(entries);
    let live = updated(None, &self::object(json!({})), "first");
    let updated = updated(Some(&live), &object, "last");
    let managers = updated["metadata"]["managedFields"].as_array().expect("managers");
    assert!(managers.len() <= 12, "{}", managers.len());
    assert!(managers.iter().any(|entry| entry["manager"] == "ancient-changes"));
}
