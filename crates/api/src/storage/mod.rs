//! Stores the objects: in memory for reading, on disk for durability.
//!
//! Invariants:
//! - There is one revision for everything. Each change of an object increases it by one. It never
//!   decreases, not even across restarts.
//! - A write is acknowledged, and visible to readers, only after it is on disk. Acknowledged writes
//!   survive a crash of the process at any moment (`lb-userspace/tests/api_crash.rs`).
//! - A write that fails leaves nothing behind, in memory or on disk, even if the disk failed in the
//!   middle of it. The next write tries again, without a restart (`disk`).
//! - Only the owner of the data directory can read what is in it (`directory`).
//! - Readers never wait for a write, and writers never wait for a slow reader: readers share the
//!   objects instead of locking them.

mod backend;
mod directory;
mod disk;
mod error;
pub mod meter;
pub mod snapshot;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod transaction;
mod writer;

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result};
use tokio::sync::{mpsc, oneshot, watch};

use meter::{StorageFigures, StorageMeter};
use state::StorageState;

pub use error::WriteError;
pub use state::StoragePage;
pub use stored::{ChangeWindow, ObjectHead, RevisionGone, StorageKey, StoredChange, StoredObject};
pub use transaction::Transaction;
pub(crate) use transaction::estimate_size;

/// Whether a process has the store in this directory open.
pub fn is_directory_in_use(directory: &Path) -> bool {
    let path = directory.join(directory::STORE_FILE);
    path.exists() && disk::is_file_in_use(&path)
}

/// Cheap to clone: clones share the storage.
#[derive(Clone)]
pub struct Storage {
    state: Arc<RwLock<StorageState>>,
    jobs: mpsc::UnboundedSender<writer::WriterJob>,
    revision: watch::Receiver<u64>,
    meter: Arc<StorageMeter>,
    path: Arc<Path>,
}

impl Storage {
    /// Opens or creates the store in a directory. Only one process can have it open.
    pub fn open(directory: &Path, window: ChangeWindow) -> Result<Self> {
        Self::open_with(directory, window, Box::new(disk::open_database))
    }

    fn open_with(
        directory: &Path,
        window: ChangeWindow,
        opener: disk::DatabaseOpener,
    ) -> Result<Self> {
        let (disk, state) = disk::Disk::open(directory, window, opener)?;
        let path = disk.path().into();
        let meter = Arc::<StorageMeter>::default();
        let (announce, revision) = watch::channel(state.revision());
        let state = Arc::new(RwLock::new(state));
        let jobs = writer::start_writer(disk, Arc::clone(&state), announce, Arc::clone(&meter))?;
        Ok(Self { state, jobs, revision, meter, path })
    }

    /// Whether writes succeed, and how long they take.
    pub fn figures(&self) -> StorageFigures {
        self.meter.figures()
    }

    /// Size of the store on disk in bytes.
    pub fn size(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Number of objects.
    pub fn count(&self) -> usize {
        self.read(StorageState::count)
    }

    /// All objects.
    pub fn all(&self) -> StoragePage {
        self.read(StorageState::all)
    }

    /// Recovers from a failed write, if the disk can be written again.
    pub(crate) async fn try_recover(&self) {
        let nothing = |_: &mut Transaction<'_>| Ok::<_, std::convert::Infallible>(());
        // The result is in the figures.
        let _ = self.write(nothing).await;
    }

    /// Removes from the store what Secrets were before they were changed or deleted, if anything of them
    /// is left there.
    pub(crate) async fn erase_old_secrets(&self) -> Result<()> {
        let (done, is_done) = oneshot::channel();
        let _ = self.jobs.send(writer::WriterJob::EraseOldSecrets(done));
        is_done.await.context("the store is closed")?
    }

    pub fn revision(&self) -> u64 {
        *self.revision.borrow()
    }

    /// A receiver of every later revision.
    pub(crate) fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    pub fn get(&self, key: &str) -> Option<Arc<StoredObject>> {
        self.read(|state| state.get(key))
    }

    /// The first `limit` objects whose keys start with `prefix` and follow the key `after`, as of
    /// `revision` (`None`: the latest).
    pub fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<u64>,
        limit: usize,
    ) -> Result<StoragePage, RevisionGone> {
        self.read(|state| state.list(prefix, after, revision, limit))
    }

    /// How many objects `list` would return without a limit.
    pub fn count_of(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<u64>,
    ) -> Result<usize, RevisionGone> {
        self.read(|state| state.count_of(prefix, after, revision))
    }

    /// The first `limit` changes after `revision` to keys that start with `prefix`, and the revision
    /// that they lead to.
    pub fn changes(
        &self,
        prefix: &str,
        revision: u64,
        limit: usize,
    ) -> Result<(Vec<Arc<StoredChange>>, u64), RevisionGone> {
        self.read(|state| state.changes(prefix, revision, limit))
    }

    fn read<T>(&self, read: impl FnOnce(&StorageState) -> T) -> T {
        // The lock may be poisoned: the writer changes the state only by operations that cannot
        // fail halfway.
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `operation` serialized with all other writes. Its changes are kept if it succeeds and
    /// did not discard the transaction. Returns when they are on disk.
    pub async fn write<T, E, F>(&self, operation: F) -> Result<Result<T, E>, WriteError>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    {
        writer::submit_write(&self.jobs, operation).await
    }
}
