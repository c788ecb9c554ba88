//! Removes from an object, before it is decoded, every field that no rule uses, and every null.
//!
//! The API treats null as absent, and stores nulls in fields that its own types require. A field
//! that no rule uses must not make an object unreadable, whatever its value.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Kind;
use crate::kinds::service::{CONDITION, NODE_PORTS_CONDITION};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const METADATA: [&str; 7] =
    ["name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp"];

pub(crate) fn strip_unused_fields(kind: Kind, object: &mut Value) {
    match kind {
        // Addresses are assigned to the version that was read.
        Kind::Service => keep(object, "metadata", &[&METADATA[..], &["resourceVersion"]].concat()),
        _ => keep(object, "metadata", &METADATA),
    }
    if let Some(annotations) = map(object, "metadata").and_then(|all| all.get_mut("annotations"))
        && let Some(annotations) = annotations.as_object_mut()
    {
        annotations.remove(LAST_APPLIED);
    }
    match kind {
        Kind::Service => {
            keep(object, "status", &["loadBalancer", "conditions"]);
            strip_conditions(object);
            if let Some(spec) = map(object, "spec")
                && spec.get("type").and_then(Value::as_str) != Some("LoadBalancer")
            {
                spec.remove("selector");
            }
        }
        Kind::EndpointSlice => {
            let endpoints = object.get_mut("endpoints").and_then(Value::as_array_mut);
            for endpoint in endpoints.into_iter().flatten().filter_map(Value::as_object_mut) {
                for field in ["targetRef", "hostname", "deprecatedTopology"] {
                    endpoint.remove(field);
                }
            }
        }
        Kind::Node => {
            keep(object, "spec", &["taints", "unschedulable"]);
            // Most of a Node's size is its list of images.
            keep(object, "status", &["addresses", "conditions", "daemonEndpoints"]);
            strip_node_conditions(object);
        }
        // It is written only if it differs.
        Kind::Ingress => keep(object, "status", &["loadBalancer"]),
        Kind::Secret => {
            let fields = ["apiVersion", "kind", "metadata", "data", "stringData", "type"];
            if let Some(secret) = object.as_object_mut() {
                secret.retain(|field, _| fields.contains(&field.as_str()));
            }
        }
        Kind::Namespace => {
            if let Some(namespace) = object.as_object_mut() {
                namespace.retain(|field, _| {
                    ["apiVersion", "kind", "metadata"].contains(&field.as_str())
                });
            }
        }
        Kind::L2Advertisement | Kind::BgpAdvertisement | Kind::BfdProfile => {
            if let Some(object) = object.as_object_mut() {
                object.entry("spec").or_insert_with(|| Map::new().into());
            }
        }
        Kind::Endpoints
        | Kind::IngressClass
        | Kind::AddressPool
        | Kind::IpAddressPool
        | Kind::BgpPeer
        | Kind::MetallbBgpPeer
        | Kind::Community => {}
    }
    remove_nulls(object);
}

/// Leaves the conditions that are Millrace's own.
fn strip_conditions(service: &mut Value) {
    let Some(status) = map(service, "status") else { return };
    let is_own = |condition: &&Value, type_: &str| {
        condition["type"] == type_ && Condition::deserialize(*condition).is_ok()
    };
    let conditions = status.remove("conditions");
    let conditions = conditions.as_ref().and_then(Value::as_array);
    let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
    let own = [CONDITION, NODE_PORTS_CONDITION]
        .map(|type_| conditions.iter().find(|condition| is_own(condition, type_)).cloned());
    let own: Vec<Value> = own.into_iter().flatten().collect();
    if !own.is_empty() {
        status.insert("conditions".to_owned(), Value::Array(own));
    }
}

/// Leaves what the condition `Ready` of a Node says, and whether its network is unavailable.
fn strip_node_conditions(node: &mut Value) {
    let Some(status) = map(node, "status") else { return };
    let conditions = status.remove("conditions");
    let conditions = conditions.as_ref().and_then(Value::as_array).into_iter().flatten();
    let mut ready = None;
    let mut kept = Vec::new();
    for condition in conditions {
        match condition["type"].as_str() {
            Some("Ready") => ready = Some(condition),
            Some(name @ "NetworkUnavailable") if condition["status"] == "True" => {
                kept.push(json!({"type": name, "status": "True"}));
            }
            _ => {}
        }
    }
    if let Some((ready, state)) = ready.and_then(|one| Some((one, one["status"].as_str()?))) {
        let message = ready["message"].as_str().unwrap_or_default();
        let ready = json!({"type": "Ready", "status": state, "message": message});
        kept.push(ready);
    }
    if !kept.is_empty() {
        status.insert("conditions".to_owned(), Value::Array(kept));
    }
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
                "zone": "z", "hints": {"forZones": []}, "targetRef": {"kind": "Pod"}, "hostname": "h"
            }]
        });
        strip_unused_fields(Kind::EndpointSlice, &mut slice);
        let expected = json!({
            "metadata": {
                "name": "web-1", "labels": {"a": "b"}, "annotations": {"other": "kept"}
            },
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": "a",
                "zone": "z", "hints": {"forZones": []}
            }]
        });
        assert_eq!(slice, expected);

        let mut node = json!({
            "metadata": {"name": "a"}, "spec": {"taints": [], "podCIDR": "10.244.0.0/24"},
            "status": {"addresses": [], "images": [{}], "conditions": []}
        });
        strip_unused_fields(Kind::Node, &mut node);
        assert_eq!(node["status"], json!({"addresses": []}));
        assert_eq!(node["spec"], json!({"taints": []}));
    }

    #[test]
    fn nulls_are_removed_at_every_depth() {
        let mut service = json!({
            "metadata": {"name": "web", "labels": null},
            "spec": {"ports": [{"port": 80, "name": null}], "clusterIPs": null}
        });
        strip_unused_fields(Kind::Service, &mut service);
        let expected = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
        assert_eq!(service, expected);
    }
}
