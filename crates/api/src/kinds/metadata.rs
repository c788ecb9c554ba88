//! Metadata rules that are the same for all kinds: names, labels, annotations.

use serde_json::{Value, json};

use super::json::{at, entries, list, number, remove, set, text, texts};
use super::names::{self, Check};
use super::violation::Violation;

const IMMUTABLE: &str = "field is immutable";
const MOST_ANNOTATIONS: usize = 256 * 1024;

/// The checks that are the same for all kinds. The form of the name depends on the kind (`name`).
pub fn validate(object: &Value, old: Option<&Value>, namespaced: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    match old {
        Some(old) => violations.extend(updated(object, old)),
        None => violations.extend(namespace(object, namespaced)),
    }
    violations.extend(labels(object, "metadata.labels"));
    violations.extend(annotations(object));
    violations.extend(owners(object));
    violations.extend(finalizers(object));
    violations
}

/// Checks the name and `generateName` of a new object. Names of stored objects are not checked.
pub fn name(object: &Value, old: Option<&Value>, check: Check) -> Vec<Violation> {
    if old.is_some() {
        return Vec::new();
    }
    let mut violations = Vec::new();
    let prefix = text(object, "metadata.generateName");
    if !prefix.is_empty() {
        for wrong in names::of_prefix(prefix, check) {
            violations.push(Violation::invalid("metadata.generateName", prefix, &wrong));
        }
    }
    match text(object, "metadata.name") {
        "" => violations
            .push(Violation::required("metadata.name", "name or generateName is required")),
        name => violations.extend(names::violations("metadata.name", name, check)),
    }
    violations
}

fn namespace(object: &Value, namespaced: bool) -> Vec<Violation> {
    let path = "metadata.namespace";
    match (namespaced, text(object, path)) {
        (true, "") => vec![Violation::required(path, "")],
        (true, namespace) => names::violations(path, namespace, names::label),
        (false, "") => Vec::new(),
        (false, _) => vec![Violation::forbidden(path, "not allowed on this type")],
    }
}

fn updated(object: &Value, old: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    if at(old, "metadata.deletionTimestamp").is_some() {
        let before = texts(old, "metadata.finalizers");
        let mut added = texts(object, "metadata.finalizers");
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
        violations.extend(immutable(object, old, &format!("metadata.{field}")));
    }
    violations.extend(immutable(object, old, "metadata.deletionGracePeriodSeconds"));
    violations
}

/// A field that must not change.
pub fn immutable(object: &Value, old: &Value, path: &str) -> Option<Violation> {
    let (new, old) = (at(object, path), at(old, path));
    (new != old).then(|| Violation::invalid(path, new.cloned().unwrap_or(Value::Null), IMMUTABLE))
}

/// Checks labels, or the labels of a selector.
pub fn labels(object: &Value, path: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (key, value) in entries(object, path) {
        violations.extend(names::violations(path, key, names::qualified));
        let value = value.as_str().unwrap_or_default();
        violations.extend(names::violations(path, value, names::label_value));
    }
    violations
}

fn annotations(object: &Value) -> Vec<Violation> {
    let path = "metadata.annotations";
    let mut violations = Vec::new();
    let mut size = 0;
    for (key, value) in entries(object, path) {
        for wrong in names::qualified(&key.to_lowercase()) {
            violations.push(Violation::invalid(path, key, &wrong));
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > MOST_ANNOTATIONS {
        violations.push(Violation::too_long(path, MOST_ANNOTATIONS));
    }
    violations
}

fn owners(object: &Value) -> Vec<Violation> {
    let path = "metadata.ownerReferences";
    let mut violations = Vec::new();
    let mut controller: Option<String> = None;
    for owner in list(object, path) {
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(owner, field).is_empty() {
                violations.push(Violation::invalid(format!("{path}.{field}"), "", detail));
            }
        }
        if owner.get("controller") == Some(&json!(true)) {
            let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. \
                         Found \"true\" in references for {first} and {this}"
                    );
                    let all = at(object, path).cloned().unwrap_or_default();
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
    let finalizers = texts(object, path);
    let mut violations: Vec<Violation> = finalizers
        .iter()
        .flat_map(|finalizer| names::violations(path, finalizer, names::qualified))
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
pub fn count_generation(object: &mut Value, old: Option<&Value>) {
    let Some(old) = old else {
        set(object, "metadata.generation", 1);
        return;
    };
    let before = number(old, "metadata.generation").max(1);
    let generation = if desired(object) == desired(old) { before } else { before + 1 };
    set(object, "metadata.generation", generation);
}

/// For kinds without generations: clients cannot set one.
pub fn keep_generation(object: &mut Value, old: Option<&Value>) {
    match old.and_then(|old| at(old, "metadata.generation")) {
        Some(generation) => set(object, "metadata.generation", generation.clone()),
        None => {
            remove(object, "metadata.generation");
        }
    }
}

fn desired(object: &Value) -> Vec<(&String, &Value)> {
    const OTHER: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, value)| !OTHER.contains(&name.as_str()) && !value.is_null()).collect()
}

/// The value of a field that selectors may name, or `None`.
pub fn field(object: &Value, path: &str, selectable: &[&str]) -> Option<String> {
    if !selectable.contains(&path) {
        return None;
    }
    Some(match at(object, path) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    })
}
