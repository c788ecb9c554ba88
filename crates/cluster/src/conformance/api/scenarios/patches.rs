//! Patches of all types, and server-side apply.

use serde_json::{Value, json};

use super::steps::ComparedPart::Nothing;
use super::steps::{
    CONFIG_MAPS, SERVICES, Step, apply, delete, get, json_patch, merge, post, strategic,
};

/// The Service that patches change.
pub fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "one", "labels": {"a": "1", "b": "2"}, "annotations": {"note": "x"}},
        "spec": {
            "clusterIP": "10.96.7.7", "selector": {"app": "one"},
            "ports": [
                {"name": "http", "port": 80, "targetPort": 8080},
                {"name": "https", "port": 443, "targetPort": "tls"},
            ],
        },
    })
}

/// The path of [`service`].
pub fn one() -> String {
    format!("{SERVICES}/one")
}

pub fn merges() -> Vec<Step> {
    vec![
        post("create", SERVICES, service()),
        merge(
            "change a label and remove another",
            one(),
            json!({"metadata": {"labels": {"a": "9", "b": null}}}),
        ),
        merge("replace the list of ports", one(), json!({"spec": {"ports": [{"port": 81}]}})),
        merge("a wrong type", one(), json!({"spec": {"ports": "80"}})),
        merge("a wrong type of a label", one(), json!({"metadata": {"labels": {"a": 1}}})),
        merge("remove what is required", one(), json!({"spec": {"ports": null}})),
        merge("an unknown field", one(), json!({"spec": {"unknown": 1}})),
        merge(
            "an unknown field, strictly",
            format!("{}?fieldValidation=Strict", one()),
            json!({"spec": {"unknown": 1}}),
        ),
        merge("no JSON", one(), Value::Null).body("application/merge-patch+json", "{"),
        merge("null", one(), Value::Null),
        merge("a text", one(), json!("text")),
        merge("with a character set", one(), json!({}))
            .body("application/merge-patch+json; charset=utf-8", "{}"),
        get("the result", one()),
    ]
}

pub fn json_patches() -> Vec<Step> {
    let op = |op: &str, path: &str, value: Value| json!([{"op": op, "path": path, "value": value}]);
    vec![
        post("create", SERVICES, service()).compare(Nothing),
        json_patch("add a label", one(), op("add", "/metadata/labels/c", json!("3"))),
        json_patch("escape", one(), op("add", "/metadata/labels/example.com~1x", json!("3"))),
        json_patch(
            "add at the end",
            one(),
            op("add", "/spec/ports/-", json!({"name": "dns", "port": 53, "protocol": "UDP"})),
        ),
        json_patch(
            "add beyond the end",
            one(),
            op("add", "/spec/ports/9", json!({"name": "x", "port": 54})),
        ),
        json_patch("replace", one(), op("replace", "/spec/ports/0/port", json!(8080))),
        json_patch("replace what is missing", one(), op("replace", "/spec/nothing", json!(1))),
        json_patch(
            "remove what is missing",
            one(),
            json!([{"op": "remove", "path": "/metadata/labels/none"}]),
        ),
        json_patch("test", one(), op("test", "/spec/type", json!("ClusterIP"))),
        json_patch("a test that fails", one(), op("test", "/spec/type", json!("NodePort"))),
        json_patch("a test of what is missing", one(), op("test", "/spec/none", json!(1))),
        json_patch("a test of null", one(), op("test", "/spec/none", Value::Null)),
        json_patch(
            "copy",
            one(),
            json!([{"op": "copy", "from": "/metadata/labels/a", "path": "/metadata/labels/d"}]),
        ),
        json_patch(
            "move",
            one(),
            json!([{"op": "move", "from": "/metadata/labels/d", "path": "/metadata/labels/e"}]),
        ),
        json_patch(
            "move what is missing",
            one(),
            json!([{"op": "move", "from": "/metadata/labels/none", "path": "/metadata/labels/e"}]),
        ),
        json_patch("no path", one(), json!([{"op": "add", "value": 1}])),
        json_patch("no value", one(), json!([{"op": "add", "path": "/metadata/labels/f"}])),
        json_patch("a broken path", one(), op("add", "metadata", json!(1))),
        json_patch("the whole object", one(), op("replace", "", json!({}))),
        json_patch("a negative index", one(), json!([{"op": "remove", "path": "/spec/ports/-1"}])),
        json_patch("an invalid value", one(), op("replace", "/spec/type", json!("Nothing"))),
        json_patch("a wrong type", one(), op("replace", "/spec/ports/0/port", json!("x"))),
        json_patch("no JSON", one(), Value::Null).body("application/json-patch+json", "["),
        get("the result", one()),
    ]
}

pub fn strategic_merges() -> Vec<Step> {
    let ports = |ports: Value| json!({"spec": {"ports": ports}});
    vec![
        post("create", SERVICES, service()).compare(Nothing),
        strategic("a port by its key", one(), ports(json!([{"port": 80, "name": "web"}]))),
        strategic("another port", one(), ports(json!([{"port": 81, "name": "more"}]))),
        strategic("a port without its key", one(), ports(json!([{"name": "web"}]))),
        strategic("delete a port", one(), ports(json!([{"$patch": "delete", "port": 81}]))),
        strategic("delete a missing port", one(), ports(json!([{"$patch": "delete", "port": 99}]))),
        strategic(
            "order",
            one(),
            json!({"spec": {"$setElementOrder/ports": [{"port": 443}, {"port": 80}], "ports": [{"port": 443, "name": "tls"}]}}),
        ),
        strategic("replace the list", one(), ports(json!([{"$patch": "replace"}, {"port": 90}]))),
        strategic("remove a label", one(), json!({"metadata": {"labels": {"b": null}}})),
        strategic(
            "replace a map",
            one(),
            json!({"metadata": {"labels": {"$patch": "replace", "z": "1"}}}),
        ),
        strategic(
            "delete a map",
            one(),
            json!({"metadata": {"annotations": {"$patch": "delete"}}}),
        ),
        strategic(
            "add finalizers",
            one(),
            json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}),
        ),
        strategic("add a finalizer", one(), json!({"metadata": {"finalizers": ["example.com/c"]}})),
        strategic(
            "delete a finalizer",
            one(),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}),
        ),
        strategic(
            "keep some keys",
            one(),
            json!({"spec": {"$retainKeys": ["ports", "type"], "type": "ClusterIP"}}),
        ),
        strategic("an unknown directive", one(), json!({"spec": {"$patch": "grow"}})),
        strategic("an unknown list directive", one(), json!({"spec": {"$grow/ports": []}})),
        strategic("a wrong type", one(), json!({"spec": "x"})),
        strategic("a list", one(), json!([])),
        strategic("of a declared kind", "/apis/test.example.com/v1alpha1/ranges/none", json!({})),
        strategic("no finalizers", one(), json!({"metadata": {"finalizers": null}})),
        get("the result", one()),
    ]
}

pub fn applies() -> Vec<Step> {
    let applied = |fields: Value| {
        let mut object =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"}});
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        object
    };
    let by = |manager: &str, more: &str| format!("{SERVICES}/one?fieldManager={manager}{more}");
    let ports = |ports: Value| json!({"spec": {"clusterIP": "10.96.7.7", "ports": ports}});
    let web = json!({"port": 80, "protocol": "TCP", "targetPort": 8080});
    let tls = json!({"name": "tls", "port": 443, "protocol": "TCP"});
    vec![
        apply("creates", by("first", ""), applied(ports(json!([web])))),
        apply("the same again", by("first", ""), applied(ports(json!([web])))),
        apply(
            "another manager's port",
            by("second", ""),
            applied(json!({"spec": {"ports": [tls]}})),
        ),
        apply(
            "named ports",
            by("first", "&force=true"),
            applied(ports(json!([{"name": "http", "port": 80, "protocol": "TCP"}]))),
        ),
        apply("two ports by one key", by("first", ""), applied(ports(json!([web, web])))),
        apply(
            "another manager's label",
            by("second", ""),
            applied(
                json!({"metadata": {"name": "one", "labels": {"a": "1"}}, "spec": {"ports": [tls]}}),
            ),
        ),
        apply(
            "a conflict",
            by("first", ""),
            applied(
                json!({"metadata": {"name": "one", "labels": {"a": "2"}}, "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}),
            ),
        ),
        apply(
            "the conflict by force",
            by("first", "&force=true"),
            applied(
                json!({"metadata": {"name": "one", "labels": {"a": "2"}}, "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}),
            ),
        ),
        apply("without its port", by("second", ""), applied(json!({}))),
        apply("an unknown field", by("second", ""), applied(json!({"spec": {"unknown": 1}}))),
        apply(
            "an unknown field, strictly",
            by("second", "&fieldValidation=Strict"),
            applied(json!({"spec": {"unknown": 1}})),
        ),
        apply("a wrong type", by("second", ""), applied(json!({"spec": {"ports": "x"}}))),
        apply("an invalid value", by("second", ""), applied(json!({"spec": {"type": "Nothing"}}))),
        apply("without a kind", by("second", ""), json!({"metadata": {"name": "one"}})),
        apply(
            "another version",
            by("second", ""),
            json!({"apiVersion": "v2", "kind": "Service", "metadata": {"name": "one"}}),
        ),
        apply(
            "another namespace",
            by("second", ""),
            applied(json!({"metadata": {"name": "one", "namespace": "default"}})),
        ),
        apply(
            "of an old version",
            by("second", ""),
            applied(json!({"metadata": {"name": "one", "resourceVersion": "1"}})),
        ),
        apply(
            "with managed fields",
            by("second", ""),
            applied(json!({"metadata": {"name": "one", "managedFields": [{"manager": "x"}]}})),
        ),
        apply("without a manager", format!("{SERVICES}/one"), applied(json!({}))),
        apply("a broken force", by("second", "&force=perhaps"), applied(json!({}))),
        apply(
            "a dry run",
            by("third", "&dryRun=All"),
            applied(json!({"metadata": {"name": "one", "labels": {"dry": "1"}}})),
        ),
        apply("YAML", by("third", ""), Value::Null).body(
            "application/apply-patch+yaml",
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: one\n  labels:\n    yaml: 'yes'\n",
        ),
        apply("broken YAML", by("third", ""), Value::Null)
            .body("application/apply-patch+yaml", "a: [\n"),
        apply("a duplicate key", by("third", ""), Value::Null).body(
            "application/apply-patch+yaml",
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: one\n  name: two\n",
        ),
        merge(
            "an update by another client",
            format!("{}?fieldManager=editor", one()),
            json!({"metadata": {"labels": {"yaml": "no"}}}),
        ),
        apply(
            "its conflict",
            by("third", ""),
            applied(json!({"metadata": {"name": "one", "labels": {"yaml": "yes"}}})),
        ),
        apply(
            "the status",
            format!("{}/status?fieldManager=balancer", one()),
            applied(json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})),
        ),
        merge("no managed fields", one(), json!({"metadata": {"managedFields": [{}]}})),
        get("the result", one()),
        apply(
            "a ConfigMap",
            format!("{CONFIG_MAPS}/a?fieldManager=first"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}}),
        ),
        apply(
            "a key less",
            format!("{CONFIG_MAPS}/a?fieldManager=first"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}),
        ),
        apply(
            "a declared object",
            "/apis/test.example.com/v1alpha1/ranges/applied?fieldManager=first",
            json!({
                "apiVersion": "test.example.com/v1alpha1", "kind": "Range", "metadata": {"name": "applied"},
                "spec": {"first": 1, "last": 2, "names": ["a"], "peers": [{"name": "p", "weight": 1}]},
            }),
        ),
        apply(
            "a member of its sets",
            "/apis/test.example.com/v1alpha1/ranges/applied?fieldManager=second",
            json!({
                "apiVersion": "test.example.com/v1alpha1", "kind": "Range", "metadata": {"name": "applied"},
                "spec": {"names": ["b"], "peers": [{"name": "q"}]},
            }),
        ),
        delete("the declared object", "/apis/test.example.com/v1alpha1/ranges/applied"),
    ]
}
