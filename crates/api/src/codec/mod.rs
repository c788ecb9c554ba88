//! Decodes request bodies, in JSON, YAML or protobuf, into objects of their kinds.

mod declared;
mod protobuf;
mod reader;
mod typed;

use serde_json::{Value, json};

use crate::failure::ApiFailure;
use crate::kinds::ApiKind;
use crate::schema;

pub use typed::{format_micro_time, format_time};

pub(crate) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// The encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    Yaml,
    Protobuf,
}

impl BodyFormat {
    /// `None` for an unsupported media type.
    pub(crate) fn of_content_type(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "" | "application/json" => Some(Self::Json),
            "application/yaml" => Some(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// How to treat unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// A value, and what was wrong with its fields, one sentence each.
#[derive(Debug)]
pub(crate) struct DecodedObject {
    pub value: Value,
    pub oddities: Vec<String>,
}

/// Decodes a body as an object of the kind. Fails with the message of a real API server.
pub(crate) fn decode_object(
    kind: &ApiKind,
    format: BodyFormat,
    body: &[u8],
) -> Result<DecodedObject, ApiFailure> {
    let cannot = |message: &str| refuse_body(kind, message);
    let (value, duplicates) = match format {
        BodyFormat::Json | BodyFormat::Yaml => {
            parse_body(format, body).map_err(|message| cannot(&message))?
        }
        BodyFormat::Protobuf => {
            let definition = require_definition(kind)?;
            let envelope = protobuf::parse_envelope(body).map_err(|message| cannot(&message))?;
            let mut value = protobuf::decode_message(definition, envelope.message)
                .map_err(|message| cannot(&message))?;
            value["apiVersion"] = json!(envelope.api_version);
            value["kind"] = json!(envelope.kind);
            (value, Vec::new())
        }
    };
    let mut value = value;
    check_body_type(kind, &mut value)?;
    let mut oddities: Vec<String> =
        duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    oddities.extend(shape_object(kind, &mut value).map_err(|message| cannot(&message))?);
    Ok(DecodedObject { value, oddities })
}

/// Converts a value to the form of its kind. Returns one sentence for each field that was removed.
/// Fails with the reason if the value cannot be of the kind.
pub(crate) fn shape_object(kind: &ApiKind, value: &mut Value) -> Result<Vec<String>, String> {
    let outcome = match kind.declared {
        Some(schema) => declared::prune_declared(schema, value)?,
        None => {
            typed::shape_typed(require_definition(kind).map_err(|failure| failure.message)?, value)?
        }
    };
    Ok(outcome.unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect())
}

/// Parses JSON or YAML without a schema. Also returns the paths of duplicate fields.
pub(crate) fn parse_body(format: BodyFormat, body: &[u8]) -> Result<(Value, Vec<String>), String> {
    // JSON in a YAML body is read as JSON: it is valid YAML, but YAML readers are stricter.
    let starts_as_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if format == BodyFormat::Json || starts_as_json {
        let mut json = serde_json::Deserializer::from_slice(body);
        let read =
            reader::read_with_duplicates(&mut json).and_then(|read| json.end().map(|()| read));
        read.map_err(|error| format!("couldn't parse JSON: {error}"))
    } else {
        let yaml = serde_norway::Deserializer::from_slice(body);
        reader::read_with_duplicates(yaml)
            .map_err(|error| format!("error converting YAML to JSON: {error}"))
    }
}

/// The options in the body of a DELETE. An empty body has none.
pub(crate) fn decode_delete_options(format: BodyFormat, body: &[u8]) -> Result<Value, ApiFailure> {
    let options = decode_definition(DELETE_OPTIONS, format, body)?;
    match options["kind"].as_str() {
        None | Some("" | "DeleteOptions") => Ok(options),
        // Such as the object to delete, whose fields would otherwise be ignored.
        Some(kind) => {
            let why = format!("the body of a DELETE is of kind {kind}, not DeleteOptions");
            Err(ApiFailure::bad_request(why))
        }
    }
}

/// Decodes a body that is not an object. An empty body has no fields.
pub(crate) fn decode_definition(
    definition: &'static str,
    format: BodyFormat,
    body: &[u8],
) -> Result<Value, ApiFailure> {
    if body.is_empty() {
        return Ok(json!({}));
    }
    let cannot = |message: String| {
        let name = definition.rsplit('.').next().unwrap_or(definition);
        ApiFailure::bad_request(format!("the body of the request is not valid {name}: {message}"))
    };
    let mut value = match format {
        BodyFormat::Protobuf => {
            let envelope = protobuf::parse_envelope(body).map_err(cannot)?;
            protobuf::decode_message(definition, envelope.message).map_err(cannot)?
        }
        format => parse_body(format, body).map_err(cannot)?.0,
    };
    typed::shape_typed(definition, &mut value).map_err(cannot)?;
    Ok(value)
}

fn require_definition(kind: &ApiKind) -> Result<&'static str, ApiFailure> {
    schema::find_definition_name(kind.group, kind.version, kind.kind)
        .ok_or_else(|| ApiFailure::internal(format!("{} has no schema", kind.kind)))
}

pub(crate) fn refuse_body(kind: &ApiKind, message: &str) -> ApiFailure {
    ApiFailure::bad_request(format!(
        "{} in version \"{}\" cannot be handled as a {}: {message}",
        kind.kind, kind.version, kind.kind
    ))
}

/// Checks `apiVersion` and `kind` against the path, and sets them if they are missing.
fn check_body_type(kind: &ApiKind, value: &mut Value) -> Result<(), ApiFailure> {
    let Value::Object(fields) = value else {
        return Err(refuse_body(kind, "json: cannot unmarshal it into an object"));
    };
    let api_version = kind.api_version();
    for (field, expected) in [("apiVersion", api_version.as_str()), ("kind", kind.kind)] {
        match fields.get(field).and_then(Value::as_str) {
            None | Some("") => {
                fields.insert(field.to_owned(), expected.into());
            }
            Some(given) if given == expected => {}
            Some(given) if field == "apiVersion" => {
                return Err(ApiFailure::bad_request(format!(
                    "the API version in the data ({given}) does not match the expected API \
                     version ({expected})"
                )));
            }
            Some(given) => {
                return Err(ApiFailure::bad_request(format!(
                    "the kind in the data ({given}) does not match the expected kind ({expected})"
                )));
            }
        }
    }
    Ok(())
}
