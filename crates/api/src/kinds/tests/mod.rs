//! Fields of the smaller kinds, and properties of all kinds.

mod random;
mod rows;
mod violations;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

fn rules(api_version: &str, kind: &str) -> &'static dyn KindRules {
    find_kind(api_version, kind).expect("a served kind").rules
}

/// The violations of a new object.
fn violations(api_version: &str, kind: &str, mut object: Value) -> Vec<String> {
    let rules = rules(api_version, kind);
    object["metadata"] = json!({ "name": "web", "namespace": "default" });
    rules.set_defaults(&mut object);
    rules.prepare(&mut object, None, Subresource::None);
    rules.validate(&object, None).iter().map(ToString::to_string).collect()
}

fn row(api_version: &str, kind: &str, mut object: Value) -> Value {
    let now = "2026-01-02T03:04:05Z".parse().expect("a time");
    object["metadata"]["name"] = json!("web");
    object["metadata"]["creationTimestamp"] = json!("2026-01-02T03:03:00Z");
    rules(api_version, kind).row(&object, now).into()
}

#[test]
fn every_kind_is_found_by_both_of_its_names_and_fills_its_columns() {
    let kinds = KindRegistry::default();
    let mut seen = BTreeSet::new();
    for kind in built_in_kinds() {
        let found = kinds.find(kind.group, kind.version, kind.plural).expect("found");
        assert!(std::ptr::eq(found, kind));
        assert!(std::ptr::eq(find_kind(&kind.api_version(), kind.kind).expect("found"), kind));
        assert!(seen.insert((kind.group, kind.plural)), "{} twice", kind.plural);
        let cells = row(&kind.api_version(), kind.kind, json!({}));
        assert_eq!(
            cells.as_array().map(Vec::len),
            Some(kind.rules.columns().len()),
            "{}",
            kind.kind
        );
        assert_eq!(kind.rules.field(&json!({}), "spec.nonsense"), None, "{}", kind.kind);
    }
    assert_eq!(seen.len(), 13);
}

#[test]
fn a_class_keeps_its_controller() {
    let rules = rules("networking.k8s.io/v1", "IngressClass");
    let old = json!({ "metadata": { "name": "a" }, "spec": { "controller": "a.b/c" } });
    let new = json!({ "metadata": { "name": "a" }, "spec": { "controller": "a.b/d" } });
    let violations: Vec<String> =
        rules.validate(&new, Some(&old)).iter().map(ToString::to_string).collect();
    assert_eq!(violations, ["spec.controller: Invalid value: \"a.b/d\": field is immutable"]);
}

#[test]
fn generations_count_changes_of_the_desired_state() {
    let rules = rules("discovery.k8s.io/v1", "EndpointSlice");
    let mut first = json!({ "metadata": { "name": "a" }, "addressType": "IPv4" });
    rules.prepare(&mut first, None, Subresource::None);
    assert_eq!(first["metadata"]["generation"], 1);

    let mut labelled = first.clone();
    labelled["metadata"]["labels"] = json!({ "a": "b" });
    rules.prepare(&mut labelled, Some(&first), Subresource::None);
    assert_eq!(labelled["metadata"]["generation"], 2, "labels name the Service");

    let mut annotated = labelled.clone();
    annotated["metadata"]["annotations"] = json!({ "a": "b" });
    rules.prepare(&mut annotated, Some(&labelled), Subresource::None);
    assert_eq!(annotated["metadata"]["generation"], 2);

    let mut changed = annotated.clone();
    changed["endpoints"] = json!([{ "addresses": ["10.0.0.1"] }]);
    changed["metadata"]["labels"] = json!({});
    rules.prepare(&mut changed, Some(&annotated), Subresource::None);
    assert_eq!(changed["metadata"]["generation"], 3);
}

#[test]
fn stored_endpoints_are_valid_whatever_else_is_changed() {
    let rules = rules("discovery.k8s.io/v1", "EndpointSlice");
    let old = json!({
        "metadata": { "name": "a" }, "addressType": "IPv4",
        "endpoints": [{ "addresses": ["127.0.0.1"] }],
    });
    assert_eq!(rules.validate(&old, Some(&old)), []);
    let mut new = old.clone();
    new["addressType"] = json!("IPv6");
    let violations = rules.validate(&new, Some(&old));
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(violations, ["addressType: Invalid value: \"IPv6\": field is immutable"]);
}

#[test]
fn plain_text_in_a_secret_is_stored_encoded() {
    let mut secret = json!({ "data": { "a": "eA==" }, "stringData": { "a": "y", "b": "z" } });
    rules("v1", "Secret").set_defaults(&mut secret);
    assert_eq!(secret, json!({ "type": "Opaque", "data": { "a": "eQ==", "b": "eg==" } }));
}

#[test]
fn secrets_of_standard_types_have_the_keys_of_their_type() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("Opaque", json!({}), &[]),
        ("example.com/own", json!({}), &[]),
        ("bootstrap.kubernetes.io/token", json!({ "token-id": "a" }), &[]),
        ("kubernetes.io/tls", json!({ "tls.crt": "", "tls.key": "" }), &[]),
        ("kubernetes.io/tls", json!({}), &["data[tls.crt]", "data[tls.key]"]),
        ("kubernetes.io/dockercfg", json!({ ".dockercfg": "{}" }), &[]),
        ("kubernetes.io/dockercfg", json!({}), &["data[.dockercfg]"]),
        ("kubernetes.io/dockercfg", json!({ ".dockercfg": "x" }), &["data[.dockercfg]"]),
        ("kubernetes.io/dockerconfigjson", json!({ ".dockerconfigjson": "{}" }), &[]),
        ("kubernetes.io/dockerconfigjson", json!({}), &["data[.dockerconfigjson]"]),
        (
            "kubernetes.io/dockerconfigjson",
            json!({ ".dockerconfigjson": "[]" }),
            &["data[.dockerconfigjson]"],
        ),
        ("kubernetes.io/basic-auth", json!({ "username": "a" }), &[]),
        ("kubernetes.io/basic-auth", json!({ "password": "a" }), &[]),
        ("kubernetes.io/basic-auth", json!({}), &["data[username]", "data[password]"]),
        ("kubernetes.io/ssh-auth", json!({ "ssh-privatekey": "a" }), &[]),
        ("kubernetes.io/ssh-auth", json!({ "ssh-privatekey": "" }), &["data[ssh-privatekey]"]),
        ("kubernetes.io/ssh-auth", json!({}), &["data[ssh-privatekey]"]),
        (
            "kubernetes.io/service-account-token",
            json!({}),
            &["metadata.annotations[kubernetes.io/service-account.name]"],
        ),
    ];
    for (type_, data, expected) in cases {
        let found = violations("v1", "Secret", json!({ "type": type_, "stringData": data }));
        let fields: Vec<&str> =
            found.iter().filter_map(|violation| violation.split(": ").next()).collect();
        assert_eq!(fields, *expected, "{type_} {data}: {found:?}");
    }
}

#[test]
fn the_data_of_a_config_map_is_checked() {
    let of = |object: Value| violations("v1", "ConfigMap", object);
    assert_eq!(of(json!({ "data": { "a.b_c-D": "x" }, "binaryData": { "b": "eA==" } })), [""; 0]);
    assert_eq!(
        of(json!({ "data": { "a": "x" }, "binaryData": { "a": "eA==" } })),
        ["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"]
    );
    let half = "x".repeat(600_000);
    assert_eq!(of(json!({ "data": { "a": half } })), [""; 0]);
    let both = of(json!({ "data": { "a": half, "b": half } }));
    assert!(both.len() == 1 && both[0].starts_with("data: Too long"), "{both:?}");
    let binary = of(json!({ "binaryData": { "a": "?" } }));
    assert!(binary[0].starts_with("binaryData[a]: Invalid value: \"<redacted>\""), "{binary:?}");
    assert!(of(json!({ "data": { "a/b": "x" } }))[0].contains("a valid config key"));
}

#[test]
fn what_is_immutable_stays() {
    for (kind, field) in [("Secret", "data"), ("ConfigMap", "data"), ("ConfigMap", "binaryData")] {
        let old = json!({
            "metadata": { "name": "web" }, "immutable": true, field: { "a": "eA==" },
        });
        let mut new = old.clone();
        new[field]["b"] = json!("eQ==");
        new["immutable"] = json!(false);
        let violations = rules("v1", kind).validate(&new, Some(&old));
        let fields: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let detail = "Forbidden: field is immutable when `immutable` is set";
        let expected = [format!("immutable: {detail}"), format!("{field}: {detail}")];
        assert_eq!(fields, expected, "{kind}");
    }
}

#[test]
fn of_the_secrets_of_a_service_account_only_the_names_are_kept() {
    let mut account = json!({
        "metadata": { "name": "web" },
        "secrets": [{ "name": "a", "namespace": "other", "kind": "Secret" }],
    });
    rules("v1", "ServiceAccount").prepare(&mut account, None, Subresource::None);
    assert_eq!(account["secrets"], json!([{ "name": "a" }]));
}

#[test]
fn both_views_of_an_event_show_the_same_object() {
    let view = rules("events.k8s.io/v1", "Event");
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": "web.1", "namespace": "default" },
        "note": "fine",
        "regarding": { "kind": "Service", "name": "web", "namespace": "default" },
        "reportingController": "agent",
        "type": "Normal",
    });
    let stored = view.to_stored(&event);
    assert_eq!(stored["apiVersion"], "v1");
    assert_eq!(stored["involvedObject"]["name"], "web");
    assert_eq!(stored["message"], "fine");
    assert_eq!(view.as_shown(&stored), event);
    assert_eq!(view.field(&event, "regarding.name").as_deref(), Some("web"));
    assert_eq!(
        rules("v1", "Event").field(&stored, "involvedObject.kind").as_deref(),
        Some("Service")
    );
    assert_eq!(rules("v1", "Event").field(&stored, "source").as_deref(), Some("agent"));
}

#[test]
fn only_the_series_of_an_event_may_change() {
    let view = rules("events.k8s.io/v1", "Event");
    let old = json!({
        "metadata": { "name": "web.1", "namespace": "default" },
        "eventTime": "2026-01-02T03:04:00.000000Z",
        "regarding": { "kind": "Service", "name": "web", "namespace": "default" },
        "reportingController": "agent",
        "reportingInstance": "agent-1",
        "action": "Sync",
        "reason": "Done",
        "note": "fine",
        "type": "Normal",
    });
    let violations = |new: &Value| -> Vec<String> {
        view.validate(new, Some(&old)).iter().map(ToString::to_string).collect()
    };
    let mut new = old.clone();
    new["series"] = json!({ "count": 2, "lastObservedTime": "2026-01-02T03:05:00.000000Z" });
    assert_eq!(violations(&new), Vec::<String>::new());
    new["note"] = json!("better");
    assert_eq!(violations(&new), ["note: Invalid value: \"better\": field is immutable"]);
}

#[test]
fn unset_selectable_fields_have_a_value() {
    for (api_version, kind, path, expected) in [
        ("v1", "Node", "spec.unschedulable", "false"),
        ("v1", "Service", "spec.type", ""),
        ("v1", "Secret", "type", ""),
        ("v1", "Namespace", "status.phase", ""),
        ("v1", "Event", "involvedObject.uid", ""),
        ("events.k8s.io/v1", "Event", "regarding.uid", ""),
    ] {
        let value = rules(api_version, kind).field(&json!({}), path);
        assert_eq!(value.as_deref(), Some(expected), "{kind} {path}");
    }
}
