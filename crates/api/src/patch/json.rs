//! JSON patch (RFC 6902): a list of operations.
//!
//! Bounded, whatever the patch:
//! - Memory: what operations add and copy counts, `MAX_GROWTH_BYTES` bytes together. Without a limit, each copy
//!   could double the object.
//! - Depth: no operation writes below `MAX_PATCH_DEPTH` levels, so that recursive functions do not exhaust the
//!   stack.
//! - Time: items of lists that an operation moves count, `MAX_MOVED_ITEMS` together.

use json_patch::PatchOperation;
use json_patch::jsonptr::Pointer;
use serde::Deserialize;
use serde_json::Value;

use super::PatchError;
use crate::storage::estimate_size;

/// The limit of an API server.
const MOST_OPERATIONS: usize = 10_000;
/// The limit of an API server for copies: that of a request's body.
const MAX_GROWTH_BYTES: usize = 3 << 20;
/// The depth limit of the JSON parser.
const MAX_PATCH_DEPTH: usize = 128;
const MAX_MOVED_ITEMS: usize = 10_000_000;

/// Applies all operations or none.
pub(crate) fn apply_json_patch(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = json_patch::Patch::deserialize(patch).map_err(|error| {
        let why = format!("error decoding patch: {error}");
        // Like an API server, which reads only one operation after the other.
        if patch.as_array().is_some_and(|all| all.iter().all(Value::is_object)) {
            PatchError::Unfitting(why)
        } else {
            PatchError::Malformed(why)
        }
    })?;
    if operations.len() > MOST_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut patched = object.clone();
    let mut costs = PatchCosts::default();
    for operation in operations.iter() {
        costs.add(&patched, operation)?;
        json_patch::patch(&mut patched, std::slice::from_ref(operation)).map_err(|error| {
            let operation = serde_json::to_string(operation).unwrap_or_default();
            PatchError::Unfitting(format!("{}: {operation}", error.kind))
        })?;
    }
    Ok(patched)
}

#[derive(Default)]
struct PatchCosts {
    bytes: usize,
    moves: usize,
}

impl PatchCosts {
    /// Counts an operation before it is performed.
    fn add(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), PatchError> {
        let path = operation.path();
        let (written, from) = match operation {
            PatchOperation::Add(add) => (Some(&add.value), None),
            PatchOperation::Replace(replace) => (Some(&replace.value), None),
            PatchOperation::Copy(copy) => (copy.from.resolve(object).ok(), None),
            PatchOperation::Move(moved) => {
                (moved.from.resolve(object).ok(), Some(moved.from.as_ptr()))
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, None),
        };
        self.moves +=
            items_beside(object, path) + from.map_or(0, |from| items_beside(object, from));
        if self.moves > MAX_MOVED_ITEMS {
            return Err(PatchError::TooLarge(format!(
                "the operations of the JSON patch move more than {MAX_MOVED_ITEMS} items of lists"
            )));
        }
        let Some(written) = written else {
            return Ok(());
        };
        if path.count() + depth(written) > MAX_PATCH_DEPTH {
            return Err(PatchError::TooLarge(format!(
                "the JSON patch writes below {MAX_PATCH_DEPTH} levels, at {path}"
            )));
        }
        self.bytes += estimate_size(written);
        if self.bytes > MAX_GROWTH_BYTES {
            return Err(PatchError::TooLarge(format!(
                "Unable to complete the copy, the accumulated size increase of the JSON patch \
                 exceeds the limit {MAX_GROWTH_BYTES}"
            )));
        }
        Ok(())
    }
}

/// Items of the list that has the item of this path, or 0.
fn items_beside(object: &Value, path: &Pointer) -> usize {
    let list = path.parent().and_then(|parent| parent.resolve(object).ok());
    list.and_then(Value::as_array).map_or(0, Vec::len)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
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
        assert_eq!(apply_json_patch(&object, &patch), Ok(expected));
    }

    #[test]
    fn unfitting_and_malformed_patches_are_distinguished() {
        let object = json!({ "a": 1 });
        for (patch, is_malformed) in [
            (json!({ "a": 2 }), true),
            (json!(["jump"]), true),
            (json!([{ "op": "jump", "path": "/a" }]), false),
            (json!([{ "op": "add", "path": "a", "value": 1 }]), false),
            (json!([{ "op": "add", "value": 1 }]), false),
            (json!([{ "op": "remove", "path": "/b" }]), false),
            (json!([{ "op": "test", "path": "/a", "value": 2 }]), false),
            (json!([{ "op": "replace", "path": "/b/c", "value": 2 }]), false),
        ] {
            let error = apply_json_patch(&object, &patch).expect_err("refused");
            assert_eq!(matches!(error, PatchError::Malformed(_)), is_malformed, "{patch}: {error}");
        }
    }

    fn refused(patch: Value) -> String {
        let object = json!({ "a": { "b": "x".repeat(100) }, "list": vec![0; 5000] });
        match apply_json_patch(&object, &patch).expect_err("refused") {
            PatchError::TooLarge(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn copies_cannot_double_the_object_without_end() {
        let double = json!({ "op": "copy", "from": "/a", "path": "/a/copy" });
        let nest =
            |number: usize| json!({ "op": "copy", "from": "/a", "path": format!("/a/c{number}") });
        assert!(refused(Value::Array((0..60).map(nest).collect())).contains("exceeds the limit"));
        // The copy replaces the one before.
        let twice = json!([double.clone(), double]);
        assert!(apply_json_patch(&json!({ "a": { "b": 1 } }), &twice).is_ok());
    }

    #[test]
    fn the_depth_of_what_operations_write_is_limited() {
        // Each copy doubles the depth, but hardly the size.
        let mut operations = vec![json!({ "op": "add", "path": "/a", "value": { "n": {} } })];
        let mut depth = 1;
        for _ in 0..20 {
            let end = "/n".repeat(depth);
            operations.push(json!({ "op": "copy", "from": "/a", "path": format!("/a{end}/n") }));
            depth = depth * 2 + 1;
            if depth > 1000 {
                break;
            }
        }
        assert!(refused(Value::Array(operations)).contains("128 levels"));
    }

    #[test]
    fn moving_the_items_of_long_lists_is_limited() {
        let insert = json!({ "op": "add", "path": "/list/0", "value": 0 });
        assert!(refused(Value::Array(vec![insert; 5000])).contains("items of lists"));
    }

    #[test]
    fn the_number_of_operations_is_limited() {
        let test = json!({ "op": "test", "path": "/a", "value": 1 });
        assert!(refused(Value::Array(vec![test; 10_001])).contains("10000"));
    }
}
