//! The store on disk: one file, changed only by complete transactions.
//!
//! Invariants:
//! - After a failed commit the contents of the file are unknown. It is not used again before
//!   `recover` has made it equal to the state in memory, which has acknowledged writes only.
//! - A corrupted file is never changed or replaced at the start. An operator restores a snapshot.
//! - No record of a change contains a Secret. What else the file still contains of Secrets that were
//!   changed or deleted is erased by [`Disk::erase_old_secrets`], which writes a new file.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lb_files::rename_durably;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};
use serde_json::Value;

use super::backend::WatchedBackend;
use super::directory::{SNAPSHOT_FILE, STORE_FILE, make_directory_private, open_private_file};
use super::state::StorageState;
use super::stored::{ChangeWindow, StorageKey, StoredChange, StoredObject};

/// Increased when the meaning of the tables below changes.
const FORMAT: u64 = 2;
/// Has records in another form, which are still read.
const FORMAT_WITH_JSON_RECORDS: u64 = 1;

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Key → object as JSON.
const OBJECTS: TableDefinition<&str, &[u8]> = TableDefinition::new("objects");
/// Revision → key and the object before the change: see `write_record`. What it became is the object
/// before the next change of the key, or the present one.
const CHANGES: TableDefinition<u64, &[u8]> = TableDefinition::new("changes");

/// In `NUMBERS`: 1 if pages of the file may contain what a Secret was before a change.
const OLD_SECRETS: &str = "old-secrets";
/// The start of the keys of Secrets.
const SECRETS: &str = "secrets/";

/// Opens or creates a file. Sets the flag when a flush of it fails. Tests inject faults here.
pub(super) type DatabaseOpener =
    Box<dyn Fn(&Path, Arc<AtomicBool>) -> Result<Database, DatabaseError> + Send>;

pub(super) fn open_database(
    path: &Path,
    flush_failed: Arc<AtomicBool>,
) -> Result<Database, DatabaseError> {
    open_database_on(FileBackend::new(open_private_file(path)?)?, flush_failed)
}

/// A limit in bytes of the file's pages in memory. All objects are in memory anyway; the pages that a write reads are in
/// the kernel's cache.
const PAGE_CACHE_LIMIT: usize = 4 << 20;

pub(super) fn open_database_on(
    inner: impl StorageBackend,
    flush_failed: Arc<AtomicBool>,
) -> Result<Database, DatabaseError> {
    let backend = WatchedBackend { inner, flush_failed };
    Builder::new().set_cache_size(PAGE_CACHE_LIMIT).create_with_backend(backend)
}

pub(super) struct Disk {
    opener: DatabaseOpener,
    path: PathBuf,
    /// `None` after a failure, until `recover` has opened it again.
    database: Option<Database>,
    /// Of the file at the path: a new file has a new one.
    flush_failed: Arc<AtomicBool>,
    /// Whether the file may contain what a Secret was before a change.
    has_old_secrets: bool,
}

impl Disk {
    pub fn open(
        directory: &Path,
        window: ChangeWindow,
        opener: DatabaseOpener,
    ) -> Result<(Self, StorageState)> {
        make_directory_private(directory)?;
        let path = directory.join(STORE_FILE);
        let flush_failed = Arc::default();
        // redb panics on some corrupted files.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let mut database = opener(&path, Arc::clone(&flush_failed)).map_err(of_database)?;
            database.check_integrity().map_err(of_database)?;
            let state = load_database(&database, window)?;
            let has_old_secrets = has_old_secrets(&database)?;
            Ok((database, state, has_old_secrets))
        }));
        let opened = opened.unwrap_or_else(|_| Err(anyhow!("it is corrupted")));
        let (database, state, has_old_secrets) = opened.map_err(|error| explain(error, &path))?;
        let database = Some(database);
        Ok((Self { opener, path, database, flush_failed, has_old_secrets }, state))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns when the changes are on disk. If it fails, `recover` comes before the next commit.
    pub fn commit(&mut self, changes: &[Arc<StoredChange>], state: &StorageState) -> Result<()> {
        // Also if it fails: some of it may have reached the file.
        self.has_old_secrets |= changes.iter().any(|change| replaces_secret(change));
        let written = match &self.database {
            Some(database) => commit(database, changes, state),
            None => Err(anyhow!("it is not open")),
        };
        if written.is_err() {
            self.database = None;
        }
        written.with_context(|| format!("store {} not written", self.path.display()))
    }

    pub(crate) fn needs_recovery(&self) -> bool {
        self.database.is_none()
    }

    /// Opens the file again and undoes what reached it of the failed commit. If that does not work,
    /// or a flush has failed, writes a new file from the state in memory.
    pub(crate) fn recover(&mut self, state: &StorageState) -> Result<()> {
        let failed = format!("store {} not recovered", self.path.display());
        let reopened = if self.flush_failed.load(Ordering::Relaxed) {
            Err(anyhow!("a flush failed"))
        } else {
            (self.opener)(&self.path, Arc::clone(&self.flush_failed))
                .map_err(of_database)
                .and_then(|database| undo(&database, state).map(|()| database))
        };
        let database = match reopened {
            Ok(database) => database,
            Err(error) => self.rewrite(state).context(error).context(failed)?,
        };
        self.database = Some(database);
        Ok(())
    }

    /// Writes a new file if this one may contain what a Secret was before it was changed or deleted: the
    /// file keeps the contents of free pages. If that fails, `recover` comes before the next commit.
    pub(crate) fn erase_old_secrets(&mut self, state: &StorageState) -> Result<()> {
        if !self.has_old_secrets || self.needs_recovery() {
            return Ok(());
        }
        // It may be the new file that is at the path if this fails.
        let old = self.database.take();
        self.database = Some(self.rewrite(state)?);
        drop(old);
        Ok(())
    }

    fn rewrite(&mut self, state: &StorageState) -> Result<Database> {
        let flush_failed = Arc::default();
        let (new, database) = write_new(&self.path, state, &self.opener, &flush_failed)?;
        rename_durably(&new, &self.path)?;
        self.flush_failed = flush_failed;
        self.has_old_secrets = false;
        Ok(database)
    }
}

/// Replaces a store by a new one with these contents, or creates it. The previous one stays beside
/// it, under another name. Whenever this ends, there is a complete store: the start would take a
/// missing one for an empty one, and replace the last snapshot by that.
pub(super) fn replace_store(
    path: &Path,
    state: &StorageState,
    opener: &DatabaseOpener,
) -> Result<()> {
    let (new, database) = write_new(path, state, opener, &Arc::default())?;
    drop(database);
    if path.exists() {
        let replaced = path.with_extension("redb.replaced");
        if replaced.exists() {
            fs::remove_file(&replaced)?;
        }
        fs::hard_link(path, &replaced)?;
    }
    Ok(rename_durably(&new, path)?)
}

/// Writes a complete store beside the one at this path. If it fails, nothing is left.
fn write_new(
    path: &Path,
    state: &StorageState,
    opener: &DatabaseOpener,
    flush_failed: &Arc<AtomicBool>,
) -> Result<(PathBuf, Database)> {
    let new = path.with_extension("redb.new");
    let written = write_store(&new, state, opener, flush_failed);
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    Ok((new, written?))
}

fn write_store(
    path: &Path,
    state: &StorageState,
    opener: &DatabaseOpener,
    flush_failed: &Arc<AtomicBool>,
) -> Result<Database> {
    if path.exists() {
        fs::remove_file(path)?;
    }
    let database = opener(path, Arc::clone(flush_failed)).map_err(of_database)?;
    let transaction = database.begin_write()?;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert("format", FORMAT)?;
        numbers.insert("revision", state.revision())?;
        let mut objects = transaction.open_table(OBJECTS)?;
        for (key, stored) in state.range("", None) {
            objects.insert(&**key, stored.text().as_bytes())?;
        }
        let mut records = transaction.open_table(CHANGES)?;
        for change in state.window() {
            records.insert(change.revision, write_record(change).as_slice())?;
        }
    }
    transaction.commit()?;
    ensure!(!flush_failed.load(Ordering::Relaxed), "it can't be flushed");
    Ok(database)
}

fn of_database(error: DatabaseError) -> anyhow::Error {
    match error {
        DatabaseError::DatabaseAlreadyOpen => anyhow!(IN_USE_MESSAGE),
        error => anyhow::Error::new(error),
    }
}

/// Whether another process has the store open. A corrupted store is not in use.
pub(super) fn is_file_in_use(path: &Path) -> bool {
    let opened = catch_unwind(|| open_database(path, Arc::default()).map(drop));
    matches!(opened, Ok(Err(DatabaseError::DatabaseAlreadyOpen)))
}

pub(super) const IN_USE_MESSAGE: &str = "it is in use by another millrace";

fn explain(error: anyhow::Error, path: &Path) -> anyhow::Error {
    let store = path.display();
    if error.to_string() == IN_USE_MESSAGE {
        return anyhow!(
            "store {store}: {IN_USE_MESSAGE}; stop that one, or use another --data-dir"
        );
    }
    let snapshot = path.with_file_name(SNAPSHOT_FILE);
    let fix = if snapshot.exists() {
        format!(
            "to go back to the last snapshot, run: millrace standalone restore {}",
            snapshot.display()
        )
    } else {
        "there is no snapshot; move the file away to begin with an empty store".to_owned()
    };
    error.context(format!("store {store} not readable; {fix}"))
}

fn load_database(database: &Database, window: ChangeWindow) -> Result<StorageState> {
    let transaction = database.begin_write()?;
    let revision;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        transaction.open_table(OBJECTS)?;
        transaction.open_table(CHANGES)?;
        let format = numbers.get("format")?.map(|format| format.value());
        match format {
            None => {
                numbers.insert("format", FORMAT)?;
                // Revision 0 means "any" in requests.
                numbers.insert("revision", 1)?;
            }
            Some(FORMAT) => {}
            Some(FORMAT_WITH_JSON_RECORDS) => drop(numbers.insert("format", FORMAT)?),
            Some(other) => bail!(
                "it has format {other}, this millrace knows format {FORMAT}; use the version that \
                 wrote it"
            ),
        }
        revision = numbers.get("revision")?.context("it has no revision")?.value();
    }
    transaction.commit()?;

    let transaction = database.begin_read()?;
    let mut objects: BTreeMap<StorageKey, Arc<StoredObject>> = BTreeMap::new();
    for entry in transaction.open_table(OBJECTS)?.iter()? {
        let (key, object) = entry?;
        let stored = StoredObject::read(object.value()).with_context(|| key.value().to_owned())?;
        objects.insert(key.value().into(), Arc::new(stored));
    }
    let mut changes = VecDeque::new();
    let mut unusable = None;
    // What each key was after the change that is read next.
    let mut later: BTreeMap<StorageKey, Option<Arc<StoredObject>>> = BTreeMap::new();
    for entry in transaction.open_table(CHANGES)?.iter()?.rev() {
        let (revision, record) = entry?;
        let (key, before) = read_record(record.value())?;
        let key: StorageKey = key.into();
        let before = match before {
            RecordedObject::Withheld => {
                unusable = Some(revision.value());
                break;
            }
            RecordedObject::Nothing => None,
            RecordedObject::Object(before) => Some(Arc::new(before)),
        };
        let present = || objects.get(&key).cloned();
        let after = later.insert(key.clone(), before.clone()).unwrap_or_else(present);
        changes.push_front(Arc::new(StoredChange::new(revision.value(), key, before, after)));
    }
    let contiguous =
        changes.iter().rev().zip(0..).all(|(change, back): (&Arc<StoredChange>, u64)| {
            change.revision.checked_add(back) == Some(revision)
        });
    ensure!(contiguous, "its changes do not lead to revision {revision}");
    if let Some(last) = unusable {
        let transaction = database.begin_write()?;
        transaction.open_table(CHANGES)?.retain(|revision, _| revision > last)?;
        transaction.commit()?;
    }
    Ok(StorageState::new(revision, objects, changes, window))
}

fn commit(database: &Database, changes: &[Arc<StoredChange>], state: &StorageState) -> Result<()> {
    let Some(last) = changes.last() else {
        return Ok(());
    };
    let transaction = database.begin_write()?;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        let mut objects = transaction.open_table(OBJECTS)?;
        let mut records = transaction.open_table(CHANGES)?;
        numbers.insert("revision", last.revision)?;
        if changes.iter().any(|change| replaces_secret(change)) {
            numbers.insert(OLD_SECRETS, 1)?;
        }
        for change in changes {
            records.insert(change.revision, write_record(change).as_slice())?;
            match &change.after {
                Some(after) => objects.insert(&*change.key, after.text().as_bytes())?,
                None => objects.remove(&*change.key)?,
            };
        }
        let oldest = state.oldest_change().unwrap_or(changes[0].revision);
        for revision in (oldest..).take(state.outgrown(changes)) {
            records.remove(revision)?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Undoes a commit that reached the file although it was reported as failed. Always writes, so
/// that it succeeds only if the disk can be written.
fn undo(database: &Database, state: &StorageState) -> Result<()> {
    let transaction = database.begin_write()?;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        let mut objects = transaction.open_table(OBJECTS)?;
        let mut records = transaction.open_table(CHANGES)?;
        let reached = numbers.get("revision")?.context("it has no revision")?.value();
        ensure!(reached >= state.revision(), "it lacks acknowledged writes");
        for revision in (state.revision() + 1..=reached).rev() {
            let record = records.remove(revision)?.context("it lacks a change")?;
            let (key, _) = read_record(record.value())?;
            match state.get(&key) {
                Some(before) => objects.insert(&*key, before.text().as_bytes())?,
                None => objects.remove(&*key)?,
            };
        }
        numbers.insert("revision", state.revision())?;
    }
    transaction.commit()?;
    Ok(())
}

fn has_old_secrets(database: &Database) -> Result<bool> {
    let numbers = database.begin_read()?.open_table(NUMBERS)?;
    Ok(numbers.get(OLD_SECRETS)?.is_some_and(|number| number.value() > 0))
}

/// Whether the file contains a Secret that is gone with this change.
fn replaces_secret(change: &StoredChange) -> bool {
    change.before.is_some() && change.key.starts_with(SECRETS)
}

/// What a record says that the object was before the change.
enum RecordedObject {
    Nothing,
    Object(StoredObject),
    /// A Secret, which is only in memory: the window of a later process begins after it.
    Withheld,
}

/// The first octet of a record. Records of the earlier form begin with a bracket.
const RECORD_FORM: u8 = 2;
/// The first octet of a record without the object before the change, though there was one.
const RECORD_FORM_WITHHELD: u8 = 3;

/// An octet for the form, the length of the key in four octets, the key, and the text of the object
/// before the change; nothing if there was none, or if it was a Secret.
fn write_record(change: &StoredChange) -> Vec<u8> {
    let is_withheld = replaces_secret(change);
    let before = change.before.as_ref().filter(|_| !is_withheld);
    let before = before.map_or("", |before| before.text());
    let mut record = Vec::with_capacity(1 + 4 + change.key.len() + before.len());
    record.push(if is_withheld { RECORD_FORM_WITHHELD } else { RECORD_FORM });
    record.extend((change.key.len() as u32).to_le_bytes());
    record.extend(change.key.as_bytes());
    record.extend(before.as_bytes());
    record
}

fn read_record(record: &[u8]) -> Result<(String, RecordedObject)> {
    let Some((&form @ (RECORD_FORM | RECORD_FORM_WITHHELD), rest)) = record.split_first() else {
        let (key, before, _): (String, Option<Value>, Option<Value>) =
            serde_json::from_slice(record)?;
        let before = before.as_ref().map(StoredObject::of).transpose()?;
        return Ok((key, before.map_or(RecordedObject::Nothing, RecordedObject::Object)));
    };
    let split = |octets: &[u8]| -> Option<(String, Vec<u8>)> {
        let (length, rest) = octets.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (key, before) = rest.split_at_checked(length)?;
        Some((String::from_utf8(key.to_vec()).ok()?, before.to_vec()))
    };
    let (key, before) = split(rest).context("a change is cut off")?;
    let before = match (form, before.is_empty()) {
        (RECORD_FORM_WITHHELD, _) => RecordedObject::Withheld,
        (_, true) => RecordedObject::Nothing,
        (_, false) => RecordedObject::Object(StoredObject::read(&before)?),
    };
    Ok((key, before))
}
