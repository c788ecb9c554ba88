//! Definitions that a real API server, or this one, would refuse.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::*;

const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";
const SIZE: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size";
const LIST: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/list";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["spec"],
                    "properties": {
                        "spec": {
                            "type": "object",
                            "properties": {
                                "size": {"type": "integer", "minimum": 1, "default": 1},
                                "list": {
                                    "type": "array",
                                    "items": {
                                        "type": "object", "required": ["name"],
                                        "properties": {"name": {"type": "string"}},
                                    },
                                },
                                "port": {
                                    "x-kubernetes-int-or-string": true,
                                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                                },
                            },
                        },
                        "status": {"type": "object"},
                    },
                }},
            }],
        },
    })
}

fn declared(definition: &Value) -> Result<&'static ApiKind> {
    let definition: CustomResourceDefinition = serde_json::from_value(definition.clone())?;
    declare_kind(&definition.into())
}

#[test]
fn a_definition_becomes_a_kind() {
    let kind = declared(&definition()).unwrap();
    assert_eq!((kind.group, kind.version, kind.kind), ("example.com", "v1", "Thing"));
    assert_eq!((kind.plural, kind.singular, kind.short_names), ("things", "thing", &["th"][..]));
    assert!(kind.namespaced && kind.has_status);
    let names: Vec<&str> = kind.rules.columns().iter().map(|column| column.name).collect();
    assert_eq!(names, ["Name", "Size"]);
}

#[test]
fn what_a_real_server_or_this_one_refuses_is_refused_with_its_field() {
    let deep = |path: &str, name: &str| format!("{path}/{name}");
    for (path, value, expected) in [
        ("/metadata/name".to_owned(), json!("things"), "metadata.name: Invalid value"),
        ("/spec/group".to_owned(), json!("example"), "at least one dot"),
        ("/spec/group".to_owned(), json!("a.k8s.io"), "spec.group: Forbidden"),
        ("/spec/scope".to_owned(), json!("Everywhere"), "spec.scope: Unsupported value"),
        ("/spec/names/plural".to_owned(), json!("Things"), "spec.names.plural: Invalid value"),
        ("/spec/versions/0/storage".to_owned(), json!(false), "spec.versions[0].storage"),
        (
            "/spec/versions/0/subresources".to_owned(),
            json!({}),
            "spec.versions[0].subresources.status: Required value",
        ),
        (
            "/spec/versions/0/subresources/scale".to_owned(),
            json!({"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}),
            "subresources.scale: Forbidden",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns/0/jsonPath".to_owned(),
            json!(".spec.list[*].name"),
            "additionalPrinterColumns[0].jsonPath: Invalid value",
        ),
        (deep(SCHEMA, "type"), json!("array"), "must be object at the root"),
        (
            deep(SCHEMA, "properties/metadata"),
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
            "properties[metadata]: Forbidden",
        ),
        (deep(SIZE, "type"), Value::Null, "properties[size].type: Required value"),
        (deep(SIZE, "type"), json!("int"), "properties[size].type: Unsupported value"),
        (deep(SIZE, "format"), json!("email"), "properties[size].format: Unsupported value"),
        (deep(SIZE, "default"), json!(0), "properties[size].default: Invalid value"),
        (deep(SIZE, "$ref"), json!("#/x"), "properties[size].$ref: Forbidden"),
        (
            deep(SIZE, "anyOf"),
            json!([{"type": "integer"}]),
            "properties[size].anyOf[0].type: Forbidden",
        ),
        (
            deep(LIST, "items/oneOf"),
            json!([{"properties": {"other": {"minimum": 1}}}]),
            "oneOf[0].properties[other]: Required value",
        ),
        (deep(LIST, "items/required"), json!(["other"]), "items.required: Invalid value"),
        (
            deep(LIST, "items/additionalProperties"),
            json!({"type": "string"}),
            "additionalProperties: Forbidden",
        ),
        (
            deep(LIST, "x-kubernetes-list-type"),
            json!("set"),
            "x-kubernetes-list-type: Invalid value",
        ),
        (
            deep(LIST, "x-kubernetes-list-type"),
            json!("map"),
            "x-kubernetes-list-map-keys: Required value",
        ),
        (
            deep(SCHEMA, "properties/spec/x-kubernetes-preserve-unknown-fields"),
            json!(true),
            "x-kubernetes-preserve-unknown-fields: Forbidden",
        ),
        (
            deep(SCHEMA, "x-kubernetes-validations"),
            json!([{"rule": "true"}]),
            "the declaration has no check",
        ),
    ] {
        let mut definition = definition();
        let (parent, name) = path.rsplit_once('/').unwrap();
        let parent = definition.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = value,
            parent => parent[name] = value,
        }
        let error = format!("{:#}", declared(&definition).err().expect(&path));
        assert!(error.contains(expected), "{path}: {error}");
    }
    let mut two = definition();
    let version = two["spec"]["versions"][0].clone();
    two["spec"]["versions"].as_array_mut().unwrap().push(version);
    assert!(format!("{:#}", declared(&two).err().unwrap()).contains("exactly one version"));
}

#[test]
fn numbers_and_names_fit_where_both_may_stand() {
    let kind = declared(&definition()).unwrap();
    let violations = |port: Value| {
        let object = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"port": port}});
        let violations = kind.rules.validate(&object, None);
        violations.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!((violations(json!(80)), violations(json!("http"))), (vec![], vec![]));
    assert_eq!(violations(json!(1.5)).len(), 1, "{:?}", violations(json!(1.5)));
}

#[test]
fn two_declarations_of_one_kind_are_refused() {
    let kind = declared(&definition()).unwrap();
    let error = crate::kinds::KindRegistry::with(&[kind, kind]).err().unwrap();
    assert!(error.to_string().contains("declared twice"), "{error}");
}
