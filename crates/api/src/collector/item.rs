//! An object that the collector examines, and the requests by which it changes or deletes it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::failure::ApiFailure;
use crate::kinds::{ApiKind, Subresource};
use crate::operations::options::QueryParameters;
use crate::operations::{Api, ApiRequest, RequestTarget};
use crate::storage::StoredObject;

pub(crate) struct CollectedObject {
    pub kind: &'static ApiKind,
    stored: Arc<StoredObject>,
    metadata: Value,
}

impl CollectedObject {
    pub fn new(kind: &'static ApiKind, stored: Arc<StoredObject>) -> Self {
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

    pub(crate) fn is_being_deleted(&self) -> bool {
        !self.metadata()["deletionTimestamp"].is_null()
    }

    pub(crate) fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata()["finalizers"]
            .as_array()
            .is_some_and(|finalizers| finalizers.iter().any(|one| one == finalizer))
    }

    pub fn target(&self) -> RequestTarget {
        let namespace = self.text("namespace");
        RequestTarget {
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
        let request = build_request(self.target(), manager, "application/json", &options);
        log_failure(api.delete(request).await.map(drop), self);
    }

    pub async fn merge(&self, api: &Api, manager: &str, mut patch: Value) {
        patch["metadata"]["uid"] = self.text("uid").into();
        patch["metadata"]["resourceVersion"] = self.text("resourceVersion").into();
        let request = build_request(self.target(), manager, "application/merge-patch+json", &patch);
        log_failure(api.patch(request).await.map(drop), self);
    }
}

pub(crate) fn build_request(
    target: RequestTarget,
    manager: &str,
    content_type: &str,
    body: &Value,
) -> ApiRequest {
    ApiRequest {
        target,
        query: QueryParameters::default(),
        user_agent: manager.to_owned(),
        content_type: content_type.to_owned(),
        body: Bytes::from(body.to_string()),
    }
}

/// Objects that have changed or disappeared meanwhile are left to the next sweep.
pub(crate) fn log_failure(done: Result<(), ApiFailure>, item: &CollectedObject) {
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
