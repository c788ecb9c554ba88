//! What an API server adds to new objects that depends on other objects.

use serde_json::Value;

use super::storage_prefix;
use crate::kinds::{self, ApiKind};
use crate::storage::{StoredObject, Transaction};

const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// The predecessor of `ingressClassName`.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// An Ingress without a class gets the default one. Of several the newest, as in a cluster.
pub(super) fn admit_default_class(
    transaction: &Transaction<'_>,
    kind: &ApiKind,
    object: &mut Value,
) {
    let metadata = &object["metadata"]["annotations"];
    if kind.kind != "Ingress"
        || !object["spec"]["ingressClassName"].is_null()
        || !metadata[CLASS_ANNOTATION].is_null()
    {
        return;
    }
    let Some(classes) = kinds::find_kind("networking.k8s.io/v1", "IngressClass") else {
        return;
    };
    let classes = transaction.list(&storage_prefix(classes, None));
    if let Some(name) = default_class(classes.iter().map(|(_, stored)| &**stored)) {
        object["spec"]["ingressClassName"] = name.into();
    }
}

fn default_class<'a>(classes: impl Iterator<Item = &'a StoredObject>) -> Option<String> {
    let metadata = classes.map(StoredObject::metadata);
    let defaults = metadata.filter(|metadata| metadata["annotations"][IS_DEFAULT] == "true");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // The newest first, then by name.
    let order = |metadata: Value| {
        (std::cmp::Reverse(text(&metadata["creationTimestamp"])), text(&metadata["name"]))
    };
    defaults.map(order).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_default_class_is_taken() {
        let class = |name: &str, second: u8, is_default: &str| {
            let object = json!({"metadata": {
                "name": name, "creationTimestamp": format!("2026-01-01T00:00:0{second}Z"),
                "annotations": {IS_DEFAULT: is_default},
            }});
            StoredObject::new(1, &object)
        };
        let all = [
            class("a", 1, "true"),
            class("c", 2, "true"),
            class("b", 2, "true"),
            class("d", 3, "false"),
        ];
        assert_eq!(default_class(all.iter()).as_deref(), Some("b"));
        assert_eq!(default_class(all[3..].iter()), None);
    }
}
