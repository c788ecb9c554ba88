//! Compares patches of kubectl with the results of a cluster's API server.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kinds;

fn patched(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    apply_strategic_patch(kinds::find_kind("v1", "Service").expect("a served kind"), object, patch)
}

#[test]
fn patches_are_merged_by_the_types_of_fields() {
    let ports = |ports: Value| json!({ "spec": { "ports": ports } });
    let finalizers = |values: Value| json!({ "metadata": { "finalizers": values } });
    let cases = [
        (
            "fields are merged, null removes",
            json!({ "metadata": { "labels": { "a": "1", "b": "2" } } }),
            json!({ "metadata": { "labels": { "a": null, "c": "3" } } }),
            json!({ "metadata": { "labels": { "b": "2", "c": "3" } } }),
        ),
        (
            "ports are merged by number",
            ports(json!([{ "port": 80, "name": "a", "nodePort": 30000 }, { "port": 81 }])),
            ports(json!([{ "port": 80, "targetPort": 8080 }, { "port": 82 }])),
            ports(json!([
                { "port": 80, "name": "a", "nodePort": 30000, "targetPort": 8080 },
                { "port": 82 },
                { "port": 81 },
            ])),
        ),
        (
            "a port is deleted",
            ports(json!([{ "port": 80 }, { "port": 81 }])),
            ports(json!([{ "port": 80, "$patch": "delete" }])),
            ports(json!([{ "port": 81 }])),
        ),
        (
            "all ports are replaced",
            ports(json!([{ "port": 80 }, { "port": 81 }])),
            ports(json!([{ "port": 82 }, { "$patch": "replace" }])),
            ports(json!([{ "port": 82 }])),
        ),
        (
            "a map is replaced",
            json!({ "spec": { "selector": { "a": "1" }, "type": "X" } }),
            json!({ "spec": { "selector": { "b": "2", "$patch": "replace" } } }),
            json!({ "spec": { "selector": { "b": "2" }, "type": "X" } }),
        ),
        (
            "a map is emptied",
            json!({ "spec": { "selector": { "a": "1" } } }),
            json!({ "spec": { "selector": { "$patch": "delete" } } }),
            json!({ "spec": { "selector": {} } }),
        ),
        (
            "other lists are replaced",
            json!({ "spec": { "externalIPs": ["192.0.2.1"] } }),
            json!({ "spec": { "externalIPs": ["192.0.2.2"] } }),
            json!({ "spec": { "externalIPs": ["192.0.2.2"] } }),
        ),
        (
            "values are added once",
            finalizers(json!(["a/a", "a/b"])),
            finalizers(json!(["a/b", "a/c"])),
            finalizers(json!(["a/a", "a/b", "a/c"])),
        ),
        (
            "new ports come in the order of the patch, before those that it does not name",
            ports(json!([{ "port": 80 }, { "port": 81 }])),
            ports(json!([{ "port": 83 }, { "port": 82 }])),
            ports(json!([{ "port": 83 }, { "port": 82 }, { "port": 80 }, { "port": 81 }])),
        ),
        (
            "new values come before those that the patch does not name",
            finalizers(json!(["a/a", "a/b"])),
            finalizers(json!(["a/d", "a/c"])),
            finalizers(json!(["a/d", "a/c", "a/a", "a/b"])),
        ),
        (
            "values are deleted",
            finalizers(json!(["a/a", "a/b"])),
            json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["a/a"] } }),
            finalizers(json!(["a/b"])),
        ),
        (
            "only some fields are retained",
            json!({ "spec": { "type": "X", "externalName": "a" } }),
            json!({ "spec": { "$retainKeys": ["type"], "type": "Y" } }),
            json!({ "spec": { "type": "Y" } }),
        ),
        (
            "ports come in the client's order",
            ports(json!([{ "port": 80 }, { "port": 81 }])),
            json!({ "spec": {
                "$setElementOrder/ports": [{ "port": 82 }, { "port": 81 }, { "port": 80 }],
                "ports": [{ "port": 82 }],
            } }),
            ports(json!([{ "port": 82 }, { "port": 81 }, { "port": 80 }])),
        ),
        (
            "what the client does not know of keeps its node",
            ports(json!([{ "port": 79 }, { "port": 80 }, { "port": 90 }, { "port": 81 }])),
            json!({ "spec": { "$setElementOrder/ports": [{ "port": 80 }, { "port": 81 }] } }),
            ports(json!([{ "port": 79 }, { "port": 80 }, { "port": 90 }, { "port": 81 }])),
        ),
        (
            "directives for what is not there are forgotten",
            json!({}),
            json!({ "spec": {
                "$setElementOrder/ports": [{ "port": 80 }],
                "ports": [{ "port": 80, "name": null }, { "port": 81, "$patch": "delete" }],
            } }),
            ports(json!([{ "port": 80 }])),
        ),
    ];
    for (name, object, patch, expected) in cases {
        assert_eq!(patched(&object, &patch), Ok(expected), "{name}");
    }
}

#[test]
fn malformed_patches_are_refused() {
    for (name, patch) in [
        ("a list", json!([])),
        ("an unknown directive", json!({ "spec": { "$patch": "turn" } })),
        ("an item without key", json!({ "spec": { "ports": [{ "name": "a" }] } })),
        ("an item that is none", json!({ "spec": { "ports": [80] } })),
        ("retained, but not this", json!({ "spec": { "$retainKeys": ["a"], "type": "X" } })),
        (
            "not in order",
            json!({ "spec": { "$setElementOrder/ports": [{ "port": 1 }], "ports": [{ "port": 2 }] } }),
        ),
    ] {
        let object = json!({ "spec": { "ports": [{ "port": 80 }], "type": "Y" } });
        assert!(matches!(patched(&object, &patch), Err(PatchError::Malformed(_))), "{name}");
    }
}

/// The patch that a client would compute: the fields that differ, and the order of lists.
fn difference(from: &Value, to: &Value, node: TypeNode) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut patch = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, to) in to {
        let node = node.child(name);
        match from.get(name) {
            Some(from) if from == to => {}
            Some(from) if from.is_object() && to.is_object() => {
                patch.insert(name.clone(), difference(from, to, node));
            }
            Some(from) if node.is_merged() => of_lists(&mut patch, name, from, to, node),
            _ => {
                patch.insert(name.clone(), to.clone());
            }
        }
    }
    Value::Object(patch)
}

fn of_lists(patch: &mut PatchEntries, name: &str, from: &Value, to: &Value, node: TypeNode) {
    let (from, to) = (list_or_empty(Some(from)), list_or_empty(Some(to)));
    let find = |list: &[Value], item: &Value| {
        let wanted = identity(item, node);
        list.iter().find(|one| wanted.is_some() && identity(one, node) == wanted).cloned()
    };
    let gone = from.iter().filter(|item| find(to, item).is_none());
    let Some(key) = node.merge_key() else {
        let gone: Vec<&Value> = gone.collect();
        patch.insert(format!("{DELETE}{name}"), json!(gone));
        patch.insert(format!("{ORDER}{name}"), json!(to));
        let new: Vec<&Value> = to.iter().filter(|item| find(from, item).is_none()).collect();
        patch.insert(name.to_owned(), json!(new));
        return;
    };
    let mut changes: Vec<Value> =
        gone.map(|item| json!({ key: item[key], PATCH: "delete" })).collect();
    for item in to {
        let mut change = match find(from, item) {
            Some(before) if before == *item => continue,
            Some(before) => difference(&before, item, node.item()),
            None => item.clone(),
        };
        change[key] = item[key].clone();
        changes.push(change);
    }
    patch.insert(name.to_owned(), json!(changes));
    let order: Vec<Value> = to.iter().map(|item| json!({ key: item[key] })).collect();
    patch.insert(format!("{ORDER}{name}"), json!(order));
}

fn any_object() -> impl Strategy<Value = Value> {
    let port = (80_i64..86, prop::option::of(1_i64..3), prop::option::of("[ab]"));
    let ports = prop::collection::vec(port, 0..6).prop_map(|ports| {
        let mut seen = BTreeSet::new();
        let ports = ports.into_iter().filter(|(number, ..)| seen.insert(*number));
        let ports = ports.map(|(number, target, name)| {
            let mut port = json!({ "port": number });
            if let Some(target) = target {
                port["targetPort"] = json!(target);
            }
            if let Some(name) = name {
                port["name"] = json!(name);
            }
            port
        });
        ports.collect::<Vec<_>>()
    });
    let finalizers = prop::collection::hash_set("[a-e]", 0..5);
    let labels = prop::collection::btree_map("[abc]", "[xy]", 0..3);
    let addresses = prop::option::of(prop::collection::vec("[xy]", 0..3));
    (ports, finalizers, labels, addresses).prop_map(|(ports, finalizers, labels, addresses)| {
        let mut object = json!({
            "metadata": { "finalizers": finalizers, "labels": labels },
            "spec": { "ports": ports },
        });
        if let Some(addresses) = addresses {
            object["spec"]["externalIPs"] = json!(addresses);
        }
        object
    })
}

proptest! {
    #[test]
    fn the_difference_between_two_objects_leads_from_one_to_the_other(
        from in any_object(),
        to in any_object(),
    ) {
        let kind = kinds::find_kind("v1", "Service").expect("a served kind");
        let patch = difference(&from, &to, TypeNode::root(kind));
        prop_assert_eq!(patched(&from, &patch), Ok(to), "by {}", patch);
    }
}

/// Not measured: with a search for each item this would need minutes.
#[test]
fn long_lists_are_merged_by_maps() {
    const MANY: usize = 60_000;
    let references = |from: usize| -> Value {
        (from..from + MANY).map(|n| json!({ "uid": n.to_string(), "name": "a" })).collect()
    };
    let order: Value = (0..2 * MANY).rev().map(|n| json!({ "uid": n.to_string() })).collect();
    let object = json!({ "metadata": { "ownerReferences": references(0) } });
    let patch = json!({ "metadata": {
        "ownerReferences": references(MANY / 2),
        "$setElementOrder/ownerReferences": order,
    } });
    let merged = patched(&object, &patch).expect("merged");
    let merged = merged["metadata"]["ownerReferences"].as_array().expect("a list");
    assert_eq!(merged.len(), MANY + MANY / 2);
    assert_eq!(merged[0]["uid"], (MANY + MANY / 2 - 1).to_string());
}
