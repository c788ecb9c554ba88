//! Strategic merge patch: like a merge patch, but some lists are merged by a key of their items,
//! and directives express what a merge cannot.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use super::shape::TypeNode;
use crate::kinds::ApiKind;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

type PatchEntries = Map<String, Value>;

pub(crate) fn apply_strategic_patch(
    kind: &ApiKind,
    object: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(malformed("a strategic merge patch must be an object"));
    };
    merge_maps(object, patch, TypeNode::root(kind)).map(Value::Object)
}

fn malformed(why: impl Into<String>) -> PatchError {
    PatchError::Malformed(why.into())
}

fn merge_maps(
    object: &PatchEntries,
    patch: &PatchEntries,
    node: TypeNode,
) -> Result<PatchEntries, PatchError> {
    match directive(patch)? {
        Some(Directive::Replace) => return without_directives(patch),
        Some(Directive::Delete) => return Ok(Map::new()),
        Some(Directive::Merge) | None => {}
    }
    let mut merged = object.clone();
    retain(&mut merged, patch)?;
    for (name, value) in patch {
        if let Some(name) = name.strip_prefix(DELETE) {
            delete_values(&mut merged, name, value)?;
        } else if let Some(name) = name.strip_prefix(ORDER) {
            check_order(name, patch, value, node.child(name))?;
        } else if name != PATCH && name != RETAIN_KEYS {
            merge_entry(&mut merged, name, value, node.child(name))?;
        }
    }
    for (name, order) in patch {
        if let Some(name) = name.strip_prefix(ORDER)
            && let Some(Value::Array(items)) = merged.get_mut(name)
        {
            let (order, before) = (list_or_empty(Some(order)), list_or_empty(object.get(name)));
            *items = reorder(std::mem::take(items), order, before, node.child(name));
        }
    }
    Ok(merged)
}

fn merge_entry(
    object: &mut PatchEntries,
    name: &str,
    patch: &Value,
    node: TypeNode,
) -> Result<(), PatchError> {
    let merged = match (object.get(name), patch) {
        (_, Value::Null) => {
            object.remove(name);
            return Ok(());
        }
        (Some(Value::Object(entries)), Value::Object(patch)) => {
            Value::Object(merge_maps(entries, patch, node)?)
        }
        (Some(Value::Array(items)), Value::Array(patch)) if node.is_merged() => {
            Value::Array(reorder(merge_lists(items, patch, node)?, patch, items, node))
        }
        _ => strip_directives(patch)?,
    };
    object.insert(name.to_owned(), merged);
    Ok(())
}

enum Directive {
    Replace,
    Delete,
    Merge,
}

fn directive(patch: &PatchEntries) -> Result<Option<Directive>, PatchError> {
    match patch.get(PATCH) {
        None => Ok(None),
        Some(Value::String(word)) if word == "replace" => Ok(Some(Directive::Replace)),
        Some(Value::String(word)) if word == "delete" => Ok(Some(Directive::Delete)),
        Some(Value::String(word)) if word == "merge" => Ok(Some(Directive::Merge)),
        Some(other) => Err(malformed(format!("unknown patch type found: {other}"))),
    }
}

/// `$retainKeys`: removes all other fields. The patch must not set any other field.
fn retain(object: &mut PatchEntries, patch: &PatchEntries) -> Result<(), PatchError> {
    let Some(list) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let Some(names) = list.as_array() else {
        return Err(malformed("$retainKeys must be a list"));
    };
    let names: HashSet<&str> = names.iter().filter_map(Value::as_str).collect();
    let is_retained = |name: &str| names.contains(name);
    let is_set = |name: &str, value: &Value| !value.is_null() && !name.starts_with('$');
    if let Some((name, _)) =
        patch.iter().find(|(name, value)| is_set(name, value) && !is_retained(name))
    {
        return Err(malformed(format!("field {name} is set, but not in $retainKeys")));
    }
    object.retain(|name, _| is_retained(name));
    Ok(())
}

fn delete_values(object: &mut PatchEntries, name: &str, gone: &Value) -> Result<(), PatchError> {
    let Some(gone) = gone.as_array() else {
        return Err(malformed(format!("{DELETE}{name} must be a list")));
    };
    let gone: HashSet<String> = gone.iter().map(Value::to_string).collect();
    if let Some(Value::Array(values)) = object.get_mut(name) {
        values.retain(|value| !gone.contains(&value.to_string()));
    }
    Ok(())
}

/// Items in the patch must be in the order that the patch defines.
fn check_order(
    name: &str,
    patch: &PatchEntries,
    order: &Value,
    node: TypeNode,
) -> Result<(), PatchError> {
    let Some(order) = order.as_array() else {
        return Err(malformed(format!("{ORDER}{name} must be a list")));
    };
    let order = positions(order, node);
    let is_in_order = |item: &Value| position(&order, item, node).is_some();
    let is_kept = |item: &&Value| item.get(PATCH).is_none();
    match list_or_empty(patch.get(name)).iter().filter(is_kept).find(|item| !is_in_order(item)) {
        None => Ok(()),
        Some(item) => Err(malformed(format!("{item} of {name} is not in {ORDER}{name}"))),
    }
}

fn merge_lists(
    object: &[Value],
    patch: &[Value],
    node: TypeNode,
) -> Result<Vec<Value>, PatchError> {
    let Some(key) = node.merge_key() else { return Ok(merge_values(object, patch)) };
    if patch.iter().any(|item| item.get(PATCH).is_some_and(|word| word == "replace")) {
        let others = patch.iter().filter(|item| item.get(PATCH).is_none());
        return others.map(strip_directives).collect();
    }
    let mut merged: Vec<Option<Value>> = object.iter().cloned().map(Some).collect();
    // Where the items with a value of the key are. Of equal ones the first is merged.
    let mut positions: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, item) in object.iter().enumerate() {
        if let Some(value) = item.get(key) {
            positions.entry(value.to_string()).or_default().push(index);
        }
    }
    for item in patch {
        let Value::Object(item) = item else {
            return Err(malformed(format!("{item} is not an object, but must be merged by {key}")));
        };
        let Some(value) = item.get(key) else {
            let item = Value::Object(item.clone());
            return Err(malformed(format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        };
        let value = value.to_string();
        if matches!(directive(item)?, Some(Directive::Delete)) {
            for index in positions.remove(&value).unwrap_or_default() {
                merged[index] = None;
            }
            continue;
        }
        let first = positions.get(&value).and_then(|positions| positions.first()).copied();
        match first.and_then(|index| merged[index].as_mut()) {
            Some(Value::Object(one)) => *one = merge_maps(one, item, node.item())?,
            _ => {
                positions.entry(value).or_default().push(merged.len());
                merged.push(Some(Value::Object(without_directives(item)?)));
            }
        }
    }
    Ok(merged.into_iter().flatten().collect())
}

fn merge_values(object: &[Value], patch: &[Value]) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let all = object.iter().chain(patch).cloned();
    all.filter(|value| seen.insert(value.to_string())).collect()
}

fn list_or_empty(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// What identifies an item in a list: its merge key, or its value. `None` without a key.
fn identity(item: &Value, node: TypeNode) -> Option<String> {
    match node.merge_key() {
        Some(key) => item.get(key).map(Value::to_string),
        None => Some(item.to_string()),
    }
}

/// The first position of each item.
fn positions(list: &[Value], node: TypeNode) -> HashMap<String, usize> {
    let all = list.iter().enumerate().rev();
    all.filter_map(|(index, item)| Some((identity(item, node)?, index))).collect()
}

fn position(positions: &HashMap<String, usize>, item: &Value, node: TypeNode) -> Option<usize> {
    positions.get(&identity(item, node)?).copied()
}

/// Sorts a list in the client's order, which is that of the patch unless it says another one. Items that the client
/// does not know stay before the items that they preceded on the server, and come after all others.
fn reorder(items: Vec<Value>, order: &[Value], before: &[Value], node: TypeNode) -> Vec<Value> {
    let (order, before) = (positions(order, node), positions(before, node));
    let (mut known, unknown): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| position(&order, item, node).is_some());
    known.sort_by_cached_key(|item| position(&order, item, node));
    let mut known = known.into_iter().peekable();
    let mut merged = Vec::new();
    for item in unknown {
        // New items are placed by the order.
        while let Some(next) = known.peek() {
            let positions = (position(&before, &item, node), position(&before, next, node));
            if matches!(positions, (Some(item), Some(next)) if item < next) {
                break;
            }
            merged.extend(known.next());
        }
        merged.push(item);
    }
    merged.extend(known);
    merged
}

/// A value of the patch where the object has none.
fn strip_directives(value: &Value) -> Result<Value, PatchError> {
    match value {
        Value::Object(entries) => without_directives(entries).map(Value::Object),
        Value::Array(items) => {
            let kept =
                items.iter().filter(|item| item.get(PATCH).is_none_or(|word| word == "merge"));
            kept.map(strip_directives).collect::<Result<_, _>>().map(Value::Array)
        }
        other => Ok(other.clone()),
    }
}

fn without_directives(entries: &PatchEntries) -> Result<PatchEntries, PatchError> {
    let is_plain = |name: &str| {
        name != PATCH
            && name != RETAIN_KEYS
            && !name.starts_with(DELETE)
            && !name.starts_with(ORDER)
    };
    let kept = entries.iter().filter(|(name, value)| is_plain(name) && !value.is_null());
    kept.map(|(name, value)| Ok((name.clone(), strip_directives(value)?))).collect()
}
