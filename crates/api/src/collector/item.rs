//! An object that the collector examines, and the requests by which it changes or deletes it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::kinds::{Kind, Subresource};
use crate::operations::options::Query;
use crate::operations::{Api, Request, Target};
use crate::storage::Stored;

pub struct Item {
    pub kind: &'static Kind,
    stored: Arc<Stored>,
    metadata: Value,
}

impl Item {
    pub fn new(kind: &'static Kind, stored: Arc<Stored>) -> Self {
        Self { kind, metadata: stored.metadata(), stored }
    }

    pub fn object(&self) -> Value {
        self.stored.object()
    }

    pub fn metadata(&self) -> &Value {
        &self.metadata
    }

    pub fn text(&self, field: &str) -> &str {
        self.metadata()[field].as_str().unwrap_or_default()
    }

    pub fn is_being_deleted(&self) -> bool {
        !self.metadata()["deletionTimestamp"].is_null()
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata()["finalizers"]
            .as_array()
            .is_some_and(|finalizers| finalizers.iter().any(|one| one == finalizer))
    }

    pub fn target(&self) -> Target {
        let namespace = self.text("namespace");
        Target {
            kind: self.kind,
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            name: Some(self.text("name").to_owned()),
            subresource: Subresource::None,
            keeps_metadata: false,
        }
    }

    /// Deletes the object if it is unchanged.
    pub async fn delete(&self, api: &Api, manager: &str) {
        let options = json!({
            "propagationPolicy": "Background",
            "preconditions": {
                "uid": self.text("uid"), "resourceVersion": self.text("resourceVersion"),
            },
        });
        let request = request(self.target(), manager, "application/json", &options);
        report(api.delete(request).await.map(drop), self);
    }

    pub async fn merge(&self, api: &Api, manager: &str, mut patch: Value) {
        patch["metadata"]["uid"] = self.text("uid").into();
        patch["metadata"]["resourceVersion"] = self.text("resourceVersion").into();
        let request = request(self.target(), manager, "application/merge-patch+json", &patch);
        report(api.patch(request).await.map(drop), self);
    }
}

pub fn request(target: Target, manager: &str, content_type: &str, body: &Value) -> Request {
    Request {
        target,
        query: Query::default(),
        user_agent: manager.to_owned(),
        content_type: content_type.to_owned(),
        body: Bytes::from(body.to_string()),
    }
}

/// Objects that have changed or disappeared meanwhile are left to the next sweep.
pub fn report(done: Result<(), Failure>, item: &Item) {
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
