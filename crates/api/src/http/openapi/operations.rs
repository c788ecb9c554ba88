//! The operations on each path of the API.

use serde_json::{Map, Value, json};

use super::definitions::{Dialect, META_DEFINITIONS, define_type, definition_name};
use crate::kinds::ApiKind;

/// Encodings of patches; the last one only for kinds that are not declared.
const PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
/// Encodings of request bodies; the last one only for kinds that are not declared.
const BODY_TYPES: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

struct Parameter {
    location: &'static str,
    name: &'static str,
    type_: &'static str,
    description: &'static str,
}

const fn query(name: &'static str, type_: &'static str, description: &'static str) -> Parameter {
    Parameter { location: "query", name, type_, description }
}

const PRETTY: Parameter = query("pretty", "string", "If 'true', the output is pretty printed.");
const NAME: Parameter = Parameter {
    location: "path",
    name: "name",
    type_: "string",
    description: "name of the object",
};
const NAMESPACE: Parameter = Parameter {
    location: "path",
    name: "namespace",
    type_: "string",
    description: "namespace of the object",
};
const DRY_RUN: Parameter = query("dryRun", "string", "With the value All, nothing is stored.");
const LIST: [Parameter; 10] = [
    query("allowWatchBookmarks", "boolean", "Whether a watch may send events of type BOOKMARK."),
    query("continue", "string", "The token of the previous response, to continue its list."),
    query("fieldSelector", "string", "Restricts the objects by their fields."),
    query("labelSelector", "string", "Restricts the objects by their labels."),
    query("limit", "integer", "The maximum number of objects to return."),
    query("resourceVersion", "string", "Which version of the objects is wanted."),
    query("resourceVersionMatch", "string", "How resourceVersion is meant for a list."),
    query("sendInitialEvents", "boolean", "Whether a watch begins with what is there."),
    query("timeoutSeconds", "integer", "How long a watch may last."),
    query("watch", "boolean", "Whether changes are wanted, not a list."),
];
const WRITE: [Parameter; 3] = [
    DRY_RUN,
    query("fieldManager", "string", "Who is to be named as the manager of the fields."),
    query(
        "fieldValidation",
        "string",
        "What to do about unknown or duplicate fields: Ignore, Warn or Strict.",
    ),
];
const FORCE: Parameter =
    query("force", "boolean", "Whether fields may be taken from other managers; for apply only.");
const DELETE: [Parameter; 4] = [
    DRY_RUN,
    query("gracePeriodSeconds", "integer", "How long the object may take to end."),
    query("orphanDependents", "boolean", "Deprecated: please use propagationPolicy."),
    query(
        "propagationPolicy",
        "string",
        "What becomes of dependents: Orphan, Background or Foreground.",
    ),
];

pub(crate) fn build_paths(kinds: &[&'static ApiKind], dialect: Dialect) -> Map<String, Value> {
    let mut paths = Map::new();
    for kind in kinds {
        let root = match kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        let plural = kind.plural;
        let path = |methods: &[(&str, &str)], suffix: &str, in_path: &[&Parameter]| {
            let mut path = Map::new();
            for (method, action) in methods {
                path.insert((*method).to_owned(), build_operation(kind, dialect, action, suffix));
            }
            let parameters = in_path.iter().copied().chain([&PRETTY]);
            let parameters: Value =
                parameters.map(|parameter| describe(dialect, parameter)).collect();
            path.insert("parameters".to_owned(), parameters);
            Value::Object(path)
        };
        let (all, namespace): (String, &[&Parameter]) = if kind.namespaced {
            let everywhere = path(&[("get", "list")], "ForAllNamespaces", &[]);
            paths.insert(format!("{root}/{plural}"), everywhere);
            (format!("{root}/namespaces/{{namespace}}/{plural}"), &[&NAMESPACE])
        } else {
            (format!("{root}/{plural}"), &[])
        };
        let many = [("get", "list"), ("post", "post"), ("delete", "deletecollection")];
        let many = if kind.rules.deletes_collections() { &many[..] } else { &many[..2] };
        let one = [("get", "get"), ("put", "put"), ("patch", "patch"), ("delete", "delete")];
        let named = [&[&NAME], namespace].concat();
        paths.insert(all.clone(), path(many, "", namespace));
        paths.insert(format!("{all}/{{name}}"), path(&one, "", &named));
        if kind.has_status {
            paths.insert(format!("{all}/{{name}}/status"), path(&one[..3], "Status", &named));
        }
    }
    paths
}

fn build_operation(kind: &ApiKind, dialect: Dialect, action: &str, suffix: &str) -> Value {
    let own = definition_name(kind);
    let meta = |name: &str| format!("{META_DEFINITIONS}.{name}");
    let (parameters, body, response): (Vec<&Parameter>, Option<String>, String) = match action {
        "list" => (LIST.iter().collect(), None, format!("{own}List")),
        "post" | "put" => (WRITE.iter().collect(), Some(own.clone()), own.clone()),
        "patch" => (WRITE.iter().chain([&FORCE]).collect(), Some(meta("Patch")), own.clone()),
        "delete" => {
            let returned = kind.rules.returns_deleted();
            let response = if returned { own.clone() } else { meta("Status") };
            (DELETE.iter().collect(), Some(meta("DeleteOptions")), response)
        }
        "deletecollection" => {
            let parameters = DELETE.iter().chain(&LIST[..8]).collect();
            (parameters, Some(meta("DeleteOptions")), meta("Status"))
        }
        _ => (Vec::new(), None, own.clone()),
    };
    let mut parameters: Vec<Value> =
        parameters.into_iter().map(|parameter| describe(dialect, parameter)).collect();
    let types: &[&str] = match (action, kind.declared) {
        ("patch", None) => &PATCH_TYPES,
        ("patch", Some(_)) => &PATCH_TYPES[..3],
        (_, None) => &BODY_TYPES,
        (_, Some(_)) => &BODY_TYPES[..2],
    };
    let group = kind.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    let id = [action, &capital(group), &capital(kind.version), kind.kind, suffix].concat();
    let mut operation = json!({
        "description": format!("{action} {}", kind.plural),
        "operationId": id,
        "tags": [format!("{group}_{}", kind.version)],
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": define_type(kind, kind.kind),
    });
    let response = dialect.reference(&response);
    let body = body.map(|body| dialect.reference(&body));
    match dialect {
        Dialect::V2 => {
            if let Some(body) = body {
                let required = !action.starts_with("delete");
                let body =
                    json!({"name": "body", "in": "body", "required": required, "schema": body});
                parameters.push(body);
                operation["consumes"] = json!(types);
            }
            operation["produces"] = json!(["application/json"]);
            operation["responses"] = json!({"200": {"description": "OK", "schema": response}});
        }
        Dialect::V3 => {
            if let Some(body) = body {
                let each = types.iter().map(|type_| ((*type_).to_owned(), json!({"schema": body})));
                operation["requestBody"] = json!({"content": each.collect::<Map<_, _>>()});
            }
            let content = json!({"application/json": {"schema": response}});
            operation["responses"] = json!({"200": {"description": "OK", "content": content}});
        }
    }
    operation["parameters"] = parameters.into();
    operation
}

fn describe(dialect: Dialect, parameter: &Parameter) -> Value {
    let Parameter { location, name, type_, description } = parameter;
    let mut described = json!({"name": name, "in": location, "description": description});
    match dialect {
        Dialect::V2 => {
            described["type"] = json!(type_);
            described["uniqueItems"] = json!(true);
        }
        Dialect::V3 => described["schema"] = json!({"type": type_, "uniqueItems": true}),
    }
    if *location == "path" {
        described["required"] = json!(true);
    }
    described
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect()
}
