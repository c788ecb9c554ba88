//! One task for each EndpointSlice that asks for checks.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use super::config::{HealthCheck, WantedCheck, read_wanted_check};
use super::slice::CheckedSlice;
use crate::kinds;
use crate::operations::{self, Api};
use crate::storage::{StorageKey, StoredObject};

/// Probes at the same time, of all slices.
const MAX_CONCURRENT_PROBES: usize = 2048;

/// A slice's key, and its present state; `None` if it was deleted.
type Changed = (StorageKey, Option<Arc<StoredObject>>);

/// Keeps one task for each slice that asks for checks.
pub async fn run_health_checker(api: Api) {
    let Some(kind) = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice") else {
        return;
    };
    let prefix = operations::storage_prefix(kind, None);
    let slots = Arc::new(Semaphore::new(MAX_CONCURRENT_PROBES));
    let mut revisions = api.storage().revisions();
    let mut checked: HashMap<StorageKey, Checked> = HashMap::new();
    let mut position = None;
    loop {
        revisions.mark_unchanged();
        let changed = position.map(|from| api.storage().changes(&prefix, from, usize::MAX));
        let (slices, reached): (Vec<Changed>, u64) = match changed {
            Some(Ok((changes, reached))) => {
                let each = changes.iter().map(|change| (change.key.clone(), change.after.clone()));
                (each.collect(), reached)
            }
            // At the start, or when changes have left the window.
            None | Some(Err(_)) => {
                let Ok(page) = api.storage().list(&prefix, None, None, usize::MAX) else { return };
                checked.clear();
                let each = page.objects.into_iter().map(|(key, stored)| (key, Some(stored)));
                (each.collect(), page.revision)
            }
        };
        position = Some(reached);
        for (key, stored) in slices {
            let wish = stored.as_ref().and_then(|stored| read_wanted_check(&stored.object()));
            if let Some(checked) = checked.get(&key)
                && Some(&checked.wish) == wish.as_ref()
            {
                checked.changed.notify_one();
                continue;
            }
            checked.remove(&key);
            let Some(wish) = wish else { continue };
            let changed = Arc::new(Notify::new());
            let task = match HealthCheck::parse(&wish) {
                Ok(check) => {
                    let slice = CheckedSlice::new(api.clone(), kind, key.clone(), check);
                    Some(tokio::spawn(slice.follow(Arc::clone(&slots), Arc::clone(&changed))))
                }
                Err(invalid) => {
                    tracing::warn!(
                        object = %key,
                        annotation = invalid.annotation,
                        value = invalid.value,
                        fix = invalid.fix,
                        "invalid health check annotation"
                    );
                    None
                }
            };
            checked.insert(key, Checked { wish, changed, task });
        }
        if revisions.changed().await.is_err() {
            return;
        }
    }
}

/// A slice's annotations, and the task that checks it. The task ends when this is dropped.
struct Checked {
    wish: WantedCheck,
    /// Wakes the task when the slice has changed.
    changed: Arc<Notify>,
    /// `None` if an annotation is invalid.
    task: Option<JoinHandle<()>>,
}

impl Drop for Checked {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
