//! Noticing that files change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Editors and `cp` write in several steps; a change is taken up when it has been quiet this
/// long.
const QUIET: Duration = Duration::from_millis(20);

pub struct Changes {
    notices: mpsc::UnboundedReceiver<()>,
    _watcher: RecommendedWatcher,
}

/// Watches files and directories. A file is watched through its directory: when it is replaced
/// by renaming another one onto it, only the directory notices.
pub fn changes(paths: &[PathBuf]) -> Result<Changes> {
    let (notify, notices) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading the files ourselves is an access, too.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            let _ = notify.send(());
        }
    })?;
    for path in paths {
        let directory = if path.is_dir() { path } else { directory_of(path) };
        watcher
            .watch(directory, RecursiveMode::NonRecursive)
            .with_context(|| format!("{} can't be watched for changes", directory.display()))?;
    }
    Ok(Changes { notices, _watcher: watcher })
}

impl Changes {
    /// Waits for a change and for the quiet after it; false if none can come any more.
    pub async fn changed(&mut self) -> bool {
        if self.notices.recv().await.is_none() {
            return false;
        }
        while let Ok(Some(())) = tokio::time::timeout(QUIET, self.notices.recv()).await {}
        true
    }
}

fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}
