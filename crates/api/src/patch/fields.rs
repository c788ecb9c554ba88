//! Sets of fields, as in `managedFields`: `f:` is a field by name, `k:` a list item by its keys,
//! `v:` a list item by its value.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// A set of paths into an object. A path may be in the set without the paths below it, and the
/// other way round.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct FieldSet {
    is_member: bool,
    below: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// Ignores what it cannot parse: only this server writes these sets.
    pub(crate) fn from_json(json: &Value) -> Self {
        let mut fields = Self::default();
        let entries = json.as_object();
        for (element, below) in entries.into_iter().flatten() {
            if element == "." {
                fields.is_member = true;
            } else {
                let mut below = Self::from_json(below);
                below.is_member |= below.below.is_empty();
                fields.below.insert(element.clone(), below);
            }
        }
        fields
    }

    pub fn to_json(&self) -> Value {
        let mut entries = Map::new();
        if self.is_member && !self.below.is_empty() {
            entries.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, below) in &self.below {
            entries.insert(element.clone(), below.to_json());
        }
        Value::Object(entries)
    }

    pub fn is_empty(&self) -> bool {
        !self.is_member && self.below.values().all(Self::is_empty)
    }

    pub fn is_member(&self) -> bool {
        self.is_member
    }

    pub fn below(&self, element: &str) -> Option<&Self> {
        self.below.get(element)
    }

    pub fn insert(&mut self, path: &[String]) {
        let place = path
            .iter()
            .fold(self, |fields, element| fields.below.entry(element.clone()).or_default());
        place.is_member = true;
    }

    /// Removes one path. With `deep`, removes all paths below it, too.
    pub fn remove(&mut self, path: &[&str], deep: bool) {
        match path {
            [] => {
                self.is_member = false;
                if deep {
                    self.below.clear();
                }
            }
            [first, rest @ ..] => {
                if let Some(below) = self.below.get_mut(*first) {
                    below.remove(rest, deep);
                    if below.is_empty() {
                        self.below.remove(*first);
                    }
                }
            }
        }
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.absorb(other.clone());
        union
    }

    /// Adds all members of another set. Costs time for that one only.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.is_member |= other.is_member;
        for (element, theirs) in other.below {
            self.below.entry(element).or_default().absorb(theirs);
        }
    }

    pub fn difference(&self, other: &Self) -> Self {
        let empty = Self::default();
        self.filtered(self.is_member && !other.is_member, |element, ours| {
            ours.difference(other.below.get(element).unwrap_or(&empty))
        })
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let empty = Self::default();
        self.filtered(self.is_member && other.is_member, |element, ours| {
            ours.intersection(other.below.get(element).unwrap_or(&empty))
        })
    }

    /// The set plus every named field that has members below it.
    pub(crate) fn with_named_parents(&self) -> Self {
        let mut fields = self.filtered(self.is_member, |_, below| below.with_named_parents());
        for (element, below) in &mut fields.below {
            below.is_member |= element.starts_with("f:") && !below.below.is_empty();
        }
        fields
    }

    fn filtered(&self, is_member: bool, below: impl Fn(&str, &Self) -> Self) -> Self {
        let below = self
            .below
            .iter()
            .map(|(element, ours)| (element.clone(), below(element, ours)))
            .filter(|(_, ours)| !ours.is_empty())
            .collect();
        Self { is_member, below }
    }

    /// All paths in the notation of messages: `.spec.ports[port=80,protocol="TCP"].name`.
    pub(crate) fn list_paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, path: &str, paths: &mut Vec<String>) {
        if self.is_member {
            paths.push(path.to_owned());
        }
        for (element, below) in &self.below {
            below.collect_paths(&format!("{path}{}", path_element(element)), paths);
        }
    }
}

/// The element for a field name.
pub(crate) fn field_element(field: &str) -> String {
    format!("f:{field}")
}

/// An element in the notation of messages.
pub(crate) fn path_element(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("v:", value)) => format!("[={value}]"),
        Some(("k:", keys)) => {
            let keys: Value = serde_json::from_str(keys).unwrap_or_default();
            let mut text = String::new();
            for (name, value) in keys.as_object().into_iter().flatten() {
                let separator = if text.is_empty() { "" } else { "," };
                // Writing to a String can't fail.
                let _ = write!(text, "{separator}{name}={value}");
            }
            format!("[{text}]")
        }
        _ => element.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(json: Value) -> FieldSet {
        FieldSet::from_json(&json)
    }

    #[test]
    fn sets_are_read_and_written_alike() {
        for json in [
            json!({}),
            json!({ "f:spec": { "f:type": {}, "f:ports": { ".": {}, "k:{\"port\":80}": { ".": {}, "f:port": {} } } } }),
            json!({ "f:metadata": { "f:finalizers": { "v:\"a/b\"": {} } } }),
        ] {
            assert_eq!(set(json.clone()).to_json(), json);
        }
    }

    #[test]
    fn sets_are_calculated_by_members_alone() {
        let parent = set(json!({ "f:a": { ".": {}, "f:b": {} } }));
        let child = set(json!({ "f:a": { "f:b": {}, "f:c": {} } }));
        assert_eq!(parent.difference(&child).to_json(), json!({ "f:a": {} }));
        assert_eq!(child.difference(&parent).to_json(), json!({ "f:a": { "f:c": {} } }));
        assert_eq!(parent.intersection(&child).to_json(), json!({ "f:a": { "f:b": {} } }));
        assert_eq!(
            parent.union(&child).to_json(),
            json!({ "f:a": { ".": {}, "f:b": {}, "f:c": {} } })
        );
        assert_eq!(child.with_named_parents(), parent.union(&child));
    }

    #[test]
    fn paths_are_written_as_in_messages() {
        let fields = set(json!({
            "f:metadata": { "f:finalizers": { "v:\"a/b\"": {} } },
            "f:spec": { "f:ports": { "k:{\"port\":80,\"protocol\":\"TCP\"}": { "f:name": {} } } },
        }));
        assert_eq!(
            fields.list_paths(),
            [".metadata.finalizers[=\"a/b\"]", ".spec.ports[port=80,protocol=\"TCP\"].name"]
        );
    }
}
