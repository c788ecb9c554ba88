//! What the storage holds: objects, and their last changes.

use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::Value;

/// `resource/namespace/name`, or `resource/name` for a resource without namespaces. Objects are
/// listed in the order of their keys.
pub type Key = Arc<str>;

#[derive(Debug)]
pub struct Stored {
    /// The revision of the last change.
    pub revision: u64,
    pub object: Value,
}

impl Stored {
    pub(super) fn of(object: Value) -> Result<Self> {
        let revision = object["metadata"]["resourceVersion"].as_str();
        let revision = revision.and_then(|text| text.parse().ok());
        Ok(Self { revision: revision.context("an object without a revision")?, object })
    }
}

/// The change of one object in one revision.
#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    pub key: Key,
    /// `None` if the object was created.
    pub before: Option<Arc<Stored>>,
    /// `None` if the object was deleted.
    pub after: Option<Arc<Stored>>,
    /// The approximate size of this record in bytes.
    pub(super) size: usize,
}

#[cfg(test)]
impl Change {
    /// For tests of what follows from a change.
    pub fn of(before: Option<Arc<Stored>>, after: Option<Arc<Stored>>) -> Self {
        Self { revision: 1, key: "key".into(), before, after, size: 0 }
    }
}

/// The revision has left the window. The client must list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// The oldest revision that is still available.
    pub oldest: u64,
}

/// How many changes are kept, so that watches can resume and lists can continue.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub changes: usize,
    pub bytes: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { changes: 10_000, bytes: 64 << 20 }
    }
}
