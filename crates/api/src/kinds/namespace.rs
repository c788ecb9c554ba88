//! Namespaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{
    copy_value, get_list_mut, get_or_create_object, get_text, get_texts, get_value, set_value,
};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, names, table};

pub struct Namespace;

/// A label with the namespace's name, for selectors.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Removed after all objects in the namespace are gone.
const FINALIZER: &str = "kubernetes";

impl KindRules for Namespace {
    fn set_defaults(&self, object: &mut Value) {
        let name = get_text(object, "metadata.name").to_owned();
        if !name.is_empty() {
            get_or_create_object(object, "metadata.labels")
                .insert(NAME_LABEL.to_owned(), name.into());
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        metadata::restore_generation(object, old);
        let Some(old) = old else {
            set_value(object, "status", json!({ "phase": "Active" }));
            if !get_texts(object, "spec.finalizers").contains(&FINALIZER) {
                get_or_create_object(object, "spec")
                    .entry("finalizers")
                    .or_insert_with(|| json!([]));
                if let Some(finalizers) = get_list_mut(object, "spec.finalizers") {
                    finalizers.push(FINALIZER.into());
                }
            }
            return;
        };
        match subresource {
            Subresource::None => {
                // In a cluster only the subresource `finalize` changes these.
                copy_value(object, old, "spec.finalizers");
                copy_value(object, old, "status");
            }
            Subresource::Status => copy_value(object, old, "spec"),
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_label);
        for (index, finalizer) in get_texts(object, "spec.finalizers").iter().enumerate() {
            let field = format!("spec.finalizers[{index}]");
            violations.extend(names::check_name(&field, finalizer, names::check_qualified_name));
        }
        violations
    }

    /// Each takes all that is in it with it.
    fn deletes_collections(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("Status", "The status of the namespace"),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let deleted = get_value(object, "metadata.deletionTimestamp").is_some();
        let phase = if deleted { "Terminating" } else { get_text(object, "status.phase") };
        vec![table::name_cell(object), phase.into(), table::age_cell(object, now)]
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        match path {
            "name" => Some(get_text(object, "metadata.name").to_owned()),
            _ => metadata::selectable_field(object, path, &["status.phase"]),
        }
    }
}
