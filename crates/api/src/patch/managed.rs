//! `metadata.managedFields`: which manager owns which fields.

use std::collections::{BTreeMap, btree_map};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::fields::FieldSet;
use crate::kinds::Subresource;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ManagerOperation {
    Apply,
    Update,
}

/// With more updating managers than this, the oldest entries are merged.
const MOST_UPDATERS: usize = 10;
const OLDEST: &str = "ancient-changes";

/// The identity of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManagerName {
    pub name: String,
    pub operation: ManagerOperation,
    pub api_version: String,
    pub subresource: &'static str,
}

#[derive(Debug, Clone)]
pub(crate) struct ManagedEntry {
    pub manager: ManagerName,
    pub time: Option<String>,
    pub fields: FieldSet,
}

/// All entries of an object.
#[derive(Debug, Clone, Default)]
pub(crate) struct ManagedFields(pub Vec<ManagedEntry>);

impl ManagerName {
    pub fn new(
        name: &str,
        operation: ManagerOperation,
        api_version: &str,
        subresource: Subresource,
    ) -> Self {
        let subresource = match subresource {
            Subresource::None => "",
            Subresource::Status => "status",
        };
        Self { name: name.to_owned(), operation, api_version: api_version.to_owned(), subresource }
    }

    /// Managers that apply are identified by name, those that update by name and version.
    pub fn is(&self, other: &Self) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == ManagerOperation::Apply || self.api_version == other.api_version)
    }
}

impl ManagedEntry {
    /// The other manager of a field, as in messages.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager.name);
        if !self.manager.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.manager.subresource));
        }
        if self.manager.operation == ManagerOperation::Update {
            text.push_str(&format!(" using {}", self.manager.api_version));
        }
        text
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |name: &str| json.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => ManagerOperation::Apply,
            "Update" => ManagerOperation::Update,
            _ => return None,
        };
        let subresource = match text("subresource") {
            "" => "",
            "status" => "status",
            _ => return None,
        };
        Some(Self {
            manager: ManagerName {
                name: text("manager").to_owned(),
                operation,
                api_version: text("apiVersion").to_owned(),
                subresource,
            },
            time: Some(text("time")).filter(|time| !time.is_empty()).map(str::to_owned),
            fields: FieldSet::from_json(json.get("fieldsV1").unwrap_or(&Value::Null)),
        })
    }

    fn to_json(&self) -> Value {
        let mut entry = Map::new();
        let mut set = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        set("manager", self.manager.name.as_str().into());
        set("operation", format!("{:?}", self.manager.operation).into());
        set("apiVersion", self.manager.api_version.as_str().into());
        set("fieldsType", "FieldsV1".into());
        set("fieldsV1", self.fields.to_json());
        if let Some(time) = &self.time {
            set("time", time.as_str().into());
        }
        if !self.manager.subresource.is_empty() {
            set("subresource", self.manager.subresource.into());
        }
        Value::Object(entry)
    }
}

impl ManagedFields {
    pub(crate) fn of_object(object: &Value) -> Self {
        let entries = object["metadata"]["managedFields"].as_array();
        Self(entries.into_iter().flatten().filter_map(ManagedEntry::from_json).collect())
    }

    /// A client can remove all managers by sending one empty entry.
    pub(crate) fn is_reset(object: &Value) -> bool {
        object["metadata"]["managedFields"] == json!([{}])
    }

    pub(crate) fn find_entry(&self, manager: &ManagerName) -> Option<&ManagedEntry> {
        self.0.iter().find(|entry| entry.manager.is(manager))
    }

    /// Replaces a manager's fields. A manager without fields has no entry.
    pub(crate) fn set_fields(&mut self, manager: &ManagerName, fields: FieldSet, now: Timestamp) {
        let before = self.0.iter().position(|entry| entry.manager.is(manager));
        let time = match before {
            Some(index) if self.0[index].fields == fields => self.0[index].time.clone(),
            _ => Some(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        };
        if let Some(index) = before {
            self.0.remove(index);
        }
        if !fields.is_empty() {
            self.0.push(ManagedEntry { manager: manager.clone(), time, fields });
        }
    }

    /// Merges the oldest updating managers, which limits the size of the object.
    pub(crate) fn cap_updaters(&mut self) {
        let (mut updaters, mut entries): (Vec<ManagedEntry>, Vec<ManagedEntry>) =
            std::mem::take(&mut self.0)
                .into_iter()
                .partition(|entry| entry.manager.operation == ManagerOperation::Update);
        updaters.sort_by(|a, b| a.time.cmp(&b.time));
        if updaters.len() > MOST_UPDATERS {
            let young = updaters.split_off(updaters.len() - MOST_UPDATERS + 1);
            // Entries of different versions cannot be merged.
            let mut by_version: BTreeMap<String, ManagedEntry> = BTreeMap::new();
            for entry in updaters {
                match by_version.entry(entry.manager.api_version.clone()) {
                    btree_map::Entry::Vacant(vacant) => {
                        vacant.insert(entry);
                    }
                    btree_map::Entry::Occupied(mut occupied) => {
                        let oldest = occupied.get_mut();
                        oldest.fields.absorb(entry.fields);
                        oldest.time = entry.time;
                        oldest.manager.name = OLDEST.to_owned();
                        oldest.manager.subresource = "";
                    }
                }
            }
            entries.extend(by_version.into_values());
            updaters = young;
        }
        entries.extend(updaters);
        self.0 = entries;
    }

    /// Removes fields from every entry of this version of the type.
    pub(crate) fn disown(
        &mut self,
        api_version: &str,
        fields: &FieldSet,
        is_affected: impl Fn(&ManagerName) -> bool,
    ) {
        let affected =
            |manager: &ManagerName| manager.api_version == api_version && is_affected(manager);
        for entry in self.0.iter_mut().filter(|entry| affected(&entry.manager)) {
            entry.fields = entry.fields.difference(fields);
        }
        self.0.retain(|entry| !entry.fields.is_empty());
    }

    /// Managers that apply come first; then by time and name.
    pub(crate) fn write_to_object(mut self, object: &mut Value) {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return;
        };
        self.0.sort_by(|a, b| {
            let key = |entry: &ManagedEntry| {
                let manager = &entry.manager;
                let names = (manager.name.clone(), manager.api_version.clone());
                (manager.operation, entry.time.clone(), names, manager.subresource)
            };
            key(a).cmp(&key(b))
        });
        if self.0.is_empty() {
            metadata.remove("managedFields");
        } else {
            let entries = self.0.iter().map(ManagedEntry::to_json).collect();
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }
}
