//! Namespaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{at, copy, list_mut, object_mut, set, text, texts};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, names, table};

pub struct Namespace;

/// A label with the namespace's name, for selectors.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Removed after all objects in the namespace are gone.
const FINALIZER: &str = "kubernetes";

impl Rules for Namespace {
    fn set_defaults(&self, object: &mut Value) {
        let name = text(object, "metadata.name").to_owned();
        if !name.is_empty() {
            object_mut(object, "metadata.labels").insert(NAME_LABEL.to_owned(), name.into());
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        metadata::keep_generation(object, old);
        let Some(old) = old else {
            set(object, "status", json!({ "phase": "Active" }));
            if !texts(object, "spec.finalizers").contains(&FINALIZER) {
                object_mut(object, "spec").entry("finalizers").or_insert_with(|| json!([]));
                if let Some(finalizers) = list_mut(object, "spec.finalizers") {
                    finalizers.push(FINALIZER.into());
                }
            }
            return;
        };
        match subresource {
            Subresource::None => {
                // In a cluster only the subresource `finalize` changes these.
                copy(object, old, "spec.finalizers");
                copy(object, old, "status");
            }
            Subresource::Status => copy(object, old, "spec"),
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::label);
        for (index, finalizer) in texts(object, "spec.finalizers").iter().enumerate() {
            let field = format!("spec.finalizers[{index}]");
            violations.extend(names::violations(&field, finalizer, names::qualified));
        }
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const { &[table::NAME, Column::text("Status", "The status of the namespace"), table::AGE] }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let deleted = at(object, "metadata.deletionTimestamp").is_some();
        let phase = if deleted { "Terminating" } else { text(object, "status.phase") };
        vec![table::name(object), phase.into(), table::age(object, now)]
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        match path {
            "name" => Some(text(object, "metadata.name").to_owned()),
            _ => metadata::field(object, path, &["status.phase"]),
        }
    }
}
