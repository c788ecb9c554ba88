//! Random objects and patches from clients.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::ledger::TestAllocations;
use super::super::{Subresource, built_in_kinds, metadata};
use crate::patch;

/// Arbitrary JSON with field names that objects use.
fn anything() -> impl Strategy<Value = Value> {
    const NAMES: &[&str] = &[
        "metadata",
        "name",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "uid",
        "managedFields",
        "fieldsV1",
        "spec",
        "type",
        "ports",
        "port",
        "protocol",
        "targetPort",
        "nodePort",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "selector",
        "externalIPs",
        "sessionAffinity",
        "sessionAffinityConfig",
        "clientIP",
        "status",
        "loadBalancer",
        "ingress",
        "ip",
        "subsets",
        "addresses",
        "endpoints",
        "addressType",
        "hints",
        "forZones",
        "rules",
        "http",
        "paths",
        "path",
        "backend",
        "service",
        "tls",
        "data",
        "stringData",
        "taints",
        "podCIDRs",
        "conditions",
        "series",
        "involvedObject",
        "regarding",
        "parameters",
        "$patch",
        "$setElementOrder/ports",
        "f:spec",
        "k:{",
        "v:",
        ".",
    ];
    const TEXTS: &[&str] = &[
        "",
        "web",
        "None",
        "10.96.0.1",
        "fd00::1",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "ClientIP",
        "TCP",
        "IPv4",
        "PreferDualStack",
        "Local",
        "Namespace",
        "delete",
        "replace",
        "a/b",
        "2026-01-02T03:04:05Z",
        "Apply",
        "ä",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..70_000).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(TEXTS).prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(
                prop::sample::select(NAMES).prop_map(str::to_owned),
                inner,
                0..6
            )
            .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    (anything(), anything(), anything(), anything()).prop_map(|(metadata, spec, status, rest)| {
        let mut object = json!({ "metadata": metadata, "spec": spec, "status": status });
        for (name, value) in rest.as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        object
    })
}

proptest! {
    /// Rules never panic, whatever passes the decoder.
    #[test]
    fn rules_stand_anything(object in any_object(), old in prop::option::of(any_object())) {
        let now = jiff::Timestamp::UNIX_EPOCH;
        for kind in built_in_kinds() {
            let mut object = object.clone();
            kind.rules.set_defaults(&mut object);
            kind.rules.prepare(&mut object, old.as_ref(), Subresource::None);
            metadata::validate_metadata(&object, old.as_ref(), kind.namespaced);
            kind.rules.validate(&object, old.as_ref());
            kind.rules.warnings(&object, old.as_ref());
            let mut ledger = TestAllocations::new(&["10.96.0.0/24"]);
            // The result does not matter here.
            let _ = kind.rules.allocate(&mut object, old.as_ref(), &mut ledger);
            kind.rules.reclaim(&object, &mut ledger);
            kind.rules.release(&object, &mut ledger);
            prop_assert_eq!(kind.rules.row(&object, now).len(), kind.rules.columns().len());
            kind.rules.field(&object, "spec.type");
            kind.rules.as_shown(&kind.rules.to_stored(&object));
        }
    }

    /// Arbitrary patches of arbitrary objects end in a result or an error.
    #[test]
    fn patches_stand_anything(object in any_object(), patch in any_object()) {
        let now = jiff::Timestamp::UNIX_EPOCH;
        for kind in built_in_kinds() {
            // The result does not matter here.
            let _ = patch::json::apply_json_patch(&object, &patch);
            let _ = patch::merge::apply_merge_patch(&object, &patch);
            let _ = patch::strategic::apply_strategic_patch(kind, &object, &patch);
            let none = Subresource::None;
            let _ = patch::apply::apply_server_side(kind, Some(&object), &patch, "kubectl", false, none, now);
            patch::apply::update_managed_fields(kind, Some(&object), &patch, "a", Subresource::Status, now);
        }
    }
}
