//! Status, finalizers, metadata, namespaces.

use serde_json::{Value, json};

use super::patches::{one, service};
use super::steps::ComparedPart::Nothing;
use super::steps::{
    CONFIG_MAPS, NAMESPACE, SERVICES, Step, delete, delete_with, get, merge, post, put, request,
    strategic,
};

pub fn status() -> Vec<Step> {
    let balancer =
        |address: &str| json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
    let mut balanced = service();
    balanced["spec"]["type"] = json!("LoadBalancer");
    balanced["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    balanced["status"] = balancer("192.0.2.9")["status"].clone();
    vec![
        post("create with a status", SERVICES, balanced),
        merge("merge the status", format!("{}/status", one()), balancer("192.0.2.1")),
        merge(
            "merge the specification by the status",
            format!("{}/status", one()),
            json!({"spec": {"selector": {"app": "two"}}}),
        ),
        merge(
            "merge metadata by the status",
            format!("{}/status", one()),
            json!({"metadata": {"annotations": {"by": "status"}, "labels": {"by": "status"}}}),
        ),
        merge("merge the status by the object", one(), balancer("192.0.2.2")),
        merge("an invalid address", format!("{}/status", one()), balancer("x")),
        merge(
            "an address and a host",
            format!("{}/status", one()),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "hostname": "a.example.com"}]}}}),
        ),
        merge(
            "ports",
            format!("{}/status", one()),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]}]}}}),
        ),
        merge(
            "an unknown mode",
            format!("{}/status", one()),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "Some"}]}}}),
        ),
        merge(
            "conditions",
            format!("{}/status", one()),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Fine", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}),
        ),
        merge(
            "an invalid condition",
            format!("{}/status", one()),
            json!({"status": {"conditions": [{"type": "Ready", "status": "Perhaps", "reason": "", "message": ""}]}}),
        ),
        get("the status", format!("{}/status", one())),
        put(
            "replace an old version",
            format!("{}/status", one()),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one", "resourceVersion": "1"}, "spec": {"ports": [{"port": 80}]}}),
        ),
        strategic(
            "conditions by their type",
            format!("{}/status", one()),
            json!({"status": {"conditions": [{"type": "Other", "status": "False", "reason": "No", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}),
        ),
        get("the status of what has none", format!("{CONFIG_MAPS}/none/status")),
        merge("to another type", one(), json!({"spec": {"type": "ClusterIP"}})),
    ]
}

pub fn deletions() -> Vec<Step> {
    let map = |name: &str| format!("{CONFIG_MAPS}/{name}");
    let with = |name: &str, finalizers: Value| json!({"metadata": {"name": name, "finalizers": finalizers}});
    let owned = |name: &str| json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "{uid}"}]}});
    vec![
        post("create", CONFIG_MAPS, with("a", json!([])))
            .capture("uid", "/metadata/uid")
            .capture("version", "/metadata/resourceVersion"),
        delete_with("of another UID", map("a"), json!({"preconditions": {"uid": "x"}})),
        delete_with(
            "of another version",
            map("a"),
            json!({"preconditions": {"resourceVersion": "1"}}),
        ),
        delete_with(
            "of this UID and version",
            map("a"),
            json!({"preconditions": {"uid": "{uid}", "resourceVersion": "{version}"}}),
        ),
        delete("again", map("a")),
        post("create with finalizers", CONFIG_MAPS, with("b", json!(["example.com/x"]))),
        delete("with a finalizer", map("b")),
        delete("again with a finalizer", map("b")),
        get("what is being deleted", map("b")),
        put(
            "replace what is being deleted",
            map("b"),
            json!({"metadata": {"name": "b", "finalizers": ["example.com/x"]}, "data": {"a": "1"}}),
        ),
        post("create under its name", CONFIG_MAPS, with("b", json!([]))),
        merge(
            "another finalizer",
            map("b"),
            json!({"metadata": {"finalizers": ["example.com/x", "example.com/y"]}}),
        ),
        merge("no finalizers", map("b"), json!({"metadata": {"finalizers": []}})),
        get("what is deleted", map("b")),
        post("create for orphans", CONFIG_MAPS, with("c", json!([]))),
        delete("by the policy Orphan", format!("{}?propagationPolicy=Orphan", map("c"))),
        merge("without its finalizer", map("c"), json!({"metadata": {"finalizers": null}})),
        post("create for the foreground", CONFIG_MAPS, with("d", json!([]))),
        delete_with(
            "by the policy Foreground",
            map("d"),
            json!({"propagationPolicy": "Foreground"}),
        ),
        merge(
            "without the foreground's finalizer",
            map("d"),
            json!({"metadata": {"finalizers": null}}),
        ),
        post("create for orphans of old", CONFIG_MAPS, with("e", json!([]))),
        delete_with("by orphanDependents", map("e"), json!({"orphanDependents": false})),
        post("create for options", CONFIG_MAPS, with("f", json!([]))),
        delete_with(
            "another kind of options",
            map("f"),
            json!({"kind": "Service", "apiVersion": "v1"}),
        ),
        delete_with(
            "with an unknown field",
            map("f"),
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "unknown": 1}),
        ),
        post("create for a grace period", CONFIG_MAPS, with("g", json!([]))),
        delete("with a grace period", format!("{}?gracePeriodSeconds=30", map("g"))),
        delete("with a broken grace period", format!("{}?gracePeriodSeconds=x", map("g"))),
        post("an owned object", CONFIG_MAPS, owned("h")),
        post(
            "an owner without a UID",
            CONFIG_MAPS,
            json!({"metadata": {"name": "i", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}]}}),
        ),
        post(
            "two controllers",
            CONFIG_MAPS,
            json!({"metadata": {"name": "i", "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "2", "controller": true},
            ]}}),
        ),
        post("an invalid finalizer", CONFIG_MAPS, with("i", json!(["no-domain"]))),
        post(
            "create for the collection",
            CONFIG_MAPS,
            json!({"metadata": {"name": "j", "labels": {"app": "x"}}}),
        )
        .compare(Nothing),
        request(
            "a dry run for the collection",
            "DELETE",
            format!("{CONFIG_MAPS}?labelSelector=app%3Dx&dryRun=All"),
        ),
        request("the collection", "DELETE", format!("{CONFIG_MAPS}?labelSelector=app%3Dx")),
        request("an empty collection", "DELETE", format!("{CONFIG_MAPS}?labelSelector=app%3Dx")),
        request(
            "the collection by a broken selector",
            "DELETE",
            format!("{CONFIG_MAPS}?labelSelector=%3D"),
        ),
        request("all namespaces' collection", "DELETE", "/api/v1/configmaps"),
    ]
}

pub fn metadata() -> Vec<Step> {
    let create = |name, metadata: Value| post(name, CONFIG_MAPS, json!({"metadata": metadata}));
    let map = format!("{CONFIG_MAPS}/a");
    let long = "x".repeat(300);
    vec![
        create("a name and a prefix", json!({"name": "a", "generateName": "b-"})),
        create("a long name", json!({"name": long})),
        create("a long prefix", json!({"generateName": format!("{}A", "x".repeat(80))})),
        create("an empty name", json!({"name": ""})),
        create("a name with dots", json!({"name": "a.b"})),
        create("a name with a slash", json!({"name": "a/b"})),
        create("a number as the name", json!({"name": 1})),
        create(
            "a client's own UID and time",
            json!({"name": "b", "uid": "x", "creationTimestamp": "2001-02-03T04:05:06Z", "generation": 7, "selfLink": "y"}),
        ),
        create("a version", json!({"name": "c", "resourceVersion": "1"})),
        create(
            "a deletion",
            json!({"name": "d", "deletionTimestamp": "2001-02-03T04:05:06Z", "deletionGracePeriodSeconds": 1}),
        ),
        create("a long label", json!({"name": "e", "labels": {"a": "x".repeat(64)}})),
        create("an invalid label key", json!({"name": "e", "labels": {"-a": "x", "b/c/d": "y"}})),
        create("an invalid annotation key", json!({"name": "e", "annotations": {"a b": "x"}})),
        create("long annotations", json!({"name": "e", "annotations": {"a": "x".repeat(300_000)}})),
        create("a null label", json!({"name": "e", "labels": {"a": null}})),
        create("an unknown field", json!({"name": "f", "unknown": 1})),
        post(
            "a missing namespace",
            "/api/v1/namespaces/none/configmaps",
            json!({"metadata": {"name": "a"}}),
        ),
        post(
            "another namespace",
            CONFIG_MAPS,
            json!({"metadata": {"name": "a", "namespace": "default"}}),
        ),
        post("no metadata", CONFIG_MAPS, json!({"data": {"a": "1"}})),
        post("null metadata", CONFIG_MAPS, json!({"metadata": null})),
        post("only a kind", CONFIG_MAPS, json!({"kind": "ConfigMap"})),
        post("only a version", CONFIG_MAPS, json!({"apiVersion": "v1", "metadata": {"name": "g"}})),
        post("a number as data", CONFIG_MAPS, json!({"metadata": {"name": "h"}, "data": {"a": 1}})),
        post("null data", CONFIG_MAPS, json!({"metadata": {"name": "i"}, "data": {"a": null}})),
        post(
            "a field in another case",
            CONFIG_MAPS,
            json!({"metadata": {"name": "j"}, "Data": {"a": "1"}}),
        ),
        post("a duplicate", CONFIG_MAPS, Value::Null)
            .body("application/json", r#"{"metadata":{"name":"k"},"data":{"a":"1","a":"2"}}"#),
        post("a duplicate, strictly", format!("{CONFIG_MAPS}?fieldValidation=Strict"), Value::Null)
            .body(
                "application/json",
                r#"{"metadata":{"name":"l"},"data":{"a":"1","a":"2"},"x":1,"y":{"z":1}}"#,
            ),
        post("text after the object", CONFIG_MAPS, Value::Null)
            .body("application/json", r#"{"metadata":{"name":"m"}} x"#),
        post("YAML", CONFIG_MAPS, Value::Null)
            .body("application/yaml", "metadata: {name: n}\ndata: {a: 'yes'}\n"),
        post("YAML with a boolean", CONFIG_MAPS, Value::Null)
            .body("application/yaml", "metadata: {name: o}\ndata: {a: yes}\n"),
        post("two YAML documents", CONFIG_MAPS, Value::Null)
            .body("application/yaml", "metadata: {name: p}\n---\nmetadata: {name: q}\n"),
        post("no content type", CONFIG_MAPS, Value::Null).body("", r#"{"metadata":{"name":"r"}}"#),
        post("a broken content type", CONFIG_MAPS, Value::Null)
            .body("application", r#"{"metadata":{"name":"s"}}"#),
        post("XML", CONFIG_MAPS, Value::Null).body("application/xml", "<a/>"),
        put("PUT creates nothing", format!("{CONFIG_MAPS}/t"), json!({"metadata": {"name": "t"}})),
        put("another name", map.clone(), json!({"metadata": {"name": "b"}})),
        put("no name", map.clone(), json!({"metadata": {}})),
        put("another UID", map.clone(), json!({"metadata": {"name": "a", "uid": "x"}})),
        put(
            "another generation",
            map.clone(),
            json!({"metadata": {"name": "a", "generation": 9, "creationTimestamp": null}}),
        ),
        put(
            "immutable from now on",
            map.clone(),
            json!({"metadata": {"name": "a"}, "immutable": true, "data": {"a": "1"}}),
        ),
        put(
            "a change of what is immutable",
            map.clone(),
            json!({"metadata": {"name": "a"}, "data": {"a": "2"}}),
        ),
        put(
            "a PUT at an empty name",
            format!("{CONFIG_MAPS}/"),
            json!({"metadata": {"name": "a"}}),
        ),
        post(
            "a broken dry run",
            format!("{CONFIG_MAPS}?dryRun=all"),
            json!({"metadata": {"name": "u"}}),
        ),
        post(
            "a manager",
            format!("{CONFIG_MAPS}?fieldManager=me"),
            json!({"metadata": {"name": "v"}, "data": {"a": "1"}, "binaryData": {"b": "eA=="}}),
        ),
        post(
            "bad binary data",
            CONFIG_MAPS,
            json!({"metadata": {"name": "w"}, "binaryData": {"b": "!"}}),
        ),
        post(
            "a key in both data",
            CONFIG_MAPS,
            json!({"metadata": {"name": "w"}, "data": {"a": "1"}, "binaryData": {"a": "eA=="}}),
        ),
        post(
            "an invalid key",
            CONFIG_MAPS,
            json!({"metadata": {"name": "w"}, "data": {"a b": "1", "..": "2"}}),
        ),
    ]
}

pub fn namespaces() -> Vec<Step> {
    let other = "/api/v1/namespaces/other";
    vec![
        post(
            "create",
            "/api/v1/namespaces",
            json!({"metadata": {"name": "other", "labels": {"a": "b"}}}),
        ),
        post("create again", "/api/v1/namespaces", json!({"metadata": {"name": "other"}})),
        post("an invalid name", "/api/v1/namespaces", json!({"metadata": {"name": "a.b"}})),
        merge(
            "another label of its name",
            other,
            json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "x"}}}),
        ),
        merge("other finalizers", other, json!({"spec": {"finalizers": []}})),
        get("the namespace", other),
        get("the status", format!("{other}/status")),
        post(
            "an object",
            format!("{other}/configmaps"),
            json!({"metadata": {"name": "a", "finalizers": ["example.com/x"]}}),
        )
        .compare(Nothing),
        delete("a system's", "/api/v1/namespaces/kube-system"),
        delete("the default", "/api/v1/namespaces/default"),
        delete("the namespace", other),
        post(
            "an object in what ends",
            format!("{other}/configmaps"),
            json!({"metadata": {"name": "b"}}),
        ),
        merge(
            "the object's end",
            format!("{other}/configmaps/a"),
            json!({"metadata": {"finalizers": null}}),
        )
        .compare(Nothing),
        delete("the collection of namespaces", "/api/v1/namespaces"),
        get("the compared namespace", NAMESPACE),
    ]
}
