//! JSON merge patch (RFC 7386): objects are merged, everything else is replaced, null removes.

use serde_json::Value;

use super::PatchError;

pub(crate) fn apply_merge_patch(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("a merge patch must be an object".to_owned()));
    }
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_merged_and_lists_replaced() {
        let object = json!({ "a": { "b": 1, "c": 2 }, "list": [1, 2], "gone": 1 });
        let patch = json!({ "a": { "b": 3 }, "list": [4], "gone": null, "new": { "x": null } });
        let expected = json!({ "a": { "b": 3, "c": 2 }, "list": [4], "new": {} });
        assert_eq!(apply_merge_patch(&object, &patch), Ok(expected));
    }

    #[test]
    fn only_an_object_is_a_patch() {
        assert!(apply_merge_patch(&json!({}), &json!([])).is_err());
        assert!(apply_merge_patch(&json!({}), &Value::Null).is_err());
    }
}
