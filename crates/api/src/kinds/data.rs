//! The data of Secrets and ConfigMaps.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::json::{at, entries, flag};
use super::names;
use super::violation::Violation;

/// All values of an object together, in bytes.
pub const MOST_BYTES: usize = 1024 * 1024;

/// Violations of an update of an immutable object.
pub fn frozen(object: &Value, old: &Value, fields: &[&'static str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !flag(old, "immutable") {
        return violations;
    }
    let detail = "field is immutable when `immutable` is set";
    if !flag(object, "immutable") {
        violations.push(Violation::forbidden("immutable", detail));
    }
    for field in fields.iter().copied().filter(|field| at(object, field) != at(old, field)) {
        violations.push(Violation::forbidden(field, detail));
    }
    violations
}

/// Violations of the keys of a field.
pub fn keys(object: &Value, field: &str) -> Vec<Violation> {
    let of = |key: &str| names::violations(&format!("{field}[{key}]"), key, names::data_key);
    entries(object, field).flat_map(|(key, _)| of(key)).collect()
}

/// The size of the values of a field that are encoded as base64, and violations of the encoding.
pub fn decoded(object: &Value, field: &str) -> (usize, Vec<Violation>) {
    let mut violations = Vec::new();
    let mut size = 0;
    for (key, value) in entries(object, field) {
        match STANDARD.decode(value.as_str().unwrap_or_default()) {
            Ok(bytes) => size += bytes.len(),
            Err(error) => {
                let detail = format!("must be encoded as base64: {error}");
                let field = format!("{field}[{key}]");
                violations.push(Violation::invalid(field, "<redacted>", &detail));
            }
        }
    }
    (size, violations)
}

/// A violation if the values are too large.
pub fn too_large(size: usize) -> Option<Violation> {
    (size > MOST_BYTES).then(|| Violation::too_long("data", MOST_BYTES))
}
