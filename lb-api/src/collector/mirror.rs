//! Mirrors the Endpoints that a user writes for a Service without a selector to EndpointSlices,
//! which the agent reads. Works like the cluster's controller.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::Endpoints;
use serde_json::{Value, json};

use super::{Api, Item, request};
use crate::kinds::{self, Subresource};
use crate::mirroring;
use crate::operations::Target;

const MANAGER: &str = "endpointslicemirroring-controller";
const MANAGED_BY: &str = "endpointslicemirroring-controller.k8s.io";
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SKIP_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints with this annotation are a leader election lock.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

pub async fn sweep(api: &Api, items: &[Item]) {
    let of_kind = |kind: &'static str| items.iter().filter(move |item| item.kind.kind == kind);
    let services: HashMap<(&str, &str), &Item> = of_kind("Service")
        .map(|item| ((item.text("namespace"), item.text("name")), item))
        .collect();
    let mut present: BTreeMap<(String, String), &Item> = of_kind("EndpointSlice")
        .filter(|item| item.metadata()["labels"][MANAGED_BY_LABEL] == MANAGED_BY)
        .map(|item| ((item.text("namespace").to_owned(), item.text("name").to_owned()), item))
        .collect();
    for endpoints in of_kind("Endpoints") {
        let owner = services.get(&(endpoints.text("namespace"), endpoints.text("name")));
        if !owner.is_some_and(|service| has_no_selector(service)) || !is_mirrored(endpoints) {
            continue;
        }
        for (name, slice) in slices(endpoints) {
            let key = (endpoints.text("namespace").to_owned(), name.clone());
            match present.remove(&key) {
                Some(item) => update(api, item, slice).await,
                None => create(api, &key.0, &name, slice).await,
            }
        }
    }
    for stale in present.into_values().filter(|item| !item.is_being_deleted()) {
        stale.delete(api, MANAGER).await;
    }
}

fn has_no_selector(service: &Item) -> bool {
    service.object.object["spec"]["selector"].as_object().is_none_or(serde_json::Map::is_empty)
}

fn is_mirrored(endpoints: &Item) -> bool {
    let metadata = endpoints.metadata();
    !endpoints.is_being_deleted()
        && metadata["labels"][SKIP_LABEL] != "true"
        && metadata["annotations"][LEADER].is_null()
}

/// The wanted slices and their names.
fn slices(endpoints: &Item) -> Vec<(String, Value)> {
    let typed: Endpoints = match serde_json::from_value(endpoints.object.object.clone()) {
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
    let mirrored = mirroring::slices(&typed);
    let slices = mirrored.iter().zip(1..).filter_map(|(slice, number)| {
        let mut slice = serde_json::to_value(slice).ok()?;
        let name = format!("{service}-mirror-{number}");
        slice["metadata"] = json!({
            "name": name, "namespace": endpoints.text("namespace"),
            "labels": labels, "ownerReferences": owner,
        });
        Some((name, slice))
    });
    slices.collect()
}

async fn create(api: &Api, namespace: &str, name: &str, slice: Value) {
    let Some(kind) = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice") else {
        return;
    };
    let target = Target {
        kind,
        namespace: Some(namespace.to_owned()),
        name: None,
        subresource: Subresource::None,
    };
    if let Err(failure) = api.create(request(target, MANAGER, "application/json", &slice)).await {
        tracing::warn!(%namespace, %name, error = %failure, "endpoint slice not created");
    }
}

async fn update(api: &Api, item: &Item, slice: Value) {
    let current = &item.object.object;
    let addresses_changed = current["addressType"] != slice["addressType"];
    if addresses_changed {
        // The address type of a slice can't be changed. The next sweep creates the slice again.
        item.delete(api, MANAGER).await;
        return;
    }
    let patch = json!({
        "metadata": {
            "labels": slice["metadata"]["labels"],
            "ownerReferences": slice["metadata"]["ownerReferences"],
        },
        "endpoints": slice["endpoints"],
        "ports": slice["ports"],
    });
    item.merge(api, MANAGER, patch).await;
}
