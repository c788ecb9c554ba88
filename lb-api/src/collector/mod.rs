//! What a cluster's controllers do for the served kinds: empties terminating namespaces, deletes
//! objects that lost their owners, and mirrors Endpoints to EndpointSlices.
//!
//! Invariants:
//! - Works from the state, not from individual changes, so a restart misses nothing.
//! - A sweep sees all objects at one revision, and changes only objects that are unchanged since.
//!   What it deletes for the lack of something it looks for again in the write.
//! - Endpoints are mirrored when they, their Service or a mirrored slice has changed, not otherwise.

mod garbage;
mod mirror;
mod namespaces;

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use serde_json::{Value, json};

use super::failure::Failure;
use super::kinds::{Kind, Subresource};
use super::operations::options::Query;
use super::operations::{self, Api, Request, Target};
use super::storage::{Change, Stored};

struct Item {
    kind: &'static Kind,
    object: std::sync::Arc<Stored>,
}

pub async fn run(api: Api) {
    let mut revisions = api.storage().revisions();
    let mut position = None;
    loop {
        revisions.mark_unchanged();
        let (sweeps, mirrors, reached) =
            match position.map(|from| api.storage().changes("", from, usize::MAX)) {
                Some(Ok((changes, reached))) => {
                    let sweeps = changes.iter().any(|change| needs_sweep(change));
                    let mirrors = changes.iter().filter_map(|change| mirror::affected(change));
                    (sweeps, mirrors.collect(), reached)
                }
                // At the start, or when changes have left the window.
                None | Some(Err(_)) => {
                    let page = api.storage().all();
                    let all = page.objects.iter().filter_map(|(_, stored)| mirror::name(stored));
                    (true, all.collect(), page.revision)
                }
            };
        position = Some(reached);
        if sweeps {
            let items = items(&api);
            namespaces::sweep(&api, &items).await;
            garbage::sweep(&api, &items).await;
        }
        let mirrors: BTreeSet<mirror::Name> = mirrors;
        for name in mirrors {
            mirror::update(&api, &name).await;
        }
        if revisions.changed().await.is_err() {
            return;
        }
    }
}

/// Whether a change may leave a namespace to empty, or an object without owners.
fn needs_sweep(change: &Change) -> bool {
    let Some(after) = &change.after else {
        return true;
    };
    let metadata = &after.object["metadata"];
    let owners_before = change.before.as_ref().map(|before| &before.object["metadata"]);
    let owners_before = owners_before.map_or(&Value::Null, |metadata| &metadata["ownerReferences"]);
    let owners_changed = metadata["ownerReferences"] != *owners_before;
    !metadata["deletionTimestamp"].is_null() || owners_changed
}

/// All objects at one revision.
fn items(api: &Api) -> Vec<Item> {
    let kinds: HashMap<String, &'static Kind> = api
        .kinds()
        .all()
        .filter(|kind| kind.rules.stored_as().is_none())
        .map(|kind| (operations::prefix(kind, None), kind))
        .collect();
    let of_key = |key: &str| kinds.get(key.split_inclusive('/').next()?).copied();
    let objects = api.storage().all().objects.into_iter();
    objects.filter_map(|(key, object)| Some(Item { kind: of_key(&key)?, object })).collect()
}

impl Item {
    fn metadata(&self) -> &Value {
        &self.object.object["metadata"]
    }

    fn text(&self, field: &str) -> &str {
        self.metadata()[field].as_str().unwrap_or_default()
    }

    fn is_being_deleted(&self) -> bool {
        !self.metadata()["deletionTimestamp"].is_null()
    }

    fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata()["finalizers"]
            .as_array()
            .is_some_and(|finalizers| finalizers.iter().any(|one| one == finalizer))
    }

    fn target(&self) -> Target {
        let namespace = self.text("namespace");
        Target {
            kind: self.kind,
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            name: Some(self.text("name").to_owned()),
            subresource: Subresource::None,
        }
    }

    /// Deletes the object if it is unchanged.
    async fn delete(&self, api: &Api, manager: &str) {
        let options = json!({
            "propagationPolicy": "Background",
            "preconditions": {
                "uid": self.text("uid"), "resourceVersion": self.text("resourceVersion"),
            },
        });
        let request = request(self.target(), manager, "application/json", &options);
        report(api.delete(request).await.map(drop), self);
    }

    async fn merge(&self, api: &Api, manager: &str, mut patch: Value) {
        patch["metadata"]["uid"] = self.text("uid").into();
        patch["metadata"]["resourceVersion"] = self.text("resourceVersion").into();
        let request = request(self.target(), manager, "application/merge-patch+json", &patch);
        report(api.patch(request).await.map(drop), self);
    }
}

fn request(target: Target, manager: &str, content_type: &str, body: &Value) -> Request {
    Request {
        target,
        query: Query::default(),
        user_agent: manager.to_owned(),
        content_type: content_type.to_owned(),
        body: Bytes::from(body.to_string()),
    }
}

/// Objects that have changed or disappeared meanwhile are left to the next sweep.
fn report(done: Result<(), Failure>, item: &Item) {
    if let Err(failure) = done
        && !matches!(failure.code, 404 | 409)
    {
        tracing::warn!(
            kind = %item.kind.plural,
            namespace = %item.text("namespace"),
            name = %item.text("name"),
            error = %failure,
            "object not updated"
        );
    }
}
