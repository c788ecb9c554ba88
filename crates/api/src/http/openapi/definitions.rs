//! The types in the OpenAPI documents, with Kubernetes' extensions: how lists are merged, and the
//! kind of each definition.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::kinds::ApiKind;
use crate::schema::{self, ListType, SchemaField};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    V2,
    V3,
}

impl Dialect {
    pub fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

pub(crate) const META_DEFINITIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The definitions that these kinds and their operations refer to.
pub(crate) fn build_definitions(
    kinds: &[&'static ApiKind],
    dialect: Dialect,
) -> Map<String, Value> {
    let mut needed = BTreeSet::new();
    for name in ["DeleteOptions", "Patch", "Status", "ListMeta"] {
        need(&format!("{META_DEFINITIONS}.{name}"), &mut needed);
    }
    let mut definitions = Map::new();
    for kind in kinds {
        let name = definition_name(kind);
        match kind.declared {
            None => need(&name, &mut needed),
            Some(schema) => {
                need_referred(schema, &mut needed);
                definitions.insert(name.clone(), define_declared(schema, dialect));
            }
        }
        definitions.insert(format!("{name}List"), define_list(kind, &name, dialect));
    }
    for name in needed {
        definitions.insert(name.to_owned(), define_schema(name, dialect));
    }
    for kind in kinds {
        if let Some(definition) = definitions.get_mut(&definition_name(kind)) {
            definition["x-kubernetes-group-version-kind"] = json!([define_type(kind, kind.kind)]);
        }
    }
    definitions
}

/// The name of a kind's definition: `io.k8s.api.core.v1.Service`. Declared kinds are named after
/// their group: `io.example.v1.Widget`.
pub(crate) fn definition_name(kind: &ApiKind) -> String {
    if kind.declared.is_none() {
        let name = schema::find_definition_name(kind.group, kind.version, kind.kind);
        return name.unwrap_or_default().to_owned();
    }
    let group: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), kind.version, kind.kind)
}

/// The schema of a declared kind. V2 has no words for some of its constraints.
fn define_declared(schema: &Value, dialect: Dialect) -> Value {
    const ONLY_V3: [&str; 7] =
        ["allOf", "anyOf", "default", "not", "nullable", "oneOf", "x-kubernetes-validations"];
    fn without(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !ONLY_V3.contains(&name.as_str()));
                fields.values_mut().for_each(without);
            }
            Value::Array(items) => items.iter_mut().for_each(without),
            _ => {}
        }
    }
    let mut converted = convert(schema, dialect);
    if dialect == Dialect::V2 {
        without(&mut converted);
    }
    converted
}

pub(crate) fn define_type(kind: &ApiKind, name: &str) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": name})
}

fn need(name: &str, needed: &mut BTreeSet<&'static str>) {
    let Some((name, definition)) = schema::definitions().get_key_value(name) else {
        return;
    };
    if needed.insert(name) {
        need_referred(definition, needed);
    }
}

fn need_referred(schema: &'static Value, needed: &mut BTreeSet<&'static str>) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = schema::resolve_reference(schema) {
                need(name, needed);
            }
            fields.values().for_each(|field| need_referred(field, needed));
        }
        Value::Array(items) => items.iter().for_each(|item| need_referred(item, needed)),
        _ => {}
    }
}

fn define_list(kind: &ApiKind, name: &str, dialect: Dialect) -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let items = format!("The {}.", kind.plural);
    json!({
        "description": format!("{0}List is a list of {0}.", kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("The version of the schema of this list."),
            "kind": text("The kind of this list."),
            "items": {"type": "array", "description": items, "items": dialect.reference(name)},
            "metadata": dialect.reference(&format!("{META_DEFINITIONS}.ListMeta")),
        },
        "x-kubernetes-group-version-kind": [define_type(kind, &format!("{}List", kind.kind))],
    })
}

fn define_schema(name: &str, dialect: Dialect) -> Value {
    let mut definition = convert(&schema::definitions()[name], dialect);
    if name.ends_with(".IntOrString") {
        let description = definition["description"].take();
        definition = match dialect {
            Dialect::V2 => json!({"type": "string", "format": "int-or-string"}),
            Dialect::V3 => json!({"format": "int-or-string",
                "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        };
        definition["description"] = description;
    }
    let Some(message) = schema::find_message(name) else {
        return definition;
    };
    if message.atomic {
        definition["x-kubernetes-map-type"] = json!("atomic");
    }
    for (name, field) in &message.fields {
        if let Some(property) = definition["properties"].get_mut(*name) {
            extend(property, field);
        }
    }
    definition
}

/// Adds how a field is merged.
fn extend(property: &mut Value, field: &SchemaField) {
    match &field.list {
        None => {}
        Some(ListType::Atomic) => property["x-kubernetes-list-type"] = json!("atomic"),
        Some(ListType::Set) => property["x-kubernetes-list-type"] = json!("set"),
        Some(ListType::Map(keys)) => {
            property["x-kubernetes-list-type"] = json!("map");
            property["x-kubernetes-list-map-keys"] = json!(keys);
        }
    }
    if field.atomic {
        property["x-kubernetes-map-type"] = json!("atomic");
    }
    if let Some(strategy) = field.patch_strategy {
        property["x-kubernetes-patch-strategy"] = json!(strategy);
    }
    if let Some(key) = field.patch_merge_key {
        property["x-kubernetes-patch-merge-key"] = json!(key);
    }
}

/// Converts a schema to the dialect: references differ, and in V3 a reference has no siblings.
fn convert(schema: &Value, dialect: Dialect) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(|item| convert(item, dialect)).collect(),
        Value::Object(fields) => {
            let mut converted: Map<String, Value> = fields
                .iter()
                .filter(|(name, _)| *name != "$ref")
                .map(|(name, value)| (name.clone(), convert(value, dialect)))
                .collect();
            let name = fields
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|reference| reference.strip_prefix(schema::REFERENCE_PREFIX));
            if let Some(name) = name {
                let mut reference = dialect.reference(name);
                if dialect == Dialect::V2 || converted.is_empty() {
                    converted.insert("$ref".to_owned(), reference["$ref"].take());
                } else {
                    converted.insert("allOf".to_owned(), json!([reference]));
                }
            }
            Value::Object(converted)
        }
        other => other.clone(),
    }
}
