//! Metadata rules that are the same for all kinds: names, labels, annotations.

use serde_json::{Value, json};

use super::json::{
    get_entries, get_list, get_number, get_text, get_texts, get_value, remove_value, set_value,
};
use super::names::{self, NameCheck};
use super::violation::Violation;

const IMMUTABLE: &str = "field is immutable";
const MOST_ANNOTATIONS: usize = 256 * 1024;

/// The checks that are the same for all kinds. The form of the name depends on the kind (`validate_new_name`).
pub(crate) fn validate_metadata(
    object: &Value,
    old: Option<&Value>,
    namespaced: bool,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    match old {
        Some(old) => violations.extend(validate_metadata_update(object, old)),
        None => violations.extend(namespace(object, namespaced)),
    }
    violations.extend(validate_labels(object, "metadata.labels"));
    violations.extend(annotations(object));
    violations.extend(validate_owner_references(object));
    violations.extend(finalizers(object));
    violations
}

/// Checks the name and `generateName` of a new object. Names of stored objects are not checked.
pub(crate) fn validate_new_name(
    object: &Value,
    old: Option<&Value>,
    check: NameCheck,
) -> Vec<Violation> {
    if old.is_some() {
        return Vec::new();
    }
    let mut violations = Vec::new();
    let prefix = get_text(object, "metadata.generateName");
    if !prefix.is_empty() {
        for wrong in names::check_name_prefix(prefix, check) {
            violations.push(Violation::invalid("metadata.generateName", prefix, &wrong));
        }
    }
    match get_text(object, "metadata.name") {
        "" => violations
            .push(Violation::required("metadata.name", "name or generateName is required")),
        name => violations.extend(names::check_name("metadata.name", name, check)),
    }
    violations
}

fn namespace(object: &Value, namespaced: bool) -> Vec<Violation> {
    let path = "metadata.namespace";
    match (namespaced, get_text(object, path)) {
        (true, "") => vec![Violation::required(path, "")],
        (true, namespace) => names::check_name(path, namespace, names::check_label),
        (false, "") => Vec::new(),
        (false, _) => vec![Violation::forbidden(path, "not allowed on this type")],
    }
}

fn validate_metadata_update(object: &Value, old: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    if get_value(old, "metadata.deletionTimestamp").is_some() {
        let before = get_texts(old, "metadata.finalizers");
        let mut added = get_texts(object, "metadata.finalizers");
        added.retain(|finalizer| !before.contains(finalizer));
        added.sort_unstable();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, \
                 found new finalizers []string{{{}}}",
                added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
            );
            violations.push(Violation::forbidden("metadata.finalizers", &detail));
        }
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"] {
        violations.extend(validate_immutable(object, old, &format!("metadata.{field}")));
    }
    violations.extend(validate_immutable(object, old, "metadata.deletionGracePeriodSeconds"));
    violations
}

/// A field that must not change.
pub(crate) fn validate_immutable(object: &Value, old: &Value, path: &str) -> Option<Violation> {
    let (new, old) = (get_value(object, path), get_value(old, path));
    (new != old).then(|| Violation::invalid(path, new.cloned().unwrap_or(Value::Null), IMMUTABLE))
}

/// Checks labels, or the labels of a selector.
pub(crate) fn validate_labels(object: &Value, path: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (key, value) in get_entries(object, path) {
        violations.extend(names::check_name(path, key, names::check_qualified_name));
        let value = value.as_str().unwrap_or_default();
        violations.extend(names::check_name(path, value, names::check_label_value));
    }
    violations
}

fn annotations(object: &Value) -> Vec<Violation> {
    let path = "metadata.annotations";
    let mut violations = Vec::new();
    let mut size = 0;
    for (key, value) in get_entries(object, path) {
        for wrong in names::check_qualified_name(&key.to_lowercase()) {
            violations.push(Violation::invalid(path, key, &wrong));
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > MOST_ANNOTATIONS {
        violations.push(Violation::too_long(path, MOST_ANNOTATIONS));
    }
    violations
}

fn validate_owner_references(object: &Value) -> Vec<Violation> {
    let path = "metadata.ownerReferences";
    let mut violations = Vec::new();
    let mut controller: Option<String> = None;
    for owner in get_list(object, path) {
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if get_text(owner, field).is_empty() {
                violations.push(Violation::invalid(format!("{path}.{field}"), "", detail));
            }
        }
        if owner.get("controller") == Some(&json!(true)) {
            let this = format!("{}/{}", get_text(owner, "kind"), get_text(owner, "name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. \
                         Found \"true\" in references for {first} and {this}"
                    );
                    let all = get_value(object, path).cloned().unwrap_or_default();
                    violations.push(Violation::invalid(path, all, &detail));
                }
                None => controller = Some(this),
            }
        }
    }
    violations
}

const STANDARD_FINALIZERS: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];

fn finalizers(object: &Value) -> Vec<Violation> {
    let path = "metadata.finalizers";
    let finalizers = get_texts(object, path);
    let mut violations: Vec<Violation> = finalizers
        .iter()
        .flat_map(|finalizer| names::check_name(path, finalizer, names::check_qualified_name))
        .collect();
    for (index, finalizer) in finalizers.iter().enumerate() {
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            violations.push(Violation::invalid(format!("{path}[{index}]"), *finalizer, detail));
        }
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        violations.push(Violation::invalid(path, finalizers, detail));
    }
    violations
}

/// 1 for a new object. Increased by each change outside of metadata and status.
pub(crate) fn count_generation(object: &mut Value, old: Option<&Value>) {
    let Some(old) = old else {
        set_value(object, "metadata.generation", 1);
        return;
    };
    let before = get_number(old, "metadata.generation").max(1);
    let generation = if desired(object) == desired(old) { before } else { before + 1 };
    set_value(object, "metadata.generation", generation);
}

/// For kinds without generations: clients cannot set one.
pub(crate) fn restore_generation(object: &mut Value, old: Option<&Value>) {
    match old.and_then(|old| get_value(old, "metadata.generation")) {
        Some(generation) => set_value(object, "metadata.generation", generation.clone()),
        None => {
            remove_value(object, "metadata.generation");
        }
    }
}

fn desired(object: &Value) -> Vec<(&String, &Value)> {
    const OTHER: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, value)| !OTHER.contains(&name.as_str()) && !value.is_null()).collect()
}

/// The value of a field that selectors may name, or `None`.
pub(crate) fn selectable_field(object: &Value, path: &str, selectable: &[&str]) -> Option<String> {
    if !selectable.contains(&path) {
        return None;
    }
    Some(match get_value(object, path) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    })
}
