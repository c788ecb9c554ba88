//! What the storage holds: objects, and their last changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

/// `resource/namespace/name`, or `resource/name` for a resource without namespaces. Objects are
/// listed in the order of their keys.
pub type StorageKey = Arc<str>;

/// An object as text, which takes less memory than its tree of values, and is what clients and the disk
/// get. It is JSON: written from a value, or read as such at the start.
#[derive(Debug)]
pub struct StoredObject {
    /// The revision of the last change.
    pub revision: u64,
    text: Box<str>,
}

/// The fields by which objects are selected.
#[derive(Debug, Default, Deserialize)]
pub struct ObjectHead {
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: HeadMetadata,
}

#[derive(Debug, Default, Deserialize)]
pub struct HeadMetadata {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
}

impl StoredObject {
    pub fn new(revision: u64, object: &Value) -> Self {
        Self { revision, text: object.to_string().into() }
    }

    /// An object with its revision in it.
    pub(super) fn of(object: &Value) -> Result<Self> {
        let revision = object["metadata"]["resourceVersion"].as_str();
        let revision = revision.and_then(|text| text.parse().ok());
        Ok(Self::new(revision.context("an object without a revision")?, object))
    }

    /// The text of an object with its revision in it.
    pub(super) fn read(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Versioned {
            resource_version: String,
        }
        #[derive(Deserialize)]
        struct Object {
            metadata: Versioned,
        }
        // Reads all of it, though it keeps only this.
        let object: Object = serde_json::from_slice(text)?;
        let revision = object.metadata.resource_version.parse();
        let text = std::str::from_utf8(text)?.into();
        Ok(Self { revision: revision.context("an object without a revision")?, text })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn object(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Without reading the rest into memory.
    pub fn metadata(&self) -> Value {
        #[derive(Deserialize)]
        struct Object {
            metadata: Value,
        }
        serde_json::from_str(&self.text).map(|object: Object| object.metadata).unwrap_or_default()
    }

    /// Without reading the rest into memory.
    pub fn head(&self) -> ObjectHead {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// The change of one object in one revision.
#[derive(Debug)]
pub struct StoredChange {
    pub revision: u64,
    pub key: StorageKey,
    /// `None` if the object was created.
    pub before: Option<Arc<StoredObject>>,
    /// `None` if the object was deleted.
    pub after: Option<Arc<StoredObject>>,
    /// The memory in bytes that this record holds and nothing else does, approximately: what the
    /// object was before. What it became is the present object, or what a later record has before.
    pub(super) size: usize,
}

/// What a record takes beside key and object, in bytes.
const RECORD_OVERHEAD: usize = 128;

impl StoredChange {
    pub(super) fn new(
        revision: u64,
        key: StorageKey,
        before: Option<Arc<StoredObject>>,
        after: Option<Arc<StoredObject>>,
    ) -> Self {
        let of_object = before.as_ref().map_or(0, |before| before.text.len());
        let size = of_object + key.len() + RECORD_OVERHEAD;
        Self { revision, key, before, after, size }
    }
}

#[cfg(test)]
impl StoredChange {
    /// For tests of what follows from a change.
    pub fn of(before: Option<Arc<StoredObject>>, after: Option<Arc<StoredObject>>) -> Self {
        Self { revision: 1, key: "key".into(), before, after, size: 0 }
    }
}

/// The revision has left the window. The client must list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionGone {
    /// The oldest revision that is still available.
    pub oldest: u64,
}

/// How many changes are kept, so that watches can resume and lists can continue.
#[derive(Debug, Clone, Copy)]
pub struct ChangeWindow {
    pub changes: usize,
    pub bytes: usize,
}

impl Default for ChangeWindow {
    fn default() -> Self {
        Self { changes: 10_000, bytes: 64 << 20 }
    }
}
