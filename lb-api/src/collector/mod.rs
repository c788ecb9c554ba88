//! What a cluster's controllers do for the served kinds: empties terminating namespaces, deletes
//! objects that lost their owners, and mirrors Endpoints to EndpointSlices.
//!
//! Works from the state, not from individual changes, so a restart misses nothing: a sweep does
//! everything, and the next one finds nothing to do.

mod garbage;
mod mirror;
mod namespaces;

use bytes::Bytes;
use serde_json::{Value, json};

use super::failure::Failure;
use super::kinds::{self, Kind, Subresource};
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
        let (relevant, reached) =
            match position.map(|from| api.storage().changes("", from, usize::MAX)) {
                Some(Ok((changes, reached))) => (changes.iter().any(|c| is_relevant(c)), reached),
                // At the start, or when changes have left the window.
                None | Some(Err(_)) => (true, api.storage().revision()),
            };
        position = Some(reached);
        if relevant {
            sweep(&api).await;
        }
        if revisions.changed().await.is_err() {
            return;
        }
    }
}

/// Whether a sweep may be needed after a change.
fn is_relevant(change: &Change) -> bool {
    let Some(after) = &change.after else {
        return true;
    };
    let metadata = &after.object["metadata"];
    let owners_before = change.before.as_ref().map(|before| &before.object["metadata"]);
    let owners_before = owners_before.map_or(&Value::Null, |metadata| &metadata["ownerReferences"]);
    let owners_changed = metadata["ownerReferences"] != *owners_before;
    let kind = &after.object["kind"];
    let mirrored = kind == "Endpoints" || (kind == "Service" && change.before.is_none());
    !metadata["deletionTimestamp"].is_null() || owners_changed || mirrored
}

async fn sweep(api: &Api) {
    let items = items(api);
    namespaces::sweep(api, &items).await;
    garbage::sweep(api, &items).await;
    mirror::sweep(api, &items).await;
}

fn items(api: &Api) -> Vec<Item> {
    let mut items = Vec::new();
    for kind in kinds::all().iter().filter(|kind| kind.rules.stored_as().is_none()) {
        let Ok(page) = api.storage().list(&operations::prefix(kind, None), None, None, usize::MAX)
        else {
            continue;
        };
        items.extend(page.objects.into_iter().map(|(_, object)| Item { kind, object }));
    }
    items
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

    /// Deletes the object if it still has the same uid.
    async fn delete(&self, api: &Api, manager: &str) {
        let options = json!({
            "propagationPolicy": "Background", "preconditions": {"uid": self.text("uid")},
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
