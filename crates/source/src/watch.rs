//! Watches files for changes: written in place, replaced by renaming, added, removed, or a
//! directory replaced by another.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use anyhow::{Context, Result};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Editors and `cp` write in several steps: a change is reported after this time without events,
const QUIET: Duration = Duration::from_millis(20);
/// and at the latest after this time.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct Watch {
    /// Absolute paths, as in events.
    paths: BTreeSet<PathBuf>,
    notices: mpsc::UnboundedReceiver<()>,
    watcher: RecommendedWatcher,
}

impl Watch {
    pub fn start(paths: &[PathBuf]) -> Result<Self> {
        let paths: BTreeSet<PathBuf> = paths.iter().map(absolute).collect::<Result<_, _>>()?;
        let (notify, notices) = mpsc::unbounded_channel();
        let concerns = concerns(&paths);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // After an error some events may be lost.
            if event.map_or(true, |event| concerns(&event)) {
                let _ = notify.send(());
            }
        })?;
        let mut watch = Self { paths, notices, watcher };
        watch.watch_all()?;
        Ok(watch)
    }

    /// Waits for a change and the quiet time after it; false if the watch has ended.
    pub async fn changed(&mut self) -> bool {
        if self.notices.recv().await.is_none() {
            return false;
        }
        let patience = Instant::now() + PATIENCE;
        let until = || patience.min(Instant::now() + QUIET);
        while let Ok(Some(())) = timeout_at(until(), self.notices.recv()).await {}
        // A directory may have been replaced or removed: its parent's watch reports when it is
        // created again.
        if let Err(error) = self.watch_all() {
            tracing::debug!(error = format!("{error:#}"), "manifest path not watched");
        }
        true
    }

    /// Watches all paths; returns the error of the first that can't be watched.
    fn watch_all(&mut self) -> Result<()> {
        let Self { paths, watcher, .. } = self;
        paths.iter().map(|path| watch(watcher, path)).fold(Ok(()), Result::and)
    }
}

/// Watches a path and its parent directory, which alone reports that the path was replaced by
/// renaming.
fn watch(watcher: &mut RecommendedWatcher, path: &Path) -> Result<()> {
    let mut watch = |directory: &Path| {
        watcher
            .watch(directory, RecursiveMode::NonRecursive)
            .with_context(|| format!("can't watch {} for changes", directory.display()))
    };
    let holder = path.parent().map_or(Ok(()), &mut watch);
    // If the parent of a directory is not accessible, the directory alone is watched.
    if path.is_dir() { watch(path) } else { holder }
}

/// Whether an event concerns the paths. Events beside a directory do not. Events beside a file
/// may: in a mounted ConfigMap a file is a link to a link.
fn concerns(paths: &BTreeSet<PathBuf>) -> impl Fn(&notify::Event) -> bool + use<> {
    let holders = paths.iter().filter(|path| !path.is_dir()).filter_map(|path| path.parent());
    let within: BTreeSet<PathBuf> =
        paths.iter().map(PathBuf::as_path).chain(holders).map(Path::to_owned).collect();
    let paths = paths.clone();
    move |event| {
        // The agent's own reads are accesses, too.
        let access = matches!(event.kind, EventKind::Access(_));
        let ours = |path: &PathBuf| {
            paths.contains(path) || path.parent().is_some_and(|parent| within.contains(parent))
        };
        !access && (event.paths.is_empty() || event.need_rescan() || event.paths.iter().any(ours))
    }
}
