//! Deletes terminating namespaces after all objects in them.

use super::item::{Item, report};
use crate::operations::Api;
use crate::operations::prefix;
use crate::storage::Transaction;

const MANAGER: &str = "namespace-controller";
const FINALIZER: &str = "kubernetes";

pub async fn sweep(api: &Api, items: &[Item]) {
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
                .map(|kind| prefix(kind, Some(name)))
                .collect();
            let is_empty = move |transaction: &Transaction<'_>| {
                prefixes.iter().all(|prefix| transaction.list(prefix).is_empty())
            };
            let removed = api.remove_finalizer(namespace.target(), FINALIZER, is_empty);
            report(removed.await, namespace);
        }
    }
}
