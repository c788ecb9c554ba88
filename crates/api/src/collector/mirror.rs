//! Mirrors the Endpoints that a user writes for a Service without a selector to EndpointSlices,
//! which the agent reads. Works like the cluster's controller.

use k8s_openapi::api::core::v1::Endpoints;
use serde_json::{Value, json};

use super::item::{CollectedObject, build_request, log_failure};
use crate::kinds::{self, ApiKind, Subresource};
use crate::operations::Api;
use crate::operations::{self, RequestTarget};
use crate::storage::{ObjectHead, StoredChange, StoredObject};

const MANAGER: &str = "endpointslicemirroring-controller";
const MANAGED_BY: &str = "endpointslicemirroring-controller.k8s.io";
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SKIP_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Between the name of the Endpoints and the number of a slice.
const INFIX: &str = "-mirror-";
/// Endpoints with this annotation are a leader election lock.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Namespace and name of Endpoints, and of their Service.
pub(crate) type EndpointsName = (String, String);

/// The Endpoints whose mirrored slices a change affects.
pub(crate) fn find_affected_endpoints(change: &StoredChange) -> Option<EndpointsName> {
    let (before, after) = (change.before.as_deref(), change.after.as_deref());
    // Only the existence and the selector of a Service matter.
    let selector =
        |stored: Option<&StoredObject>| stored.map(|s| s.object()["spec"]["selector"].take());
    let is_service = |stored: &StoredObject| stored.head().kind == "Service";
    if before.is_some_and(is_service) && after.is_some() && selector(before) == selector(after) {
        return None;
    }
    after.and_then(find_mirrored_name).or_else(|| before.and_then(find_mirrored_name))
}

/// The Endpoints that an object belongs to, if it has to do with mirroring.
pub(crate) fn find_mirrored_name(stored: &StoredObject) -> Option<EndpointsName> {
    let ObjectHead { kind, metadata } = stored.head();
    let mut labels = metadata.labels.unwrap_or_default();
    let name = match kind.as_str() {
        "Service" | "Endpoints" => metadata.name?,
        "EndpointSlice" if labels.get(MANAGED_BY_LABEL).is_some_and(|by| by == MANAGED_BY) => {
            labels.remove(SERVICE_NAME)?
        }
        _ => return None,
    };
    Some((metadata.namespace?, name))
}

/// Makes the slices those of the Endpoints.
pub(crate) async fn mirror_endpoints(api: &Api, (namespace, name): &EndpointsName) {
    let get = |api_version: &str, kind: &str| {
        let kind = kinds::find_kind(api_version, kind)?;
        let stored = api.storage().get(&operations::storage_key(kind, Some(namespace), name))?;
        Some(CollectedObject::new(kind, stored))
    };
    let Some(kind) = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice") else {
        return;
    };
    let is_owned = get("v1", "Service").is_some_and(|service| has_no_selector(&service));
    let endpoints = get("v1", "Endpoints").filter(|endpoints| is_owned && is_mirrored(endpoints));
    let wanted = endpoints.map(|endpoints| slices(&endpoints)).unwrap_or_default();
    let mut present = list_mirrored_slices(api, kind, namespace, name);
    for slice in wanted {
        let same = |item: &CollectedObject| item.text("name") == slice["metadata"]["name"];
        match present.iter().position(same).map(|index| present.swap_remove(index)) {
            Some(item) => replace_slice(api, &item, slice).await,
            None => create_slice(api, kind, namespace, &slice).await,
        }
    }
    for stale in present.into_iter().filter(|item| !item.is_being_deleted()) {
        stale.delete(api, MANAGER).await;
    }
}

fn list_mirrored_slices(
    api: &Api,
    kind: &'static ApiKind,
    namespace: &str,
    name: &str,
) -> Vec<CollectedObject> {
    let prefix = operations::storage_key(kind, Some(namespace), &format!("{name}{INFIX}"));
    let objects = api.storage().list(&prefix, None, None, usize::MAX).map(|page| page.objects);
    let items = objects
        .unwrap_or_default()
        .into_iter()
        .map(|(_, stored)| CollectedObject::new(kind, stored));
    let is_own = |item: &CollectedObject| {
        let labels = &item.metadata()["labels"];
        labels[MANAGED_BY_LABEL] == MANAGED_BY && labels[SERVICE_NAME] == name
    };
    items.filter(is_own).collect()
}

fn has_no_selector(service: &CollectedObject) -> bool {
    service.object()["spec"]["selector"].as_object().is_none_or(serde_json::Map::is_empty)
}

fn is_mirrored(endpoints: &CollectedObject) -> bool {
    let metadata = endpoints.metadata();
    !endpoints.is_being_deleted()
        && metadata["labels"][SKIP_LABEL] != "true"
        && metadata["annotations"][LEADER].is_null()
}

/// The wanted slices.
fn slices(endpoints: &CollectedObject) -> Vec<Value> {
    let typed: Endpoints = match serde_json::from_value(endpoints.object()) {
        Ok(typed) => typed,
        Err(error) => {
            let (namespace, name) = (endpoints.text("namespace"), endpoints.text("name"));
            tracing::warn!(%namespace, %name, %error, "endpoints not mirrored");
            return Vec::new();
        }
    };
    let service = endpoints.text("name");
    let mut labels = endpoints.metadata()["labels"].clone();
    if !labels.is_object() {
        labels = json!({});
    }
    labels[SERVICE_NAME] = service.into();
    labels[MANAGED_BY_LABEL] = MANAGED_BY.into();
    let owner = json!([{
        "apiVersion": "v1", "kind": "Endpoints", "name": service, "uid": endpoints.text("uid"),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let mirrored = lb_mirroring::mirror_endpoints(&typed);
    let slices = mirrored.iter().zip(1..).filter_map(|(slice, number)| {
        let mut slice = serde_json::to_value(slice).ok()?;
        let annotations = slice["metadata"]["annotations"].take();
        slice["metadata"] = json!({
            "name": format!("{service}{INFIX}{number}"), "namespace": endpoints.text("namespace"),
            "labels": labels, "annotations": annotations, "ownerReferences": owner,
        });
        Some(slice)
    });
    slices.collect()
}

async fn create_slice(api: &Api, kind: &'static ApiKind, namespace: &str, slice: &Value) {
    let target = RequestTarget {
        kind,
        namespace: Some(namespace.to_owned()),
        name: None,
        subresource: Subresource::None,
        keeps_metadata: false,
    };
    if let Err(failure) =
        api.create(build_request(target, MANAGER, "application/json", slice)).await
    {
        let name = slice["metadata"]["name"].as_str();
        tracing::warn!(%namespace, name, error = %failure, "endpoint slice not created");
    }
}

async fn replace_slice(api: &Api, item: &CollectedObject, mut slice: Value) {
    if item.object()["addressType"] != slice["addressType"] {
        // The address type of a slice can't be changed. Its deletion is a change, after which it is
        // created again.
        item.delete(api, MANAGER).await;
        return;
    }
    for field in ["uid", "resourceVersion"] {
        slice["metadata"][field] = item.text(field).into();
    }
    let request = build_request(item.target(), MANAGER, "application/json", &slice);
    log_failure(api.update(request).await.map(drop), item);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn stored(kind: &str, metadata: Value, selector: Value) -> Arc<StoredObject> {
        let object = json!({"kind": kind, "metadata": metadata, "spec": {"selector": selector}});
        Arc::new(StoredObject::new(1, &object))
    }

    #[test]
    fn only_what_has_to_do_with_mirroring_is_affected() {
        let web = json!({"namespace": "a", "name": "web"});
        let labels = json!({MANAGED_BY_LABEL: MANAGED_BY, SERVICE_NAME: "web"});
        let mirrored = json!({"namespace": "a", "name": "web-mirror-1", "labels": labels});
        let service = stored("Service", web.clone(), Value::Null);
        let selecting = stored("Service", web.clone(), json!({"app": "web"}));
        for (case, before, after, expected) in [
            ("new Service", None, Some(&service), true),
            ("same selector", Some(&service), Some(&service), false),
            ("new selector", Some(&service), Some(&selecting), true),
            ("deleted Service", Some(&service), None, true),
            ("Endpoints", None, Some(&stored("Endpoints", web.clone(), Value::Null)), true),
            ("mirrored", Some(&stored("EndpointSlice", mirrored, Value::Null)), None, true),
            ("slice", None, Some(&stored("EndpointSlice", web.clone(), Value::Null)), false),
            ("Secret", None, Some(&stored("Secret", web.clone(), Value::Null)), false),
        ] {
            let change = StoredChange::of(before.cloned(), after.cloned());
            let expected = expected.then(|| ("a".to_owned(), "web".to_owned()));
            assert_eq!(find_affected_endpoints(&change), expected, "{case}");
        }
    }
}
