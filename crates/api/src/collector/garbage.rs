//! Deletes objects whose owners are gone, as the deletion of the owner requested.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::super::operations::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use super::item::{CollectedObject, log_failure};
use crate::kinds::KindRegistry;
use crate::operations::Api;
use crate::storage::Transaction;

const MANAGER: &str = "generic-garbage-collector";

pub async fn delete_orphans(api: &Api, items: &[CollectedObject]) {
    let by_uid: HashMap<&str, &CollectedObject> =
        items.iter().map(|item| (item.text("uid"), item)).collect();
    // Owners whose deletion waits for an existing dependent.
    let mut waiting: HashSet<&str> = HashSet::new();
    for item in items {
        let references: Vec<&Value> = references(item);
        if references.is_empty() {
            continue;
        }
        let owner = |reference: &Value| by_uid.get(reference["uid"].as_str()?).copied();
        let ending = |reference: &Value, finalizer: &str| {
            owner(reference)
                .is_some_and(|owner| owner.is_being_deleted() && owner.has_finalizer(finalizer))
        };
        let (mut kept, mut dropped, mut doomed) = (Vec::new(), 0, false);
        for reference in references {
            if ending(reference, ORPHAN_FINALIZER) {
                dropped += 1;
                waiting.insert(reference["uid"].as_str().unwrap_or_default());
            } else if ending(reference, FOREGROUND_FINALIZER) {
                // With another owner the object stays, and must not block this one.
                (dropped, doomed) = (dropped + 1, true);
                if reference["blockOwnerDeletion"] == true {
                    waiting.insert(reference["uid"].as_str().unwrap_or_default());
                }
            } else if owner(reference).is_some() || !is_served(api.kinds(), reference) {
                kept.push(reference.clone());
            } else {
                dropped += 1;
                doomed = true;
            }
        }
        if !kept.is_empty() || !doomed {
            if dropped > 0 {
                let patch = json!({"metadata": {"ownerReferences": kept}});
                item.merge(api, MANAGER, patch).await;
            }
        } else if !item.is_being_deleted() {
            item.delete(api, MANAGER).await;
        }
    }
    for item in items.iter().filter(|item| item.is_being_deleted()) {
        if waiting.contains(item.text("uid")) {
            continue;
        }
        for finalizer in [FOREGROUND_FINALIZER, ORPHAN_FINALIZER] {
            if item.has_finalizer(finalizer) {
                let uid = item.text("uid").to_owned();
                let is_done = move |transaction: &Transaction<'_>| {
                    let all = transaction.list("");
                    !all.iter().any(|(_, stored)| blocks(&stored.metadata(), &uid, finalizer))
                };
                log_failure(api.remove_finalizer(item.target(), finalizer, is_done).await, item);
            }
        }
    }
}

/// Whether an owner with this finalizer has to wait for the object with this metadata: it may have
/// been created after the sweep began.
fn blocks(metadata: &Value, owner: &str, finalizer: &str) -> bool {
    let references = metadata["ownerReferences"].as_array().into_iter().flatten();
    references
        .filter(|reference| reference["uid"] == owner)
        .any(|reference| finalizer == ORPHAN_FINALIZER || reference["blockOwnerDeletion"] == true)
}

fn references(item: &CollectedObject) -> Vec<&Value> {
    item.metadata()["ownerReferences"].as_array().into_iter().flatten().collect()
}

/// Whether this server has the owner's kind. It cannot know whether owners of other kinds exist.
fn is_served(kinds: &KindRegistry, reference: &Value) -> bool {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    kinds.find_kind(text("apiVersion"), text("kind")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_waits_for_the_dependents_that_block_it() {
        let object = |block: bool| {
            json!({"ownerReferences": [
            {"uid": "other", "blockOwnerDeletion": true},
            {"uid": "owner", "blockOwnerDeletion": block}]})
        };
        for (owner, finalizer, block, expected) in [
            ("owner", ORPHAN_FINALIZER, false, true),
            ("owner", FOREGROUND_FINALIZER, true, true),
            ("owner", FOREGROUND_FINALIZER, false, false),
            ("nobody", ORPHAN_FINALIZER, true, false),
        ] {
            let blocked = blocks(&object(block), owner, finalizer);
            assert_eq!(blocked, expected, "{owner} {finalizer} {block}");
        }
    }
}
