//! Keeps the objects: in memory for reading, on disk for ever.
//!
//! Invariants:
//! - There is one revision for everything. It moves on by one with each change of one object, and
//!   never back, across restarts too.
//! - A write is acknowledged, and seen by readers, only when it is on disk. What was acknowledged
//!   survives the death of the process at any moment (`lb-userspace/tests/api_crash.rs`).
//! - Readers never wait for a write, and writers never wait for a reader that is slow: what a
//!   reader holds is shared, not locked.

mod disk;
mod state;
#[cfg(test)]
mod tests;
mod transaction;
mod writer;

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Result;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use state::State;

pub use state::Page;
pub use transaction::Transaction;
pub use writer::WriteError;

/// `resource/namespace/name`, or `resource/name` for what is in no namespace. Objects are listed
/// in the order of their keys.
pub type Key = Arc<str>;

#[derive(Debug)]
pub struct Stored {
    /// The revision of the change that made it so.
    pub revision: u64,
    pub object: Value,
}

/// One object's change from one revision to the next.
#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    pub key: Key,
    /// None: it was created.
    pub before: Option<Arc<Stored>>,
    /// None: it was deleted.
    pub after: Option<Arc<Stored>>,
    /// Roughly, in bytes, what the record of this change takes.
    size: usize,
}

/// The revision is not in the window any more: its client has to start anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// The oldest revision that can still be told of.
    pub oldest: u64,
}

/// How many changes are remembered, so that watches can resume and lists can go on.
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

/// Cheap to clone: all clones are one storage.
#[derive(Clone)]
pub struct Storage {
    state: Arc<RwLock<State>>,
    jobs: mpsc::UnboundedSender<writer::Job>,
    revision: watch::Receiver<u64>,
}

impl Storage {
    /// Opens the store in a directory, or makes one. Only one process can have it open.
    pub fn open(directory: &Path, window: Window) -> Result<Self> {
        let (disk, state) = disk::Disk::open(directory, window)?;
        let (announce, revision) = watch::channel(state.revision());
        let state = Arc::new(RwLock::new(state));
        let jobs = writer::start(disk, Arc::clone(&state), announce)?;
        Ok(Self { state, jobs, revision })
    }

    pub fn revision(&self) -> u64 {
        *self.revision.borrow()
    }

    /// A receiver that notices every further revision.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    pub fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.read(|state| state.get(key))
    }

    /// Objects whose keys start with `prefix`, beginning after the key `after`, as they were at
    /// `revision` (none: as they are now).
    pub fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<u64>,
    ) -> Result<Page, Gone> {
        self.read(|state| state.list(prefix, after, revision))
    }

    /// The changes after `revision` whose keys start with `prefix`, and the revision they lead to.
    pub fn changes(&self, prefix: &str, revision: u64) -> Result<(Vec<Arc<Change>>, u64), Gone> {
        self.read(|state| state.changes(prefix, revision))
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        // The writer changes the state only by operations that can't fail halfway.
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `operation` alone among all writes, on what they left. What it changed is kept if it
    /// succeeds and the transaction was not discarded; this returns when that is on disk.
    pub async fn write<T, E, F>(&self, operation: F) -> Result<Result<T, E>, WriteError>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    {
        writer::submit(&self.jobs, operation).await
    }
}
