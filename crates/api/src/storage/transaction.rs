//! One write: reads the objects as its own changes leave them, and changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::state::StorageState;
use super::stored::{StorageKey, StoredChange, StoredObject};

pub struct Transaction<'a> {
    state: &'a StorageState,
    /// Changes by earlier writes of the same batch. They reach the disk together with this one.
    earlier: &'a StagedChanges,
    own: StagedChanges,
    discarded: bool,
    failures: u64,
}

/// Changes that are not on disk yet.
#[derive(Debug, Default)]
pub(super) struct StagedChanges {
    pub changes: Vec<Arc<StoredChange>>,
    objects: BTreeMap<StorageKey, Option<Arc<StoredObject>>>,
}

impl StagedChanges {
    pub fn append(&mut self, other: Self) {
        self.changes.extend(other.changes);
        self.objects.extend(other.objects);
    }
}

impl<'a> Transaction<'a> {
    pub(super) fn new(state: &'a StorageState, earlier: &'a StagedChanges, failures: u64) -> Self {
        Self { state, earlier, own: StagedChanges::default(), discarded: false, failures }
    }

    /// How many flushes have failed, so far. What is derived from writes of a failed flush has to
    /// be derived again.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Drops all changes of this transaction.
    pub fn discard(&mut self) {
        self.discarded = true;
    }

    pub(super) fn into_staged(self) -> StagedChanges {
        if self.discarded { StagedChanges::default() } else { self.own }
    }

    pub fn revision(&self) -> u64 {
        let staged = self.earlier.changes.len() + self.own.changes.len();
        self.state.revision() + staged as u64
    }

    pub fn get(&self, key: &str) -> Option<Arc<StoredObject>> {
        let staged = self.own.objects.get(key).or_else(|| self.earlier.objects.get(key));
        staged.cloned().unwrap_or_else(|| self.state.get(key))
    }

    pub fn list(&self, prefix: &str) -> Vec<(StorageKey, Arc<StoredObject>)> {
        let mut objects: BTreeMap<&StorageKey, &Arc<StoredObject>> =
            self.state.range(prefix, None).collect();
        for (key, staged) in self.earlier.objects.iter().chain(&self.own.objects) {
            if !key.starts_with(prefix) {
                continue;
            }
            match staged {
                Some(stored) => objects.insert(key, stored),
                None => objects.remove(key),
            };
        }
        objects.into_iter().map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    /// Stores the object, with the revision of this change as its `resourceVersion`.
    pub fn put(&mut self, key: &str, mut object: Value) -> Arc<StoredObject> {
        let revision = self.revision() + 1;
        set_resource_version(&mut object, revision);
        let stored = Arc::new(StoredObject::new(revision, &object));
        self.change(key, self.get(key), Some(stored.clone()));
        stored
    }

    /// Removes the object. Returns it as watches report it: its last state, with the revision of
    /// this change.
    pub fn delete(&mut self, key: &str) -> Option<Arc<StoredObject>> {
        let before = self.get(key)?;
        let revision = self.revision() + 1;
        let mut object = before.object();
        set_resource_version(&mut object, revision);
        self.change(key, Some(before), None);
        Some(Arc::new(StoredObject::new(revision, &object)))
    }

    fn change(
        &mut self,
        key: &str,
        before: Option<Arc<StoredObject>>,
        after: Option<Arc<StoredObject>>,
    ) {
        let change = StoredChange::new(self.revision() + 1, key.into(), before, after);
        self.own.objects.insert(change.key.clone(), change.after.clone());
        self.own.changes.push(Arc::new(change));
    }
}

fn set_resource_version(object: &mut Value, revision: u64) {
    object["metadata"]["resourceVersion"] = json!(revision.to_string());
}

/// The approximate size of a value as JSON. Cheaper than serializing it.
pub(crate) fn estimate_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 6,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| estimate_size(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + estimate_size(value) + 4).sum::<usize>()
                + 2
        }
    }
}
