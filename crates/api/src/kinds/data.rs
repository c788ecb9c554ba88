//! The data of Secrets and ConfigMaps.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::json::{get_entries, get_flag, get_value};
use super::names;
use super::violation::Violation;

/// All values of an object together, in bytes.
pub(crate) const MAX_DATA_BYTES: usize = 1024 * 1024;

/// Violations of an update of an immutable object.
pub(crate) fn validate_frozen_data(
    object: &Value,
    old: &Value,
    fields: &[&'static str],
) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !get_flag(old, "immutable") {
        return violations;
    }
    let detail = "field is immutable when `immutable` is set";
    if !get_flag(object, "immutable") {
        violations.push(Violation::forbidden("immutable", detail));
    }
    for field in
        fields.iter().copied().filter(|field| get_value(object, field) != get_value(old, field))
    {
        violations.push(Violation::forbidden(field, detail));
    }
    violations
}

/// Violations of the keys of a field.
pub(crate) fn validate_data_keys(object: &Value, field: &str) -> Vec<Violation> {
    let of = |key: &str| names::check_name(&format!("{field}[{key}]"), key, names::check_data_key);
    get_entries(object, field).flat_map(|(key, _)| of(key)).collect()
}

/// The size of the values of a field that are encoded as base64, and violations of the encoding.
pub(crate) fn validate_base64_values(object: &Value, field: &str) -> (usize, Vec<Violation>) {
    let mut violations = Vec::new();
    let mut size = 0;
    for (key, value) in get_entries(object, field) {
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
pub(crate) fn validate_data_size(size: usize) -> Option<Violation> {
    (size > MAX_DATA_BYTES).then(|| Violation::too_long("data", MAX_DATA_BYTES))
}
