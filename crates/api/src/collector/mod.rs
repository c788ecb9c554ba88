//! What a cluster's controllers do for the served kinds: empties terminating namespaces, deletes
//! objects that lost their owners, and mirrors Endpoints to EndpointSlices.
//!
//! Invariants:
//! - Works from the state, not from individual changes, so a restart misses nothing.
//! - A sweep sees all objects at one revision, and changes only objects that are unchanged since.
//!   What it deletes for the lack of something it looks for again in the write.
//! - Endpoints are mirrored when they, their Service or a mirrored slice has changed, not otherwise.

mod garbage;
mod item;
mod mirror;
mod namespaces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::kinds::ApiKind;
use super::operations::{self, Api};
use super::storage::StoredChange;
use item::CollectedObject;

pub(crate) async fn run_collector(api: Api) {
    let mut revisions = api.storage().revisions();
    let mut position = None;
    loop {
        revisions.mark_unchanged();
        let (sweeps, mirrors, reached) =
            match position.map(|from| api.storage().changes("", from, usize::MAX)) {
                Some(Ok((changes, reached))) => {
                    let sweeps = changes.iter().any(|change| needs_sweep(change));
                    let mirrors =
                        changes.iter().filter_map(|change| mirror::find_affected_endpoints(change));
                    (sweeps, mirrors.collect(), reached)
                }
                // At the start, or when changes have left the window.
                None | Some(Err(_)) => {
                    let page = api.storage().all();
                    let all = page
                        .objects
                        .iter()
                        .filter_map(|(_, stored)| mirror::find_mirrored_name(stored));
                    (true, all.collect(), page.revision)
                }
            };
        position = Some(reached);
        if sweeps {
            let items = list_items(&api);
            namespaces::empty_namespaces(&api, &items).await;
            garbage::delete_orphans(&api, &items).await;
        }
        let mirrors: BTreeSet<mirror::EndpointsName> = mirrors;
        for name in mirrors {
            mirror::mirror_endpoints(&api, &name).await;
        }
        if revisions.changed().await.is_err() {
            return;
        }
    }
}

/// Whether a change may leave a namespace to empty, or an object without owners.
fn needs_sweep(change: &StoredChange) -> bool {
    let Some(after) = &change.after else {
        return true;
    };
    let metadata = after.metadata();
    let before = change.before.as_ref().map_or(Value::Null, |before| before.metadata());
    let owners_changed = metadata["ownerReferences"] != before["ownerReferences"];
    !metadata["deletionTimestamp"].is_null() || owners_changed
}

/// All objects at one revision.
fn list_items(api: &Api) -> Vec<CollectedObject> {
    let kinds: HashMap<String, &'static ApiKind> = api
        .kinds()
        .all()
        .filter(|kind| kind.rules.stored_as().is_none())
        .map(|kind| (operations::storage_prefix(kind, None), kind))
        .collect();
    let of_key = |key: &str| kinds.get(key.split_inclusive('/').next()?).copied();
    let objects = api.storage().all().objects.into_iter();
    objects.filter_map(|(key, stored)| Some(CollectedObject::new(of_key(&key)?, stored))).collect()
}
