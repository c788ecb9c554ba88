//! Reads and writes fields of objects by dotted paths.

use serde_json::{Map, Value};

/// `at(service, "spec.ports")`. Cannot address keys that contain dots.
pub(crate) fn get_value<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(object, |value, name| value.get(name)).filter(|value| !value.is_null())
}

/// Empty if the field is missing or not a string.
pub(crate) fn get_text<'a>(object: &'a Value, path: &str) -> &'a str {
    get_value(object, path).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn get_number(object: &Value, path: &str) -> i64 {
    get_value(object, path).and_then(Value::as_i64).unwrap_or_default()
}

pub(crate) fn get_flag(object: &Value, path: &str) -> bool {
    get_value(object, path).and_then(Value::as_bool).unwrap_or_default()
}

pub(crate) fn get_list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    get_value(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The strings in a list.
pub(crate) fn get_texts<'a>(object: &'a Value, path: &str) -> Vec<&'a str> {
    get_list(object, path).iter().filter_map(Value::as_str).collect()
}

/// Name and value of each entry, ordered by name.
pub(crate) fn get_entries<'a>(
    object: &'a Value,
    path: &str,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    get_value(object, path)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value))
}

/// The object at the path, created if it is missing.
pub(crate) fn get_or_create_object<'a>(
    object: &'a mut Value,
    path: &str,
) -> &'a mut Map<String, Value> {
    let mut value = object;
    for name in path.split('.') {
        value = as_map(value).entry(name).or_insert_with(|| Value::Object(Map::new()));
    }
    as_map(value)
}

pub(crate) fn get_list_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Vec<Value>> {
    path.split('.').try_fold(object, |value, name| value.get_mut(name))?.as_array_mut()
}

/// `set(service, "spec.type", "ClusterIP")`
pub(crate) fn set_value(object: &mut Value, path: &str, value: impl Into<Value>) {
    let (parent, name) = parent(object, path);
    parent.insert(name.to_owned(), value.into());
}

/// Sets a missing field. As everywhere in the API, an empty string counts as missing.
pub(crate) fn set_if_missing(object: &mut Value, path: &str, value: impl Into<Value>) {
    if get_value(object, path).is_none_or(|present| present == "") {
        set_value(object, path, value);
    }
}

pub(crate) fn remove_value(object: &mut Value, path: &str) -> Option<Value> {
    match path.rsplit_once('.') {
        None => object.as_object_mut()?.remove(path),
        Some((parent, name)) => parent
            .split('.')
            .try_fold(object, |value, name| value.get_mut(name))?
            .as_object_mut()?
            .remove(name),
    }
}

/// Copies a field from another object, or removes it if it is missing there.
pub(crate) fn copy_value(object: &mut Value, from: &Value, path: &str) {
    match get_value(from, path) {
        Some(value) => set_value(object, path, value.clone()),
        None => {
            remove_value(object, path);
        }
    }
}

fn parent<'a, 'b>(object: &'a mut Value, path: &'b str) -> (&'a mut Map<String, Value>, &'b str) {
    match path.rsplit_once('.') {
        None => (as_map(object), path),
        Some((parent, name)) => (get_or_create_object(object, parent), name),
    }
}

/// Replaces values that should be objects. Wrong types from clients were refused by the decoder.
fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}
