//! JSON patch (RFC 6902): a list of operations.

use serde::Deserialize;
use serde_json::Value;

use super::PatchError;

/// The limit of an API server.
const MOST_OPERATIONS: usize = 10_000;

/// Applies all operations or none.
pub fn apply(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = json_patch::Patch::deserialize(patch)
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    if operations.len() > MOST_OPERATIONS {
        return Err(PatchError::Malformed(format!(
            "The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut patched = object.clone();
    json_patch::patch(&mut patched, &operations).map_err(|error| {
        let operation = serde_json::to_string(&operations[error.operation]).unwrap_or_default();
        PatchError::Unfitting(format!("{}: {operation}", error.kind))
    })?;
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_are_applied_in_order() {
        let object = json!({ "metadata": { "labels": { "a": "1" } }, "list": [1, 2] });
        let patch = json!([
            { "op": "test", "path": "/metadata/labels/a", "value": "1" },
            { "op": "replace", "path": "/metadata/labels/a", "value": "2" },
            { "op": "add", "path": "/metadata/labels/example.com~1b", "value": "3" },
            { "op": "remove", "path": "/list/0" },
            { "op": "add", "path": "/list/-", "value": 3 },
        ]);
        let expected = json!({
            "metadata": { "labels": { "a": "2", "example.com/b": "3" } },
            "list": [2, 3],
        });
        assert_eq!(apply(&object, &patch), Ok(expected));
    }

    #[test]
    fn unfitting_and_malformed_patches_are_distinguished() {
        let object = json!({ "a": 1 });
        for (patch, is_malformed) in [
            (json!({ "a": 2 }), true),
            (json!([{ "op": "jump", "path": "/a" }]), true),
            (json!([{ "op": "remove", "path": "/b" }]), false),
            (json!([{ "op": "test", "path": "/a", "value": 2 }]), false),
            (json!([{ "op": "replace", "path": "/b/c", "value": 2 }]), false),
        ] {
            let error = apply(&object, &patch).expect_err("refused");
            assert_eq!(matches!(error, PatchError::Malformed(_)), is_malformed, "{patch}: {error}");
        }
    }
}
