//! The objects of manifests.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::{IngressClass, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};
use serde_json::Value;

/// By kind and name.
pub type Objects = BTreeMap<String, Value>;

pub fn read(text: &str) -> Objects {
    let documents = serde_norway::Deserializer::from_str(text);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    let mut objects = Objects::new();
    for object in documents.filter(|document| !document.is_null()) {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{} {}", text("/kind"), text("/metadata/name"));
        let twice = objects.insert(name.clone(), object);
        assert!(twice.is_none(), "{name} is there twice");
    }
    objects
}

/// Panics if Kubernetes would reject an object or ignore a field.
pub fn check(objects: &Objects) {
    for (name, object) in objects {
        match object["kind"].as_str().unwrap() {
            "ClusterRole" => keeps_all::<ClusterRole>(name, object),
            "ClusterRoleBinding" => keeps_all::<ClusterRoleBinding>(name, object),
            "ConfigMap" => keeps_all::<ConfigMap>(name, object),
            "CustomResourceDefinition" => keeps_all::<CustomResourceDefinition>(name, object),
            "DaemonSet" => keeps_all::<DaemonSet>(name, object),
            "Deployment" => keeps_all::<Deployment>(name, object),
            "HorizontalPodAutoscaler" => keeps_all::<HorizontalPodAutoscaler>(name, object),
            "IngressClass" => keeps_all::<IngressClass>(name, object),
            "NetworkPolicy" => keeps_all::<NetworkPolicy>(name, object),
            "PodDisruptionBudget" => keeps_all::<PodDisruptionBudget>(name, object),
            "Role" => keeps_all::<Role>(name, object),
            "RoleBinding" => keeps_all::<RoleBinding>(name, object),
            "Secret" => keeps_all::<Secret>(name, object),
            "Service" => keeps_all::<Service>(name, object),
            "ServiceAccount" => keeps_all::<ServiceAccount>(name, object),
            // Kinds of the Prometheus operator, which is optional.
            "PodMonitor" | "PrometheusRule" | "ServiceMonitor" => {
                assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1")
            }
            kind => panic!("{name}: nobody has thought of objects of kind {kind}"),
        }
    }
}

/// Panics if deserialising and serialising an object loses a field, which is unknown then.
fn keeps_all<T: DeserializeOwned + Serialize>(name: &str, object: &Value) {
    let typed: T = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{name} is none that Kubernetes takes: {error}"));
    let back = serde_json::to_value(typed).unwrap();
    let lost = lost(object, &back);
    assert!(lost.is_empty(), "{name} has fields that Kubernetes does not know: {lost:?}");
}

/// The paths of unknown fields.
pub fn lost(written: &Value, known: &Value) -> Vec<String> {
    let mut lost = Vec::new();
    compare(written, known, "", &mut lost);
    lost
}

fn compare(written: &Value, known: &Value, path: &str, lost: &mut Vec<String>) {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            for (key, value) in written {
                let path = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => compare(value, known, &path, lost),
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(known)) if written.len() == known.len() => {
            for (index, (written, known)) in written.iter().zip(known).enumerate() {
                compare(written, known, &format!("{path}[{index}]"), lost);
            }
        }
        _ if written == known => {}
        // Limits in schemas are floating-point numbers.
        (Value::Number(written), Value::Number(known)) if written.as_f64() == known.as_f64() => {}
        _ => lost.push(path.to_owned()),
    }
}

#[test]
fn a_field_that_is_none_is_found() {
    let wrong = read(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\nautomountServiceAccountTokens: true\n",
    );
    let message = std::panic::catch_unwind(|| check(&wrong)).unwrap_err();
    let message = message.downcast::<String>().unwrap();
    assert!(message.contains(".automountServiceAccountTokens"), "{message}");
}
