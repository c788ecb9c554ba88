//! Snapshots: all objects at one revision as a text file. Backups are snapshots, too.
//!
//! Invariants:
//! - A snapshot is complete or refused: its last line has the number of objects and a checksum of
//!   all lines before.
//! - After a restore all revisions are higher than any that a client may have seen, so every client
//!   lists again.
//!
//! Format: a header, one line `[key, object]` for each object, and the last line, all JSON.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use lb_files::replace_private;
use ring::digest;
use serde_json::{Value, json};

use super::directory::{STORE_FILE, make_directory_private};
use super::state::StoragePage;
use super::state::StorageState;
use super::stored::{ChangeWindow, StoredObject};
use super::{Storage, disk};

/// Added to the revision of a snapshot. More than the writes since any snapshot.
const REVISION_JUMP: u64 = 1_000_000_000;
const FORMAT: u64 = 1;

pub use super::directory::SNAPSHOT_FILE;

/// The lines of a snapshot, each with its end.
pub(crate) fn snapshot_lines(page: StoragePage) -> impl Iterator<Item = String> + Send {
    let header = json!({"millrace-snapshot": FORMAT, "revision": page.revision});
    let count = page.objects.len();
    let objects = page.objects.into_iter();
    let objects = objects.map(|(key, stored)| format!("[{},{}]", json!(*key), stored.text()));
    let mut hash = Some(digest::Context::new(&digest::SHA256));
    let mut contents = std::iter::once(header.to_string()).chain(objects);
    std::iter::from_fn(move || {
        let line = match contents.next() {
            Some(content) => {
                let line = format!("{content}\n");
                hash.as_mut()?.update(line.as_bytes());
                line
            }
            None => format!("{}\n", json!({"objects": count, "sha256": hex(hash.take()?)})),
        };
        Some(line)
    })
}

fn hex(hash: digest::Context) -> String {
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Atomically writes a snapshot that only its owner can read.
pub fn save_snapshot(storage: &Storage, path: &Path) -> Result<u64> {
    let page = storage.all();
    let revision = page.revision;
    let failed = || format!("snapshot {} not written", path.display());
    let written = replace_private(path, |file| {
        let mut file = BufWriter::new(file);
        snapshot_lines(page).try_for_each(|line| file.write_all(line.as_bytes()))?;
        file.flush()
    });
    written.with_context(failed)?;
    Ok(revision)
}

/// Checks that a snapshot is complete. Returns the number of objects.
pub fn verify_snapshot(snapshot: &Path) -> Result<usize> {
    Ok(load_snapshot(snapshot)?.range("", None).count())
}

fn load_snapshot(snapshot: &Path) -> Result<StorageState> {
    let file = File::open(snapshot)
        .with_context(|| format!("snapshot {} not readable", snapshot.display()))?;
    read_snapshot(BufReader::new(file))
        .with_context(|| format!("snapshot {} not usable", snapshot.display()))
}

/// Replaces the store in a data directory by a snapshot. The previous store stays beside it.
/// Returns the number of objects.
pub fn restore_snapshot(snapshot: &Path, directory: &Path) -> Result<usize> {
    restore_snapshot_with(
        snapshot,
        directory,
        &(Box::new(disk::open_database) as disk::DatabaseOpener),
    )
}

pub(super) fn restore_snapshot_with(
    snapshot: &Path,
    directory: &Path,
    opener: &disk::DatabaseOpener,
) -> Result<usize> {
    let state = load_snapshot(snapshot)?;
    make_directory_private(directory)?;
    let store = directory.join(STORE_FILE);
    if store.exists() && disk::is_file_in_use(&store) {
        bail!("store {}: {}; stop it first", store.display(), disk::IN_USE_MESSAGE);
    }
    disk::replace_store(&store, &state, opener)
        .with_context(|| format!("store {} not replaced", store.display()))?;
    Ok(state.range("", None).count())
}

fn read_snapshot(lines: impl BufRead) -> Result<StorageState> {
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut lines = lines.lines();
    let mut next = || -> Result<(String, Value)> {
        let line = lines.next().context("it ends too early")??;
        let content = serde_json::from_str(&line).context("a line is not JSON")?;
        Ok((format!("{line}\n"), content))
    };
    let (line, header) = next()?;
    let format = header["millrace-snapshot"].as_u64().context("it is not a Millrace snapshot")?;
    ensure!(format == FORMAT, "it has format {format}, this millrace knows format {FORMAT}");
    let revision = header["revision"].as_u64().context("it has no revision")?;
    hash.update(line.as_bytes());
    let mut objects = std::collections::BTreeMap::new();
    loop {
        let (line, content) = next()?;
        if let Value::Array(entry) = content {
            let [Value::String(key), object] = <[Value; 2]>::try_from(entry)
                .map_err(|_| anyhow::anyhow!("an object has no key"))?
            else {
                bail!("an object has no key");
            };
            let stored = StoredObject::of(&object).with_context(|| key.clone())?;
            objects.insert(key.into(), Arc::new(stored));
            hash.update(line.as_bytes());
            continue;
        }
        ensure!(content["objects"].as_u64() == Some(objects.len() as u64), "objects are missing");
        ensure!(content["sha256"] == hex(hash), "its checksum is wrong");
        break;
    }
    let revision = revision.checked_add(REVISION_JUMP).context("its revision is too high")?;
    Ok(StorageState::new(
        revision,
        objects,
        std::collections::VecDeque::new(),
        ChangeWindow::default(),
    ))
}
