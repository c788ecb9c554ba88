//! Objects from files and directories.
//!
//! Invariant: mistakes in a file do not interrupt traffic. A file or object that can no longer be
//! read keeps its last contents; only what is removed from a file is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lb_rules::model::{Kind, Object, Problem};
use tokio::sync::mpsc;

use super::watch::Watch;
use super::{Event, Extent, Source};
use lb_rules::documents::{self, Contents};

const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The files and directories to read, and their last contents.
#[derive(Debug)]
pub struct Manifests {
    paths: Vec<PathBuf>,
    kinds: &'static [Kind],
    files: Files,
}

impl Manifests {
    /// Reads all paths. Fails if one can't be read or is not YAML or JSON: the person who starts
    /// the agent can fix it.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self> {
        Self::of_kinds(paths, Kind::OF_AGENT)
    }

    /// Reads all paths, of other kinds of objects than the agent's.
    pub fn of_kinds(paths: Vec<PathBuf>, kinds: &'static [Kind]) -> Result<Self> {
        for path in &paths {
            let found = files(path)
                .with_context(|| format!("--manifests {}: can't be read", path.display()))?;
            if found.is_empty() {
                tracing::warn!(path = %path.display(), "no .yaml, .yml or .json files found");
            }
        }
        let mut files = Files::default();
        files.read(&paths, kinds);
        match files.0.values().find_map(|file| file.trouble.as_ref()) {
            Some(trouble) => bail!("--manifests {trouble}\nFix the file or remove it"),
            None => Ok(Self { paths, kinds, files }),
        }
    }

    /// The objects that were read.
    pub fn objects(mut self) -> Vec<Object> {
        let contents = self.files.read(&self.paths, self.kinds);
        contents.objects.into_values().map(Arc::unwrap_or_clone).collect()
    }
}

impl Source for Manifests {
    async fn run(mut self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        let mut watch = Watch::start(&self.paths)?;
        let mut reported = Contents::default();
        let mut synced = false;
        loop {
            let now = self.files.read(&self.paths, self.kinds);
            let changes = difference(&reported, &now);
            if !changes.is_empty() && events.send(Event::Together(changes)).is_err() {
                return Ok(());
            }
            if !synced && events.send(Event::Synced(Extent::All)).is_err() {
                return Ok(());
            }
            synced = true;
            reported = now;
            tokio::select! {
                changed = watch.changed() => if !changed { bail!("the files are not watched any more") },
                () = events.closed() => return Ok(()),
            }
        }
    }
}

/// The changes between two readings.
fn difference(before: &Contents, now: &Contents) -> Vec<Event> {
    let gone = before.objects.keys().filter(|reference| !now.objects.contains_key(reference));
    let changed = now.objects.iter().filter(|(reference, object)| {
        let known = before.objects.get(reference);
        !known.is_some_and(|known| Arc::ptr_eq(known, object) || known == *object)
    });
    let problems = now.problems.difference(&before.problems);
    gone.cloned()
        .map(Event::Deleted)
        .chain(changed.map(|(_, object)| Event::Applied(object.as_ref().clone())))
        .chain(problems.cloned().map(Event::Problem))
        .collect()
}

/// The files at the last reading.
#[derive(Debug, Default)]
struct Files(BTreeMap<PathBuf, File>);

#[derive(Debug)]
struct File {
    /// Hash of the text, so that only changed files are parsed again.
    hash: u64,
    /// Its last valid contents.
    contents: Contents,
    /// Why the present contents are not used.
    trouble: Option<Problem>,
}

impl Files {
    fn read(&mut self, paths: &[PathBuf], kinds: &[Kind]) -> Contents {
        let mut known = std::mem::take(&mut self.0);
        let mut problems = BTreeSet::new();
        for path in paths {
            match files(path) {
                Ok(files) => {
                    for file in files {
                        let before = known.remove(&file);
                        let now = File::read(&file, before, kinds);
                        self.0.extend(now.map(|now| (file, now)));
                    }
                }
                Err(error) => {
                    problems.insert(cannot_be_read(path, &error));
                    if error.kind() != io::ErrorKind::NotFound {
                        let within = |(file, _): &(PathBuf, File)| file.starts_with(path);
                        let (kept, rest) = known.into_iter().partition::<BTreeMap<_, _>, _>(within);
                        self.0.extend(kept);
                        known = rest;
                    }
                }
            }
        }
        let mut all = Contents { problems, ..Contents::default() };
        for (path, file) in &self.0 {
            all.problems.extend(file.contents.problems.iter().chain(&file.trouble).cloned());
            for (reference, object) in &file.contents.objects {
                all.insert(&path.display().to_string(), reference.clone(), Arc::clone(object));
            }
        }
        all
    }
}

impl File {
    /// Reads a file again; `None` if it was removed.
    fn read(path: &Path, before: Option<Self>, kinds: &[Kind]) -> Option<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(Self::keep(before, 0, cannot_be_read(path, &error))),
        };
        let hash = hash(&text);
        if before.as_ref().is_some_and(|before| before.hash == hash) {
            return before;
        }
        let location = path.display().to_string();
        // `kubectl get ... > file` empties the file long before it writes.
        if text.is_empty() && before.is_some() {
            let message = "is empty, as if just being written".to_owned();
            let trouble = Problem { object: location, field: String::new(), message };
            return Some(Self::keep(before, hash, trouble));
        }
        match documents::read_kinds(&location, &text, kinds) {
            Ok(contents) => {
                let contents = keep_objects(contents, before);
                Some(Self { hash, contents, trouble: None })
            }
            Err(trouble) => Some(Self::keep(before, hash, trouble)),
        }
    }

    fn keep(before: Option<Self>, hash: u64, mut trouble: Problem) -> Self {
        let contents = before.map(|before| before.contents).unwrap_or_default();
        if !contents.objects.is_empty() {
            trouble.message.push_str("; its last valid content stays programmed");
        }
        Self { hash, contents, trouble: Some(trouble) }
    }
}

/// Keeps objects that can no longer be read.
fn keep_objects(mut contents: Contents, before: Option<File>) -> Contents {
    let Some(before) = before else { return contents };
    for reference in &contents.unreadable {
        if let Some(object) = before.contents.objects.get(reference) {
            contents.objects.entry(reference.clone()).or_insert_with(|| Arc::clone(object));
        }
    }
    contents
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn cannot_be_read(path: &Path, error: &io::Error) -> Problem {
    let message = format!("can't be read: {error}");
    Problem { object: path.display().to_string(), field: String::new(), message }
}

/// The manifests at a path: the file itself, or those in a directory, in order of their names.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let extension = file.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
