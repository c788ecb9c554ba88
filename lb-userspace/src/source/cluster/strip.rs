//! Takes out of objects, before they are read, what nobody here asks for and what is most of
//! their text. What is held of what is left is decided by `Object::read`.

use serde_json::{Map, Value};

use crate::model::Kind;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub fn strip(kind: Kind, object: &mut Value) {
    if let Some(metadata) = map(object, "metadata") {
        for field in ["managedFields", "ownerReferences", "finalizers"] {
            metadata.remove(field);
        }
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
    }
    match kind {
        Kind::EndpointSlice => {
            let endpoints = object.get_mut("endpoints").and_then(Value::as_array_mut);
            for endpoint in endpoints.into_iter().flatten().filter_map(Value::as_object_mut) {
                endpoint.remove("targetRef");
                endpoint.remove("hostname");
            }
        }
        // Above all the list of images.
        Kind::Node => {
            if let Some(status) = map(object, "status") {
                status.retain(|field, _| field == "addresses");
            }
        }
        Kind::Service | Kind::Endpoints => {}
    }
}

fn map<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(field)?.as_object_mut()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_rules_ask_for_stays() {
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
            "metadata": {"name": "a"}, "spec": {"taints": []},
            "status": {"addresses": [], "images": [{}], "conditions": []}
        });
        strip(Kind::Node, &mut node);
        assert_eq!(node["status"], json!({"addresses": []}));
        assert_eq!(node["spec"], json!({"taints": []}));
    }
}
