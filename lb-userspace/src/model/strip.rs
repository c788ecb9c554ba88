//! Removes from an object, before it is decoded, every field that no rule uses, and every null.
//!
//! The API treats null as absent, and stores nulls in fields that its own types require. A field
//! that no rule uses must not make an object unreadable, whatever its value.

use serde_json::{Map, Value};

use super::Kind;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const METADATA: [&str; 7] =
    ["name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp"];

pub fn strip(kind: Kind, object: &mut Value) {
    keep(object, "metadata", &METADATA);
    if let Some(annotations) = map(object, "metadata").and_then(|all| all.get_mut("annotations"))
        && let Some(annotations) = annotations.as_object_mut()
    {
        annotations.remove(LAST_APPLIED);
    }
    match kind {
        Kind::Service => {
            keep(object, "status", &["loadBalancer"]);
            if let Some(spec) = map(object, "spec") {
                spec.remove("selector");
            }
        }
        Kind::EndpointSlice => {
            let endpoints = object.get_mut("endpoints").and_then(Value::as_array_mut);
            for endpoint in endpoints.into_iter().flatten().filter_map(Value::as_object_mut) {
                for field in ["targetRef", "hostname", "deprecatedTopology", "zone"] {
                    endpoint.remove(field);
                }
            }
        }
        Kind::Node => {
            keep(object, "spec", &["taints"]);
            // Most of a Node's size is its list of images.
            keep(object, "status", &["addresses"]);
        }
        // It is written only if it differs.
        Kind::Ingress => keep(object, "status", &["loadBalancer"]),
        Kind::Secret => {
            let fields = ["apiVersion", "kind", "metadata", "data", "stringData", "type"];
            if let Some(secret) = object.as_object_mut() {
                secret.retain(|field, _| fields.contains(&field.as_str()));
            }
        }
        Kind::Endpoints | Kind::IngressClass => {}
    }
    remove_nulls(object);
}

fn keep(object: &mut Value, part: &str, fields: &[&str]) {
    if let Some(part) = map(object, part) {
        part.retain(|field, _| fields.contains(&field.as_str()));
    }
}

fn map<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(field)?.as_object_mut()
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_rules_use_remain() {
        let mut slice = json!({
            "metadata": {
                "name": "web-1", "labels": {"a": "b"}, "managedFields": [{}], "finalizers": ["x"],
                "annotations": {LAST_APPLIED: "{}", "other": "kept"}
            },
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": "a",
                "hints": {"forZones": []}, "targetRef": {"kind": "Pod"}, "hostname": "h"
            }]
        });
        strip(Kind::EndpointSlice, &mut slice);
        let expected = json!({
            "metadata": {
                "name": "web-1", "labels": {"a": "b"}, "annotations": {"other": "kept"}
            },
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": "a",
                "hints": {"forZones": []}
            }]
        });
        assert_eq!(slice, expected);

        let mut node = json!({
            "metadata": {"name": "a"}, "spec": {"taints": [], "podCIDR": "10.244.0.0/24"},
            "status": {"addresses": [], "images": [{}], "conditions": []}
        });
        strip(Kind::Node, &mut node);
        assert_eq!(node["status"], json!({"addresses": []}));
        assert_eq!(node["spec"], json!({"taints": []}));
    }

    #[test]
    fn nulls_are_removed_at_every_depth() {
        let mut service = json!({
            "metadata": {"name": "web", "labels": null},
            "spec": {"ports": [{"port": 80, "name": null}], "clusterIPs": null}
        });
        strip(Kind::Service, &mut service);
        let expected = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
        assert_eq!(service, expected);
    }
}
