//! The schemas of objects: the types of the API reference, from k8s-openapi, and what only the Go
//! types contain (`fields.txt`).

mod fields;
#[cfg(test)]
mod published;

use std::sync::LazyLock;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{SelfSubjectAccessReview, SelfSubjectRulesReview};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event as EventsEvent;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, Patch, Status};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

pub use fields::{ListType, SchemaField, SchemaMessage, find_message};

/// Prefix of a reference to another definition.
pub(crate) const REFERENCE_PREFIX: &str = "#/$defs/";

/// All definitions by name, such as `io.k8s.api.core.v1.Service`.
pub fn definitions() -> &'static Map<String, Value> {
    static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(generate);
    &DEFINITIONS
}

/// The definition of a kind, if the kind is served.
pub(crate) fn find_definition_name(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    let group = match group.split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    };
    let name = format!("io.k8s.api.{group}.{version}.{kind}");
    definitions().get_key_value(&name).map(|(name, _)| name.as_str())
}

/// The definition that a schema refers to.
pub(crate) fn resolve_reference(schema: &Value) -> Option<&'static str> {
    let name = schema.get("$ref")?.as_str()?.strip_prefix(REFERENCE_PREFIX)?;
    definitions().get_key_value(name).map(|(name, _)| name.as_str())
}

fn generate() -> Map<String, Value> {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    generator.subschema_for::<ConfigMap>();
    generator.subschema_for::<Endpoints>();
    generator.subschema_for::<Event>();
    generator.subschema_for::<Namespace>();
    generator.subschema_for::<Node>();
    generator.subschema_for::<Secret>();
    generator.subschema_for::<Service>();
    generator.subschema_for::<ServiceAccount>();
    generator.subschema_for::<Lease>();
    generator.subschema_for::<EndpointSlice>();
    generator.subschema_for::<EventsEvent>();
    generator.subschema_for::<Ingress>();
    generator.subschema_for::<IngressClass>();
    generator.subschema_for::<SelfSubjectReview>();
    generator.subschema_for::<SelfSubjectAccessReview>();
    generator.subschema_for::<SelfSubjectRulesReview>();
    generator.subschema_for::<DeleteOptions>();
    generator.subschema_for::<ListMeta>();
    generator.subschema_for::<Patch>();
    generator.subschema_for::<Status>();
    generator.take_definitions(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_fields_has_exactly_the_fields_of_the_schemas() {
        for (name, definition) in definitions() {
            let Some(properties) = definition.get("properties").and_then(Value::as_object) else {
                continue;
            };
            let of_responses = ["ListMeta", "ShardInfo", "Status", "StatusCause", "StatusDetails"];
            let Some(message) = find_message(name) else {
                assert!(of_responses.iter().any(|end| name.ends_with(end)), "{name} is missing");
                continue;
            };
            for field in properties.keys() {
                // `apiVersion` and `kind` are not fields of the messages. The number of the last
                // field is not published yet; it is accepted in JSON.
                let known = message.fields.contains_key(field.as_str())
                    || ["apiVersion", "kind", "runningInUserNamespace"].contains(&field.as_str());
                assert!(known, "{name}.{field} is missing");
            }
            for (field, facts) in &message.fields {
                assert!(properties.contains_key(*field), "{name} has no {field}");
                assert!(facts.number > 0, "{name}.{field} has no number");
            }
        }
    }

    #[test]
    fn the_ports_of_a_service_are_merged_by_number_and_protocol() {
        let message = find_message("io.k8s.api.core.v1.ServiceSpec").unwrap();
        let ports = &message.fields["ports"];
        assert_eq!(ports.list, Some(ListType::Map(vec!["port", "protocol"])));
        assert_eq!((ports.patch_strategy, ports.patch_merge_key), (Some("merge"), Some("port")));
        assert!(message.fields["selector"].atomic);
    }
}
