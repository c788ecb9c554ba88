//! Deletes terminating namespaces after all objects in them.

use super::item::{CollectedObject, log_failure};
use crate::operations::Api;
use crate::operations::storage_prefix;
use crate::storage::Transaction;

const MANAGER: &str = "namespace-controller";
const FINALIZER: &str = "kubernetes";

pub(crate) async fn empty_namespaces(api: &Api, items: &[CollectedObject]) {
    let ending =
        items.iter().filter(|item| item.kind.kind == "Namespace" && item.is_being_deleted());
    for namespace in ending {
        let name = namespace.text("name");
        let mut empty = true;
        for item in
            items.iter().filter(|item| item.kind.namespaced && item.text("namespace") == name)
        {
            empty = false;
            if !item.is_being_deleted() {
                item.delete(api, MANAGER).await;
            }
        }
        // Deleting an object is a change, so another sweep follows.
        if empty {
            let prefixes: Vec<String> = api
                .kinds()
                .all()
                .filter(|kind| kind.namespaced)
                .map(|kind| storage_prefix(kind, Some(name)))
                .collect();
            let is_empty = move |transaction: &Transaction<'_>| {
                prefixes.iter().all(|prefix| transaction.list(prefix).is_empty())
            };
            let removed = api.remove_finalizer(namespace.target(), FINALIZER, is_empty);
            log_failure(removed.await, namespace);
        }
    }
}
