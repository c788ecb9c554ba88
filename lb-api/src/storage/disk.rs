//! The store on disk: one file, changed only by complete transactions.

use std::collections::{BTreeMap, VecDeque};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde_json::Value;

use super::state::State;
use super::transaction::rough_size;
use super::{Change, Key, Stored, Window};

const FILE: &str = "objects.redb";
/// Increased when the meaning of the tables below changes.
const FORMAT: u64 = 1;

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Key → object as JSON.
const OBJECTS: TableDefinition<&str, &[u8]> = TableDefinition::new("objects");
/// Revision → (key, object before, object after) as JSON. Null for an object that did not exist.
const CHANGES: TableDefinition<u64, &[u8]> = TableDefinition::new("changes");

pub(super) struct Disk {
    database: Database,
    path: PathBuf,
}

impl Disk {
    pub fn open(directory: &Path, window: Window) -> Result<(Self, State)> {
        // The store contains Secrets.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("{} can't be made", directory.display()))?;
        let path = directory.join(FILE);
        let database = Database::create(&path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => anyhow::anyhow!(
                "{} is in use by another millrace; end that one, or give another --data-dir",
                path.display()
            ),
            error => anyhow::Error::new(error)
                .context(format!("{} can't be opened as a store", path.display())),
        })?;
        let disk = Self { database, path };
        let state = disk.load(window).with_context(|| disk.cannot("read"))?;
        Ok((disk, state))
    }

    fn cannot(&self, action: &str) -> String {
        format!("the store {} can't be {action}", self.path.display())
    }

    fn load(&self, window: Window) -> Result<State> {
        let transaction = self.database.begin_write()?;
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
                Some(other) => bail!(
                    "it has format {other}, this millrace knows format {FORMAT}; use the version \
                     that wrote it"
                ),
            }
            let number = numbers.get("revision")?.context("it has no revision")?;
            revision = number.value();
        }
        transaction.commit()?;

        let transaction = self.database.begin_read()?;
        let mut objects: BTreeMap<Key, Arc<Stored>> = BTreeMap::new();
        for entry in transaction.open_table(OBJECTS)?.iter()? {
            let (key, object) = entry?;
            let stored = stored(serde_json::from_slice(object.value())?);
            objects.insert(key.value().into(), stored.with_context(|| key.value().to_owned())?);
        }
        let mut changes = VecDeque::new();
        for entry in transaction.open_table(CHANGES)?.iter()? {
            let (revision, change) = entry?;
            changes.push_back(Arc::new(read_change(revision.value(), change.value())?));
        }
        let contiguous =
            changes.iter().rev().zip(0..).all(|(change, back): (&Arc<Change>, u64)| {
                change.revision.checked_add(back) == Some(revision)
            });
        ensure!(contiguous, "its changes do not lead to revision {revision}");
        Ok(State::new(revision, objects, changes, window))
    }

    /// Returns when the changes are on disk. If it fails, none of them is.
    pub fn commit(&mut self, changes: &[Arc<Change>], state: &State) -> Result<()> {
        self.try_commit(changes, state).with_context(|| self.cannot("written"))
    }

    fn try_commit(&self, changes: &[Arc<Change>], state: &State) -> Result<()> {
        let Some(last) = changes.last() else {
            return Ok(());
        };
        let transaction = self.database.begin_write()?;
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut records = transaction.open_table(CHANGES)?;
            numbers.insert("revision", last.revision)?;
            for change in changes {
                records.insert(change.revision, write_change(change)?.as_slice())?;
                match &change.after {
                    Some(after) => {
                        let object = serde_json::to_vec(&after.object)?;
                        objects.insert(&*change.key, object.as_slice())?
                    }
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
}

fn stored(object: Value) -> Result<Arc<Stored>> {
    let revision =
        object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    Ok(Arc::new(Stored { revision: revision.context("an object without a revision")?, object }))
}

fn write_change(change: &Change) -> Result<Vec<u8>> {
    let before = change.before.as_ref().map(|stored| &stored.object);
    let after = change.after.as_ref().map(|stored| &stored.object);
    Ok(serde_json::to_vec(&(&*change.key, before, after))?)
}

fn read_change(revision: u64, record: &[u8]) -> Result<Change> {
    let (key, before, after): (String, Option<Value>, Option<Value>) =
        serde_json::from_slice(record)?;
    let size = [&before, &after].into_iter().flatten().map(rough_size).sum::<usize>() + key.len();
    Ok(Change {
        revision,
        key: key.into(),
        before: before.map(stored).transpose()?,
        after: after.map(stored).transpose()?,
        size,
    })
}
