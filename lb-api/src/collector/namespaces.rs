//! Deletes terminating namespaces after all objects in them.

use super::{Api, Item, report};

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
            report(api.remove_finalizer(namespace.target(), FINALIZER).await, namespace);
        }
    }
}
