//! Objects as sets of fields: collects, compares, merges and removes fields. All in n log n.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::fields::{FieldSet, field_element, path_element};
use super::shape::{MergeShape, TypeNode, keyed_element, value_element};

/// Undeclared fields that are reported.
const MAX_UNDECLARED_FIELDS: usize = 100;

/// All fields of a value.
pub(crate) fn collect_fields(value: &Value, node: TypeNode) -> FieldSet {
    let mut fields = FieldSet::default();
    collect(value, node, &mut Vec::new(), &mut fields);
    fields
}

fn collect(value: &Value, node: TypeNode, path: &mut Vec<String>, fields: &mut FieldSet) {
    let shape = node.shape();
    match (&shape, value) {
        (MergeShape::Entries, Value::Object(entries)) => {
            for (name, entry) in entries.iter().filter(|(_, entry)| !entry.is_null()) {
                path.push(field_element(name));
                let child = node.child(name);
                collect(entry, child, path, fields);
                if entry.as_object().is_some_and(Map::is_empty) {
                    fields.insert(path);
                }
                path.pop();
            }
        }
        (MergeShape::Set | MergeShape::Keyed(_), Value::Array(items)) => {
            for item in items {
                path.push(element(&shape, item));
                collect(item, node.item(), path, fields);
                fields.insert(path);
                path.pop();
            }
        }
        _ => fields.insert(path),
    }
}

fn element(shape: &MergeShape, item: &Value) -> String {
    match shape {
        MergeShape::Keyed(keys) => keyed_element(item, keys),
        _ => value_element(item),
    }
}

/// The paths of fields that a value has and its type has not, in the notation of messages.
pub(crate) fn list_undeclared_fields(value: &Value, node: TypeNode) -> Vec<String> {
    let mut fields = Vec::new();
    collect_undeclared(value, node, "", &mut fields);
    fields
}

fn collect_undeclared(value: &Value, node: TypeNode, path: &str, fields: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (name, entry) in entries {
                if fields.len() == MAX_UNDECLARED_FIELDS {
                    return;
                }
                let path = format!("{path}.{name}");
                if node.declares(name) {
                    collect_undeclared(entry, node.child(name), &path, fields);
                } else {
                    fields.push(path);
                }
            }
        }
        Value::Array(items) => {
            let shape = node.shape();
            for (index, item) in items.iter().enumerate() {
                let element = match shape {
                    MergeShape::Keyed(_) => path_element(&element(&shape, item)),
                    _ => format!("[{index}]"),
                };
                collect_undeclared(item, node.item(), &format!("{path}{element}"), fields);
            }
        }
        _ => {}
    }
}

/// The differences between two values.
#[derive(Debug, Default)]
pub(crate) struct FieldChanges {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

pub(crate) fn compare_fields(old: &Value, new: &Value, node: TypeNode) -> FieldChanges {
    let mut changes = FieldChanges::default();
    walk(Some(old), Some(new), node, &mut Vec::new(), &mut changes);
    changes
}

fn walk(
    old: Option<&Value>,
    new: Option<&Value>,
    node: TypeNode,
    path: &mut Vec<String>,
    changes: &mut FieldChanges,
) {
    let shape = node.shape();
    let children = children(old, new, node, &shape);
    if children.is_empty() {
        match (old, new) {
            (None, Some(_)) => changes.added.insert(path),
            (Some(_), None) => changes.removed.insert(path),
            (old, new) if old != new => changes.modified.insert(path),
            _ => {}
        }
        return;
    }
    for TypedChild { element, old, new, node } in children {
        path.push(element);
        walk(old, new, node, path, changes);
        path.pop();
    }
    match (old, new) {
        _ if path.is_empty() => {}
        (None, Some(_)) => changes.added.insert(path),
        (Some(_), None) => changes.removed.insert(path),
        _ => {}
    }
}

struct TypedChild<'a> {
    element: String,
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    node: TypeNode,
}

/// Empty for a single value. Also empty if both values have no children: then the value itself
/// counts.
fn children<'a>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    node: TypeNode,
    shape: &MergeShape,
) -> Vec<TypedChild<'a>> {
    match shape {
        MergeShape::Whole => Vec::new(),
        MergeShape::Entries => {
            let (old, new) = (value_entries(old), value_entries(new));
            let names: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
            names
                .into_iter()
                .map(|name| TypedChild {
                    element: field_element(name),
                    old: present_entry(old, name),
                    new: present_entry(new, name),
                    node: node.child(name),
                })
                .filter(|child| child.old.is_some() || child.new.is_some())
                .collect()
        }
        MergeShape::Set | MergeShape::Keyed(_) => {
            let (old, new) = (by_element(old, shape), by_element(new, shape));
            let elements: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            elements
                .into_iter()
                .map(|element| TypedChild {
                    element: element.clone(),
                    old: old.get(element).copied(),
                    new: new.get(element).copied(),
                    node: node.item(),
                })
                .collect()
        }
    }
}

fn value_entries(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value?.as_object()
}

fn present_entry<'a>(entries: Option<&'a Map<String, Value>>, name: &str) -> Option<&'a Value> {
    entries?.get(name).filter(|value| !value.is_null())
}

fn list_elements<'a>(value: Option<&'a Value>, shape: &MergeShape) -> Vec<(String, &'a Value)> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.map(|item| (element(shape, item), item)).collect()
}

/// Of equal elements the first one counts.
fn by_element<'a>(value: Option<&'a Value>, shape: &MergeShape) -> HashMap<String, &'a Value> {
    let mut found = HashMap::new();
    for (element, item) in list_elements(value, shape) {
        found.entry(element).or_insert(item);
    }
    found
}

/// Merges the applied value into the live one.
pub(crate) fn merge_applied(live: &Value, applied: &Value, node: TypeNode) -> Value {
    let shape = node.shape();
    match (&shape, live, applied) {
        (MergeShape::Entries, Value::Object(live), Value::Object(applied)) => {
            let mut merged = live.clone();
            for (name, value) in applied {
                let value = match live.get(name) {
                    Some(live) => merge_applied(live, value, node.child(name)),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (MergeShape::Set | MergeShape::Keyed(_), Value::Array(_), Value::Array(_)) => {
            let (live, applied) =
                (list_elements(Some(live), &shape), list_elements(Some(applied), &shape));
            Value::Array(merge_items(&live, &applied, node.item()))
        }
        _ => applied.clone(),
    }
}

/// Merges two lists in the order of the applied one. An item that is only in the live list stays
/// before the items that it preceded.
fn merge_items(
    live: &[(String, &Value)],
    applied: &[(String, &Value)],
    node: TypeNode,
) -> Vec<Value> {
    let index = |items: &[(String, &Value)]| -> HashMap<String, usize> {
        let all = items.iter().enumerate().rev();
        all.map(|(index, (element, _))| (element.clone(), index)).collect()
    };
    let (in_live, in_applied) = (index(live), index(applied));
    let mut merged = Vec::new();
    let (mut left, mut right, mut shared) = (0, 0, 0);
    loop {
        // The next item of the applied list that is in both.
        shared = shared.max(right);
        while applied.get(shared).is_some_and(|(element, _)| !in_live.contains_key(element)) {
            shared += 1;
        }
        let next_shared = applied.get(shared).map(|(element, _)| element);
        match (live.get(left), applied.get(right)) {
            (Some((element, value)), _) if !in_applied.contains_key(element) => {
                merged.push((*value).clone());
                left += 1;
            }
            (Some((ours, live)), Some((theirs, item))) if ours == theirs => {
                merged.push(merge_applied(live, item, node));
                left += 1;
                right += 1;
            }
            // An item in both lists is placed by the applied one.
            (Some((element, _)), _) if next_shared != Some(element) => left += 1,
            (_, Some((element, item))) => {
                merged.push(match in_live.get(element) {
                    Some(index) => merge_applied(live[*index].1, item, node),
                    None => (*item).clone(),
                });
                right += 1;
            }
            (_, None) => return merged,
        }
    }
}

/// Removes every field of the set, with everything below it.
pub(crate) fn remove_fields(value: &mut Value, node: TypeNode, gone: &FieldSet) {
    let shape = node.shape();
    match (&shape, value) {
        (MergeShape::Entries, Value::Object(entries)) => entries.retain(|name, entry| {
            let Some(gone) = gone.below(&field_element(name)) else { return true };
            if !gone.is_member() {
                remove_fields(entry, node.child(name), gone);
            }
            !gone.is_member()
        }),
        (MergeShape::Set | MergeShape::Keyed(_), Value::Array(items)) => items.retain_mut(|item| {
            let Some(gone) = gone.below(&element(&shape, item)) else { return true };
            if !gone.is_member() {
                remove_fields(item, node.item(), gone);
            }
            !gone.is_member()
        }),
        _ => {}
    }
}
