//! How values are merged: what strategic merge patches and server-side apply need to know about
//! types.

use serde_json::{Map, Value};

use crate::kinds::ApiKind;
use crate::schema::{self, ListType, SchemaField, SchemaMessage};

/// A node in a kind's tree of types: its type, and facts about the field of this type.
#[derive(Clone, Copy)]
pub(crate) struct TypeNode {
    definition: Option<&'static str>,
    schema: &'static Value,
    facts: Option<&'static SchemaField>,
}

/// How server-side apply merges a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MergeShape {
    /// As a single value: scalars, atomic lists, maps and types.
    Whole,
    /// Entry by entry: types with fields, and maps.
    Entries,
    /// A list without order or duplicates.
    Set,
    /// A list whose items are identified by these fields.
    Keyed(Vec<&'static str>),
}

static NULL_VALUE: Value = Value::Null;

impl TypeNode {
    pub fn root(kind: &ApiKind) -> Self {
        // A kind without a definition would be merged as a single value. A test ensures that there
        // is none.
        match kind.declared {
            Some(schema) => Self::defined(None, schema, None),
            None => {
                let name = schema::find_definition_name(kind.group, kind.version, kind.kind);
                Self::defined(name, &NULL_VALUE, None)
            }
        }
    }

    /// The node of a field or map entry.
    pub fn child(&self, name: &str) -> Self {
        let known = self.schema.get("properties").and_then(|properties| properties.get(name));
        let schema = known.or_else(|| self.schema.get("additionalProperties"));
        Self::new(schema, self.message().and_then(|message| message.fields.get(name)))
    }

    /// Whether a value of this type may have this field or entry. Types without fields say nothing about it.
    pub fn declares(&self, name: &str) -> bool {
        let Some(properties) = self.schema.get("properties") else { return true };
        properties.get(name).is_some() || self.schema.get("additionalProperties").is_some()
    }

    pub fn item(&self) -> Self {
        Self::new(self.schema.get("items"), None)
    }

    fn new(schema: Option<&'static Value>, facts: Option<&'static SchemaField>) -> Self {
        let schema = schema.unwrap_or(&NULL_VALUE);
        Self::defined(schema::resolve_reference(schema), schema, facts)
    }

    fn defined(
        definition: Option<&'static str>,
        schema: &'static Value,
        facts: Option<&'static SchemaField>,
    ) -> Self {
        let defined = definition.and_then(|name| schema::definitions().get(name));
        Self { definition, schema: defined.unwrap_or(schema), facts }
    }

    fn message(&self) -> Option<&'static SchemaMessage> {
        self.definition.and_then(schema::find_message)
    }

    pub fn shape(&self) -> MergeShape {
        if self.facts.is_some_and(|facts| facts.atomic)
            || self.message().is_some_and(|message| message.atomic)
            || self.schema["x-kubernetes-map-type"] == "atomic"
        {
            return MergeShape::Whole;
        }
        match self.schema.get("type").and_then(Value::as_str) {
            Some("array") => match self.facts.and_then(|facts| facts.list.as_ref()) {
                Some(ListType::Set) => MergeShape::Set,
                Some(ListType::Map(keys)) => MergeShape::Keyed(keys.clone()),
                Some(ListType::Atomic) => MergeShape::Whole,
                None => self.declared_list(),
            },
            Some("object") if self.has_entries() => MergeShape::Entries,
            _ => MergeShape::Whole,
        }
    }

    /// Schemas of declared kinds contain how lists are merged.
    fn declared_list(&self) -> MergeShape {
        match self.schema["x-kubernetes-list-type"].as_str() {
            Some("set") => MergeShape::Set,
            Some("map") => {
                let keys = self.schema["x-kubernetes-list-map-keys"].as_array();
                MergeShape::Keyed(keys.into_iter().flatten().filter_map(Value::as_str).collect())
            }
            _ => MergeShape::Whole,
        }
    }

    /// Whether the value has fields or entries, even if it is merged as a single value.
    pub(crate) fn has_entries(&self) -> bool {
        ["properties", "additionalProperties"].iter().any(|name| self.schema.get(name).is_some())
    }

    /// Whether a strategic merge patch merges this list, instead of replacing it.
    pub(crate) fn is_merged(&self) -> bool {
        self.facts.and_then(|facts| facts.patch_strategy).is_some_and(|how| {
            // Some lists have several strategies.
            how.split(',').any(|one| one == "merge")
        })
    }

    /// The field that identifies items in a strategic merge patch.
    pub(crate) fn merge_key(&self) -> Option<&'static str> {
        self.facts.and_then(|facts| facts.patch_merge_key)
    }
}

/// The element for an item of a keyed list. A missing key has its default.
pub(crate) fn keyed_element(item: &Value, keys: &[&str]) -> String {
    let keys: Map<String, Value> = keys
        .iter()
        .map(|key| {
            let default = if *key == "protocol" { "TCP".into() } else { Value::Null };
            let value = item.get(*key).filter(|value| !value.is_null()).cloned();
            ((*key).to_owned(), value.unwrap_or(default))
        })
        .collect();
    format!("k:{}", Value::Object(keys))
}

/// The element for an item of a set.
pub(crate) fn value_element(item: &Value) -> String {
    format!("v:{item}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn node(api_version: &str, kind: &str, path: &str) -> TypeNode {
        let kind = kinds::find_kind(api_version, kind).expect("a served kind");
        path.split('.').fold(TypeNode::root(kind), |node, name| match name {
            "[]" => node.item(),
            name => node.child(name),
        })
    }

    #[test]
    fn every_kind_has_entries() {
        for kind in kinds::built_in_kinds() {
            assert_eq!(TypeNode::root(kind).shape(), MergeShape::Entries, "{}", kind.kind);
            assert_eq!(TypeNode::root(kind).child("metadata").shape(), MergeShape::Entries);
        }
    }

    #[test]
    fn shapes_are_those_of_the_reference() {
        for (api_version, kind, path, expected) in [
            ("v1", "Service", "spec", MergeShape::Entries),
            ("v1", "Service", "spec.ports", MergeShape::Keyed(vec!["port", "protocol"])),
            ("v1", "Service", "spec.ports.[].targetPort", MergeShape::Whole),
            ("v1", "Service", "spec.selector", MergeShape::Whole),
            ("v1", "Service", "spec.ipFamilies", MergeShape::Whole),
            ("v1", "Service", "spec.sessionAffinityConfig.clientIP", MergeShape::Entries),
            ("v1", "Service", "metadata.labels", MergeShape::Entries),
            ("v1", "Service", "metadata.finalizers", MergeShape::Set),
            ("v1", "Service", "metadata.ownerReferences", MergeShape::Keyed(vec!["uid"])),
            ("v1", "Service", "status.conditions", MergeShape::Keyed(vec!["type"])),
            ("v1", "Secret", "data", MergeShape::Entries),
            ("v1", "Event", "involvedObject", MergeShape::Whole),
            ("discovery.k8s.io/v1", "EndpointSlice", "endpoints", MergeShape::Whole),
            ("networking.k8s.io/v1", "Ingress", "spec.rules", MergeShape::Whole),
            ("v1", "Node", "spec.podCIDRs", MergeShape::Set),
        ] {
            assert_eq!(node(api_version, kind, path).shape(), expected, "{kind} {path}");
        }
    }

    #[test]
    fn merge_keys_are_those_of_the_reference() {
        let ports = node("v1", "Service", "spec.ports");
        assert!(ports.is_merged());
        assert_eq!(ports.merge_key(), Some("port"));
        let finalizers = node("v1", "Service", "metadata.finalizers");
        assert!(finalizers.is_merged());
        assert_eq!(finalizers.merge_key(), None);
        assert!(!node("v1", "Service", "spec.externalIPs").is_merged());
    }

    #[test]
    fn a_port_is_keyed_by_its_default_protocol_too() {
        let item = serde_json::json!({ "port": 80 });
        assert_eq!(
            keyed_element(&item, &["port", "protocol"]),
            r#"k:{"port":80,"protocol":"TCP"}"#
        );
    }
}
