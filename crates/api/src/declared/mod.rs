//! Kinds that the embedder declares, with the CustomResourceDefinition that it installs in a real
//! cluster: names, scope, schema, defaults, columns and status are read from that one object.
//!
//! Invariants:
//! - What `declare_kind` accepts, a real API server accepts as a CustomResourceDefinition: the schema is
//!   structural, and its defaults are valid (`structural`).
//! - What this server cannot enforce is refused when it is declared, not ignored: several versions,
//!   webhooks, scale, fields of unknown types. Rules in CEL need a `check` that says the same.
//!
//! Declared kinds live as long as the process. The tests with real clients are in
//! `tests/api/declared.rs`.

mod columns;
mod structural;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::kinds::{ApiKind, KindRules, Subresource, TableColumn, Violation, metadata, names};

use columns::{TableCell, schema_text};

/// Violations of an object beyond its schema. Gets the object, and its state before an update.
pub(crate) type DeclarationCheck = fn(&Value, Option<&Value>) -> Vec<Violation>;

#[derive(Debug, Clone)]
pub struct KindDeclaration {
    pub definition: CustomResourceDefinition,
    /// Does what the definition's `x-kubernetes-validations` do in a real cluster.
    pub check: Option<DeclarationCheck>,
}

impl From<CustomResourceDefinition> for KindDeclaration {
    fn from(definition: CustomResourceDefinition) -> Self {
        Self { definition, check: None }
    }
}

/// The kind of a declaration. Fails with all that a real API server or this one would refuse.
pub fn declare_kind(declaration: &KindDeclaration) -> Result<&'static ApiKind> {
    let name = declaration.definition.metadata.name.clone().unwrap_or_default();
    try_declare(declaration)
        .with_context(|| format!("CustomResourceDefinition {name:?} cannot be served"))
}

fn try_declare(declaration: &KindDeclaration) -> Result<&'static ApiKind> {
    let definition: &'static Value =
        Box::leak(Box::new(serde_json::to_value(&declaration.definition)?));
    let violations = structural::validate_definition(definition);
    if !violations.is_empty() {
        let sentences: Vec<String> = violations.iter().map(ToString::to_string).collect();
        bail!("{}", sentences.join("; "));
    }
    let version = &definition["spec"]["versions"][0];
    let own = &version["schema"]["openAPIV3Schema"];
    ensure!(
        declaration.check.is_some() || !structural::has_validation_rules(own),
        "its schema has x-kubernetes-validations, but the declaration has no check"
    );
    let schema: &'static Value = Box::leak(Box::new(with_metadata(own)));
    let has_status = version["subresources"]["status"].is_object();
    let (shown, cells) = columns::parse_columns(version)?;
    let patterns = structural::compile_patterns(own)?;
    let rules = DeclaredRules {
        schema,
        has_status,
        columns: shown.leak(),
        cells,
        selectable: selectable(version),
        patterns,
        check: declaration.check,
    };
    let names = &definition["spec"]["names"];
    let kind = schema_text(&names["kind"]);
    Ok(Box::leak(Box::new(ApiKind {
        group: schema_text(&definition["spec"]["group"]),
        version: schema_text(&version["name"]),
        kind,
        plural: schema_text(&names["plural"]),
        singular: match schema_text(&names["singular"]) {
            "" => kind.to_lowercase().leak(),
            singular => singular,
        },
        short_names: schema_texts(&names["shortNames"]).leak(),
        categories: schema_texts(&names["categories"]).leak(),
        namespaced: definition["spec"]["scope"] == "Namespaced",
        has_status,
        declared: Some(schema),
        rules: Box::leak(Box::new(rules)),
    })))
}

/// The schema of whole objects: with the type of Kubernetes for the metadata.
fn with_metadata(schema: &Value) -> Value {
    let mut whole = schema.clone();
    let text = |description: &str| json!({"type": "string", "description": description});
    let mut properties = Map::from_iter([
        ("apiVersion".to_owned(), text("The version of the schema of this object.")),
        ("kind".to_owned(), text("The kind of this object.")),
    ]);
    if let Some(own) = schema["properties"].as_object() {
        properties.extend(own.iter().map(|(name, schema)| (name.clone(), schema.clone())));
    }
    let reference = format!(
        "{}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        crate::schema::REFERENCE_PREFIX
    );
    properties.insert("metadata".to_owned(), json!({"$ref": reference}));
    whole["properties"] = Value::Object(properties);
    whole
}

fn selectable(version: &'static Value) -> Vec<&'static str> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    fields.map(|field| schema_text(&field["jsonPath"]).trim_start_matches('.')).collect()
}

fn schema_texts(value: &'static Value) -> Vec<&'static str> {
    value.as_array().into_iter().flatten().map(schema_text).collect()
}

struct DeclaredRules {
    schema: &'static Value,
    has_status: bool,
    columns: &'static [TableColumn],
    cells: Vec<TableCell>,
    selectable: Vec<&'static str>,
    /// All patterns in the schema, compiled.
    patterns: BTreeMap<String, Regex>,
    check: Option<DeclarationCheck>,
}

impl KindRules for DeclaredRules {
    fn set_defaults(&self, object: &mut Value) {
        values::set_schema_defaults(self.schema, object);
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        match (old, subresource) {
            (None, _) if self.has_status => set_or_remove(object, "status", &Value::Null),
            (Some(old), Subresource::None) if self.has_status => {
                set_or_remove(object, "status", &old["status"]);
            }
            // A write of the status changes only the status, and its manager.
            (Some(old), Subresource::Status) => {
                let mut whole = old.clone();
                set_or_remove(&mut whole, "status", &object["status"]);
                let managers = object["metadata"]["managedFields"].take();
                set_or_remove(&mut whole["metadata"], "managedFields", &managers);
                *object = whole;
            }
            _ => {}
        }
        metadata::count_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        violations.extend(values::validate_value(self.schema, object, &self.patterns));
        // The check may rely on the schema.
        if violations.is_empty()
            && let Some(check) = self.check
        {
            violations.extend(check(object, old));
        }
        violations
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [TableColumn] {
        self.columns
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.cells.iter().map(|cell| cell.value(object, now)).collect()
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        metadata::selectable_field(object, path, &self.selectable)
    }
}

/// Sets a field, or removes it if there is no value.
fn set_or_remove(object: &mut Value, field: &str, value: &Value) {
    let Some(fields) = object.as_object_mut() else { return };
    if value.is_null() {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), value.clone());
    }
}
