//! What readers see: the current objects, and the recent changes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::stored::{ChangeWindow, RevisionGone, StorageKey, StoredChange, StoredObject};

/// Objects with their keys, and the revision that they are from.
#[derive(Debug)]
pub struct StoragePage {
    pub revision: u64,
    pub objects: Vec<(StorageKey, Arc<StoredObject>)>,
}

#[derive(Debug)]
pub(super) struct StorageState {
    revision: u64,
    objects: BTreeMap<StorageKey, Arc<StoredObject>>,
    /// The revisions are consecutive. The last one is `revision`.
    changes: VecDeque<Arc<StoredChange>>,
    bytes: usize,
    window: ChangeWindow,
}

impl StorageState {
    pub fn new(
        revision: u64,
        objects: BTreeMap<StorageKey, Arc<StoredObject>>,
        changes: VecDeque<Arc<StoredChange>>,
        window: ChangeWindow,
    ) -> Self {
        let bytes = changes.iter().map(|change| change.size).sum();
        Self { revision, objects, changes, bytes, window }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn count(&self) -> usize {
        self.objects.len()
    }

    pub fn all(&self) -> StoragePage {
        let objects = self.objects.iter().map(|(key, stored)| (key.clone(), stored.clone()));
        StoragePage { revision: self.revision, objects: objects.collect() }
    }

    pub fn get(&self, key: &str) -> Option<Arc<StoredObject>> {
        self.objects.get(key).cloned()
    }

    pub fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a StorageKey, &'a Arc<StoredObject>)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Costs time for the changes since `revision` and the objects of the page, but not for the
    /// objects behind it.
    pub fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<u64>,
        limit: usize,
    ) -> Result<StoragePage, RevisionGone> {
        let objects = self.iterate(prefix, after, revision)?.take(limit);
        let objects = objects.map(|(key, stored)| (key.clone(), stored.clone())).collect();
        Ok(StoragePage { revision: revision.unwrap_or(self.revision), objects })
    }

    pub fn count_of(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<u64>,
    ) -> Result<usize, RevisionGone> {
        Ok(self.iterate(prefix, after, revision)?.count())
    }

    fn iterate<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        revision: Option<u64>,
    ) -> Result<impl Iterator<Item = (&'a StorageKey, &'a Arc<StoredObject>)>, RevisionGone> {
        let wanted = revision.unwrap_or(self.revision);
        // What the changed objects were. Goes from the newest change to the oldest, so the state
        // before the first change after `wanted` remains.
        let mut earlier: BTreeMap<&StorageKey, Option<&Arc<StoredObject>>> = BTreeMap::new();
        for change in self.since(wanted)?.rev() {
            let key = &change.key;
            if key.starts_with(prefix) && after.is_none_or(|after| **key > *after) {
                earlier.insert(key, change.before.as_ref());
            }
        }
        let mut earlier = earlier.into_iter().peekable();
        let mut current = self.range(prefix, after).peekable();
        Ok(std::iter::from_fn(move || {
            loop {
                let changed = match (earlier.peek(), current.peek()) {
                    (Some((changed, _)), Some((key, _))) => changed <= key,
                    (changed, _) => changed.is_some(),
                };
                if !changed {
                    return current.next();
                }
                let (key, before) = earlier.next()?;
                current.next_if(|(one, _)| *one == key);
                if let Some(before) = before {
                    return Some((key, before));
                }
            }
        }))
    }

    pub fn changes(
        &self,
        prefix: &str,
        revision: u64,
        limit: usize,
    ) -> Result<(Vec<Arc<StoredChange>>, u64), RevisionGone> {
        let matching = self.since(revision)?.filter(|change| change.key.starts_with(prefix));
        let changes: Vec<_> = matching.take(limit).cloned().collect();
        let reached = match changes.last() {
            Some(last) if changes.len() == limit => last.revision,
            _ => self.revision,
        };
        Ok((changes, reached))
    }

    fn since(
        &self,
        revision: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Arc<StoredChange>>, RevisionGone> {
        let oldest = self.revision - self.changes.len() as u64;
        if revision < oldest {
            return Err(RevisionGone { oldest });
        }
        let skipped = usize::try_from(revision - oldest).unwrap_or(usize::MAX);
        Ok(self.changes.range(skipped.min(self.changes.len())..))
    }

    /// Applies changes that are on disk.
    pub fn publish(&mut self, changes: Vec<Arc<StoredChange>>) {
        for change in changes {
            debug_assert_eq!(change.revision, self.revision + 1);
            self.revision = change.revision;
            match &change.after {
                Some(after) => self.objects.insert(change.key.clone(), after.clone()),
                None => self.objects.remove(&change.key),
            };
            self.bytes += change.size;
            self.changes.push_back(change);
        }
        let outgrown = self.outgrown(&[]);
        for change in self.changes.drain(..outgrown) {
            self.bytes -= change.size;
        }
    }

    /// How many of the oldest changes leave the window when `coming` are added.
    pub(crate) fn outgrown(&self, coming: &[Arc<StoredChange>]) -> usize {
        let mut number = self.changes.len() + coming.len();
        let mut bytes = self.bytes + coming.iter().map(|change| change.size).sum::<usize>();
        let all = self.changes.iter().chain(coming);
        all.take_while(|change| {
            let too_many = number > self.window.changes || bytes > self.window.bytes;
            number -= 1;
            bytes -= change.size;
            too_many
        })
        .count()
    }

    /// The changes in the window, from the oldest to the newest.
    pub fn window(&self) -> impl Iterator<Item = &Arc<StoredChange>> {
        self.changes.iter()
    }

    /// The revision of the oldest change in the window.
    pub(crate) fn oldest_change(&self) -> Option<u64> {
        self.changes.front().map(|change| change.revision)
    }
}
