//! Converts the protobuf encoding of Kubernetes to the equivalent JSON. kubectl sends protobuf
//! since 1.32. The types come from the schemas, the field numbers from `schema/fields.txt`.

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::reader::MAX_BODY_VALUES;
use super::typed::{format_micro_time, format_time};
use crate::schema::{self, SchemaField};

/// The prefix of every message.
pub(crate) const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

/// The limit of nested messages.
const MAX_MESSAGE_DEPTH: u32 = 64;

/// An object as received: the type that it declares, and its message.
pub struct Envelope<'a> {
    pub api_version: String,
    pub kind: String,
    pub message: &'a [u8],
}

pub(crate) fn parse_envelope(body: &[u8]) -> Result<Envelope<'_>, String> {
    let body = body.strip_prefix(PROTOBUF_MAGIC).ok_or(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
    )?;
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), message: &[] };
    for part in FieldParts(body) {
        match part? {
            (1, FieldPart::Bytes(type_)) => {
                for part in FieldParts(type_) {
                    match part? {
                        (1, FieldPart::Bytes(bytes)) => envelope.api_version = decode_text(bytes)?,
                        (2, FieldPart::Bytes(bytes)) => envelope.kind = decode_text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, FieldPart::Bytes(message)) => envelope.message = message,
            (3, FieldPart::Bytes(encoding)) if !encoding.is_empty() => {
                return Err("the message has a content encoding, which is not supported".to_owned());
            }
            _ => {}
        }
    }
    Ok(envelope)
}

/// Decodes a message to the JSON of its definition.
pub(crate) fn decode_message(definition: &'static str, message: &[u8]) -> Result<Value, String> {
    message_value(definition, message, 0, &mut 0)
}

fn message_value(
    definition: &'static str,
    message: &[u8],
    depth: u32,
    values: &mut usize,
) -> Result<Value, String> {
    if depth > MAX_MESSAGE_DEPTH {
        return Err("messages are nested too deep".to_owned());
    }
    match definition.rsplit('.').next() {
        Some("Time") => return decode_time(message, format_time),
        Some("MicroTime") => return decode_time(message, format_micro_time),
        Some("IntOrString") => return int_or_string(message),
        Some("Quantity") => return first_text(message).map(Value::String),
        Some("FieldsV1") => {
            let raw = first_text(message)?;
            return serde_json::from_str(&raw).map_err(|error| format!("fieldsV1: {error}"));
        }
        _ => {}
    }
    let facts =
        schema::find_message(definition).ok_or_else(|| format!("{definition} is not known"))?;
    let properties = &schema::definitions()[definition]["properties"];
    let mut object = Map::new();
    for part in FieldParts(message) {
        let (number, part) = part?;
        let mut matching = facts.fields.iter().filter(|(_, field)| field.number == number);
        // A later version may send fields that this one does not know.
        let Some((name, field)) = matching.next() else {
            continue;
        };
        let property = &properties[*name];
        match (field.embedded, part) {
            (Some(embedded), FieldPart::Bytes(bytes)) => {
                for part in FieldParts(bytes) {
                    let (number, part) = part?;
                    if number == embedded {
                        take_field(&mut object, name, field, property, part, depth, values)?;
                    }
                }
            }
            (_, part) => take_field(&mut object, name, field, property, part, depth, values)?,
        }
    }
    Ok(Value::Object(object))
}

/// Adds one occurrence of a field to the object.
fn take_field(
    object: &mut Map<String, Value>,
    name: &str,
    field: &SchemaField,
    schema: &'static Value,
    part: FieldPart<'_>,
    depth: u32,
    values: &mut usize,
) -> Result<(), String> {
    match schema["type"].as_str() {
        Some("array") => {
            let item = value(&schema["items"], part, depth, values)?;
            let items = object.entry(name).or_insert_with(|| json!([]));
            if let Value::Array(items) = items {
                items.push(item);
            }
        }
        Some("object") if schema.get("additionalProperties").is_some() => {
            let FieldPart::Bytes(entry) = part else {
                return Err(format!("{name} is not a message"));
            };
            let mut key = String::new();
            let mut content = Value::String(String::new());
            for part in FieldParts(entry) {
                match part? {
                    (1, FieldPart::Bytes(bytes)) => key = decode_text(bytes)?,
                    (2, part) => {
                        content = value(&schema["additionalProperties"], part, depth, values)?
                    }
                    _ => {}
                }
            }
            let entries = object.entry(name).or_insert_with(|| json!({}));
            if let Value::Object(entries) = entries {
                entries.insert(key, content);
            }
        }
        _ => {
            let content = value(schema, part, depth, values)?;
            // A missing time or message that is not a pointer in Go is sent empty.
            let nothing = !field.pointer
                && (content.is_null() || content.as_object().is_some_and(Map::is_empty));
            if !nothing {
                object.insert(name.to_owned(), content);
            }
        }
    }
    Ok(())
}

fn value(
    schema: &'static Value,
    part: FieldPart<'_>,
    depth: u32,
    values: &mut usize,
) -> Result<Value, String> {
    *values += 1;
    if *values > MAX_BODY_VALUES {
        return Err(format!("it has more than {MAX_BODY_VALUES} values"));
    }
    if let Some(definition) = schema::resolve_reference(schema) {
        return match part {
            FieldPart::Bytes(message) => message_value(definition, message, depth + 1, values),
            FieldPart::Number(_) => Err(format!("{definition} is a message, not a number")),
        };
    }
    match (schema["type"].as_str(), schema["format"].as_str(), part) {
        (Some("string"), Some("byte"), FieldPart::Bytes(bytes)) => {
            Ok(base64::engine::general_purpose::STANDARD.encode(bytes).into())
        }
        (Some("string"), _, FieldPart::Bytes(bytes)) => decode_text(bytes).map(Value::String),
        (Some("boolean"), _, FieldPart::Number(number)) => Ok((number != 0).into()),
        // Negative 32-bit numbers are also sent as 64-bit numbers.
        (Some("integer"), _, FieldPart::Number(number)) => Ok(number.cast_signed().into()),
        (type_, ..) => {
            Err(format!("a field of type {} is encoded as another", type_.unwrap_or("?")))
        }
    }
}

fn decode_time(message: &[u8], form: fn(Timestamp) -> String) -> Result<Value, String> {
    let (mut seconds, mut nanoseconds) = (None, 0);
    for part in FieldParts(message) {
        match part? {
            (1, FieldPart::Number(number)) => seconds = Some(number.cast_signed()),
            (2, FieldPart::Number(number)) => nanoseconds = i32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    let Some(seconds) = seconds else {
        return Ok(Value::Null);
    };
    let time = Timestamp::new(seconds, nanoseconds).map_err(|error| error.to_string())?;
    Ok(form(time).into())
}

fn int_or_string(message: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut name) = (false, 0, String::new());
    for part in FieldParts(message) {
        match part? {
            (1, FieldPart::Number(type_)) => is_text = type_ == 1,
            (2, FieldPart::Number(value)) => number = value.cast_signed(),
            (3, FieldPart::Bytes(bytes)) => name = decode_text(bytes)?,
            _ => {}
        }
    }
    Ok(if is_text { name.into() } else { number.into() })
}

fn first_text(message: &[u8]) -> Result<String, String> {
    for part in FieldParts(message) {
        if let (1, FieldPart::Bytes(bytes)) = part? {
            return decode_text(bytes);
        }
    }
    Ok(String::new())
}

fn decode_text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8".to_owned())
}

enum FieldPart<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message as encoded: number and content.
struct FieldParts<'a>(&'a [u8]);

impl<'a> Iterator for FieldParts<'a> {
    type Item = Result<(u32, FieldPart<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = self.part();
        if part.is_none() {
            self.0 = &[];
        }
        Some(part.ok_or_else(|| "the message is cut off or garbled".to_owned()))
    }
}

impl<'a> FieldParts<'a> {
    fn part(&mut self) -> Option<(u32, FieldPart<'a>)> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok()?;
        let part = match tag & 7 {
            0 => FieldPart::Number(self.varint()?),
            1 => FieldPart::Number(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                FieldPart::Bytes(self.bytes(length)?)
            }
            5 => FieldPart::Number(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((number, part))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, length], content].concat()
    }

    fn number(field: u8, value: u8) -> Vec<u8> {
        vec![field << 3, value]
    }

    #[test]
    fn a_service_is_read_as_its_json() {
        let target = [number(1, 1), field(3, b"http")].concat();
        let port = [number(3, 80), field(1, b"web"), field(4, &target)].concat();
        let label = [field(1, b"app"), field(2, b"web")].concat();
        let metadata = [field(1, b"web"), field(3, b""), field(8, b""), field(11, &label)].concat();
        let service = [field(1, &metadata), field(2, &field(1, &port))].concat();
        let type_ = [field(1, b"v1"), field(2, b"Service")].concat();
        let body =
            [PROTOBUF_MAGIC, &field(1, &type_), &field(2, &service), &field(3, b"")].concat();
        let envelope = parse_envelope(&body).unwrap();
        assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str()), ("v1", "Service"));
        let decoded = decode_message("io.k8s.api.core.v1.Service", envelope.message).unwrap();
        assert_eq!(
            decoded,
            json!({"metadata": {"name": "web", "namespace": "", "labels": {"app": "web"}},
                "spec": {"ports": [{"name": "web", "port": 80, "targetPort": "http"}]}})
        );
    }

    #[test]
    fn the_number_of_values_has_a_limit() {
        // Each port is an empty message of two bytes.
        let ports = [3 << 3 | 2, 0].repeat(MAX_BODY_VALUES + 1);
        let error = decode_message("io.k8s.api.core.v1.EndpointSubset", &ports).unwrap_err();
        assert!(error.contains("values"), "{error}");
    }

    #[test]
    fn an_embedded_message_is_part_of_its_holder() {
        let path = [field(1, b"/"), field(3, b"Prefix")].concat();
        let rule = [field(1, b"a.example"), field(2, &field(1, &field(1, &path)))].concat();
        let decoded = decode_message("io.k8s.api.networking.v1.IngressRule", &rule).unwrap();
        assert_eq!(
            decoded,
            json!({"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix"}]}})
        );
    }

    #[test]
    fn secrets_are_bytes_and_come_as_base64() {
        let entry = [field(1, b"key"), field(2, &[0xff, 0x00])].concat();
        let decoded = decode_message("io.k8s.api.core.v1.Secret", &field(2, &entry)).unwrap();
        assert_eq!(decoded, json!({"data": {"key": "/wA="}}));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_message("io.k8s.api.core.v1.Service", &bytes);
            let _ = decode_message("io.k8s.api.discovery.v1.EndpointSlice", &bytes);
            let _ = parse_envelope(&[PROTOBUF_MAGIC, &bytes].concat());
        }
    }
}
