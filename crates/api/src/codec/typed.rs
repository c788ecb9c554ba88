//! Converts a client's JSON to an object of its kind as decoding into Go's types does: unknown
//! fields, nulls and meaningless zero values are removed, and types must match.

use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use crate::schema::{self, SchemaMessage};

/// Unknown fields that are reported.
pub(crate) const MAX_REPORTED_FIELDS: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct RemovedFields {
    /// The first fields that the kind does not have.
    pub unknown: Vec<String>,
}

/// Why a value can't be of its type, in the words of Go's decoder.
pub(crate) type Mismatch = String;

/// Converts `value` to the form of its definition.
pub(crate) fn shape_typed(
    definition: &'static str,
    value: &mut Value,
) -> Result<RemovedFields, Mismatch> {
    let mut walk = TypedWalk::default();
    walk.message(definition, value, &FieldPath::default())?;
    Ok(RemovedFields { unknown: walk.unknown })
}

#[derive(Default)]
struct TypedWalk {
    unknown: Vec<String>,
}

/// The location of a value.
#[derive(Default, Clone)]
struct FieldPath {
    /// `spec.ports[0].port`
    path: String,
    /// The path without indexes, prefixed with the type that has the field, as Go reports it.
    go: String,
}

impl TypedWalk {
    fn message(
        &mut self,
        definition: &'static str,
        value: &mut Value,
        at: &FieldPath,
    ) -> Result<(), Mismatch> {
        let schema = &schema::definitions()[definition];
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return opaque(definition, schema, value, at);
        };
        let type_name = definition.rsplit('.').next().unwrap_or(definition);
        let Value::Object(fields) = value else {
            let package = definition.rsplit('.').nth(1).unwrap_or_default();
            return Err(mismatch(value, &format!("{package}.{type_name}"), at));
        };
        let facts = schema::find_message(definition);
        let required = schema.get("required").and_then(Value::as_array);
        let mut kept = Map::new();
        for (name, mut field) in std::mem::take(fields) {
            let path = join_field_path(&at.path, &name);
            let Some(property) = properties.get(&name) else {
                if self.unknown.len() < MAX_REPORTED_FIELDS {
                    self.unknown.push(path);
                }
                continue;
            };
            if field.is_null() {
                continue;
            }
            let go = join_field_path(at.go.split_once('.').map_or("", |(_, path)| path), &name);
            let at = FieldPath { path, go: format!("{type_name}.{go}") };
            self.value(property, &mut field, &at)?;
            let is_required = required.is_some_and(|names| names.iter().any(|one| *one == *name));
            // Maps, but not types with fields.
            let is_empty_map = property.get("additionalProperties").is_some()
                && field.as_object().is_some_and(Map::is_empty);
            if is_required || !is_empty_map && !means_nothing(facts, &name, &field) {
                kept.insert(name, field);
            }
        }
        *fields = kept;
        Ok(())
    }

    fn value(
        &mut self,
        schema: &'static Value,
        value: &mut Value,
        at: &FieldPath,
    ) -> Result<(), Mismatch> {
        if let Some(definition) = schema::resolve_reference(schema) {
            return self.message(definition, value, at);
        }
        let type_ = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
        match (type_, &mut *value) {
            ("string", Value::String(text)) if format == "byte" => bytes(text),
            ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => Ok(()),
            ("number", Value::Number(_)) => Ok(()),
            ("integer", Value::Number(number)) => match integer(number, format) {
                Some(integer) => {
                    *value = integer.into();
                    Ok(())
                }
                None => Err(mismatch(value, go_type(type_, format), at)),
            },
            ("array", Value::Array(items)) => {
                let schema = &schema["items"];
                items.iter_mut().enumerate().try_for_each(|(index, item)| {
                    let path = format!("{}[{index}]", at.path);
                    // Go decodes a null item as a zero value. No field has a use for one, so null
                    // is a type mismatch here.
                    self.value(schema, item, &FieldPath { path, go: at.go.clone() })
                })
            }
            ("object", Value::Object(entries)) => {
                let Some(schema) = schema.get("additionalProperties") else {
                    return Ok(());
                };
                for (key, entry) in entries.iter_mut() {
                    if entry.is_null() && schema.get("type").is_some_and(|type_| type_ == "string")
                    {
                        // Go decodes null in a map of strings as an empty string.
                        *entry = Value::String(String::new());
                    }
                    let path = join_field_path(&at.path, key);
                    self.value(schema, entry, &FieldPath { path, go: at.go.clone() })?;
                }
                Ok(())
            }
            (type_, value) => Err(mismatch(value, go_type(type_, format), at)),
        }
    }
}

/// Types that are not JSON objects.
fn opaque(
    definition: &str,
    schema: &Value,
    value: &mut Value,
    at: &FieldPath,
) -> Result<(), Mismatch> {
    let type_name = definition.rsplit('.').next().unwrap_or(definition);
    match (type_name, &mut *value) {
        ("IntOrString", Value::String(_)) | ("FieldsV1", Value::Object(_)) => Ok(()),
        ("IntOrString", Value::Number(number)) => match integer(number, "int32") {
            Some(_) => Ok(()),
            None => Err(mismatch(value, "int32", at)),
        },
        ("Quantity", Value::String(_)) => Ok(()),
        ("Quantity", Value::Number(number)) => {
            *value = Value::String(number.to_string());
            Ok(())
        }
        ("Time", Value::String(text)) => shape_time(text, format_time),
        ("MicroTime", Value::String(text)) => shape_time(text, format_micro_time),
        (_, Value::Object(_)) if schema.get("type").is_some_and(|type_| type_ == "object") => {
            Ok(())
        }
        (type_name, value) => Err(mismatch(value, type_name, at)),
    }
}

/// All times are stored in one format.
fn shape_time(text: &mut String, form: fn(Timestamp) -> String) -> Result<(), Mismatch> {
    const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
    let time: Timestamp = text
        .parse()
        .map_err(|_| format!("parsing time {text:?} as {LAYOUT:?}: cannot parse {text:?}"))?;
    *text = form(time);
    Ok(())
}

pub fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn format_micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn bytes(text: &str) -> Result<(), Mismatch> {
    use base64::Engine;
    match base64::engine::general_purpose::STANDARD.decode(text.replace(['\r', '\n'], "")) {
        Ok(_) => Ok(()),
        Err(base64::DecodeError::InvalidByte(at, _)) => {
            Err(format!("illegal base64 data at input byte {at}"))
        }
        Err(_) => Err(format!("illegal base64 data at input byte {}", text.len())),
    }
}

fn integer(number: &Number, format: &str) -> Option<i64> {
    let whole = |float: f64| {
        // All integers up to 53 bits are exact.
        #[expect(clippy::cast_possible_truncation)]
        (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
    };
    let integer = number.as_i64().or_else(|| number.as_f64().and_then(whole))?;
    (format != "int32" || i32::try_from(integer).is_ok()).then_some(integer)
}

/// Whether the API leaves out a field with this value.
fn means_nothing(message: Option<&SchemaMessage>, name: &str, value: &Value) -> bool {
    let Some(field) = message.and_then(|message| message.fields.get(name)) else {
        // `apiVersion`, `kind` and unknown fields stay unchanged.
        return false;
    };
    match value {
        Value::Array(items) => items.is_empty(),
        _ if field.pointer => false,
        Value::String(text) => text.is_empty(),
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

fn go_type(type_: &str, format: &str) -> &'static str {
    match (type_, format) {
        ("integer", "int32") => "int32",
        ("integer", _) => "int64",
        ("boolean", _) => "bool",
        ("array", _) => "[]interface {}",
        ("object", _) => "map[string]string",
        ("number", _) => "float64",
        _ => "string",
    }
}

fn mismatch(value: &Value, wanted: &str, at: &FieldPath) -> Mismatch {
    let is = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if wanted.starts_with("int") => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    let at =
        if at.go.is_empty() { "Go value".to_owned() } else { format!("Go struct field {}", at.go) };
    format!("json: cannot unmarshal {is} into {at} of type {wanted}")
}

/// The path of a field inside the value at `path`.
pub(crate) fn join_field_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SERVICE: &str = "io.k8s.api.core.v1.Service";

    fn service(mut value: Value) -> Result<(Value, Vec<String>), Mismatch> {
        let outcome = shape_typed(SERVICE, &mut value)?;
        Ok((value, outcome.unknown))
    }

    #[test]
    fn unknown_fields_and_nulls_are_removed_and_unknown_fields_reported() {
        let sent = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "creationTimestamp": null, "labels": {"a": "b"}},
            "spec": {"foo": 1, "ports": [{"port": 80, "prot": "TCP", "nodePort": 0}]}});
        let (kept, unknown) = service(sent).unwrap();
        assert_eq!(
            kept,
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "labels": {"a": "b"}},
                "spec": {"ports": [{"port": 80}]}})
        );
        assert_eq!(unknown, ["spec.foo", "spec.ports[0].prot"]);
    }

    #[test]
    fn empty_maps_are_removed_and_empty_types_stay() {
        let sent = json!({"metadata": {"labels": {}, "annotations": {}},
            "spec": {"selector": {}, "sessionAffinityConfig": {}}});
        let (kept, _) = service(sent).unwrap();
        assert_eq!(kept, json!({"metadata": {}, "spec": {"sessionAffinityConfig": {}}}));
    }

    #[test]
    fn zero_stays_where_it_means_something() {
        let sent = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 0}],
            "allocateLoadBalancerNodePorts": false, "publishNotReadyAddresses": false}});
        let (kept, _) = service(sent).unwrap();
        assert_eq!(
            kept["spec"],
            json!({"ports": [{"port": 0}], "allocateLoadBalancerNodePorts": false})
        );
    }

    #[test]
    fn a_wrong_type_is_refused_with_gos_message() {
        let port = |port: Value| json!({"spec": {"ports": [{"port": port}]}});
        for (sent, expected) in [
            (
                port(json!("http")),
                "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port \
                 of type int32",
            ),
            (
                port(json!(5_000_000_000_u64)),
                "json: cannot unmarshal number 5000000000 into Go struct field \
                 ServicePort.spec.ports.port of type int32",
            ),
            (
                json!({"spec": []}),
                "json: cannot unmarshal array into Go struct field Service.spec of type \
                 v1.ServiceSpec",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of \
                 type string",
            ),
        ] {
            assert_eq!(service(sent).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_target_port_may_be_a_number_or_a_name() {
        for port in [json!(8080), json!("http")] {
            let sent = json!({"spec": {"ports": [{"port": 80, "targetPort": port}]}});
            assert_eq!(service(sent.clone()).unwrap().0, sent);
        }
    }

    #[test]
    fn times_have_one_form() {
        let mut lease = json!({"metadata": {"creationTimestamp": "2026-01-02T03:04:05+01:00"},
            "spec": {"renewTime": "2026-01-02T03:04:05Z"}});
        shape_typed("io.k8s.api.coordination.v1.Lease", &mut lease).unwrap();
        assert_eq!(lease["metadata"]["creationTimestamp"], "2026-01-02T02:04:05Z");
        assert_eq!(lease["spec"]["renewTime"], "2026-01-02T03:04:05.000000Z");
    }
}
