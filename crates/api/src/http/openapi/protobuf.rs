//! The V2 document in protobuf, with the messages of gnostic's `OpenAPIv2.proto`. Older kubectls
//! request only this form. The numbers are field numbers in that file.

use serde_json::Value;

/// A message that is being written.
#[derive(Default)]
struct ProtobufWriter(Vec<u8>);

impl ProtobufWriter {
    fn varint(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                self.0.push(low & 0x7f);
                return;
            }
            self.0.push(low | 0x80);
        }
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// Writes a string, if the value is one.
    fn text(&mut self, field: u32, value: &Value) {
        if let Some(text) = value.as_str() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u32, values: &Value) {
        for value in values.as_array().into_iter().flatten() {
            self.text(field, value);
        }
    }

    fn flag(&mut self, field: u32, value: &Value) {
        if value == true {
            self.varint(u64::from(field) << 3);
            self.varint(1);
        }
    }

    /// Writes an entry of a map: its name and value.
    fn named(&mut self, field: u32, name: &str, value: &Self) {
        let mut named = Self::default();
        named.bytes(1, name.as_bytes());
        named.message(2, value);
        self.message(field, &named);
    }

    /// Writes Kubernetes' extensions as YAML.
    fn extensions(&mut self, field: u32, of: &Value) {
        for (name, value) in sorted_entries(of).filter(|(name, _)| name.starts_with("x-")) {
            let mut any = Self::default();
            any.bytes(2, format!("{value}\n").as_bytes());
            self.named(field, name, &any);
        }
    }
}

fn sorted_entries(of: &Value) -> impl Iterator<Item = (&String, &Value)> {
    of.as_object().into_iter().flatten()
}

pub(crate) fn encode_document(document: &Value) -> Vec<u8> {
    let mut message = ProtobufWriter::default();
    message.text(1, &document["swagger"]);
    let mut info = ProtobufWriter::default();
    info.text(1, &document["info"]["title"]);
    info.text(2, &document["info"]["version"]);
    message.message(2, &info);
    let mut paths = ProtobufWriter::default();
    for (name, item) in sorted_entries(&document["paths"]) {
        paths.named(2, name, &path_item(item));
    }
    message.message(8, &paths);
    let mut definitions = ProtobufWriter::default();
    for (name, definition) in sorted_entries(&document["definitions"]) {
        definitions.named(1, name, &schema(definition));
    }
    message.message(9, &definitions);
    message.0
}

fn path_item(item: &Value) -> ProtobufWriter {
    let mut message = ProtobufWriter::default();
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(value) = item.get(method) {
            message.message(field, &encode_operation(value));
        }
    }
    for value in item["parameters"].as_array().into_iter().flatten() {
        message.message(9, &parameter(value));
    }
    message
}

fn encode_operation(operation: &Value) -> ProtobufWriter {
    let mut message = ProtobufWriter::default();
    message.texts(1, &operation["tags"]);
    message.text(3, &operation["description"]);
    message.text(5, &operation["operationId"]);
    message.texts(6, &operation["produces"]);
    message.texts(7, &operation["consumes"]);
    for value in operation["parameters"].as_array().into_iter().flatten() {
        message.message(8, &parameter(value));
    }
    let mut responses = ProtobufWriter::default();
    for (code, value) in sorted_entries(&operation["responses"]) {
        let mut response = ProtobufWriter::default();
        response.text(1, &value["description"]);
        response.message(2, &wrapped(1, &schema(&value["schema"])));
        responses.named(1, code, &wrapped(1, &response));
    }
    message.message(9, &responses);
    message.extensions(13, operation);
    message
}

/// A message that holds one of several kinds of messages.
fn wrapped(kind: u32, message: &ProtobufWriter) -> ProtobufWriter {
    let mut wrapper = ProtobufWriter::default();
    wrapper.message(kind, message);
    wrapper
}

/// Body parameters and others have different messages, and so has each type of the others.
fn parameter(parameter: &Value) -> ProtobufWriter {
    let mut message = ProtobufWriter::default();
    let either = if parameter["in"] == "body" {
        message.text(1, &parameter["description"]);
        message.text(2, &parameter["name"]);
        message.text(3, &parameter["in"]);
        message.flag(4, &parameter["required"]);
        message.message(5, &schema(&parameter["schema"]));
        wrapped(1, &message)
    } else {
        let in_path = parameter["in"] == "path";
        message.flag(1, &parameter["required"]);
        message.text(2, &parameter["in"]);
        message.text(3, &parameter["description"]);
        message.text(4, &parameter["name"]);
        message.text(if in_path { 5 } else { 6 }, &parameter["type"]);
        wrapped(2, &wrapped(if in_path { 4 } else { 3 }, &message))
    };
    wrapped(1, &either)
}

fn schema(value: &Value) -> ProtobufWriter {
    let mut message = ProtobufWriter::default();
    message.text(1, &value["$ref"]);
    message.text(2, &value["format"]);
    message.text(4, &value["description"]);
    message.texts(19, &value["required"]);
    if let Some(entries) = value.get("additionalProperties") {
        message.message(21, &wrapped(1, &schema(entries)));
    }
    if let Some(type_) = value["type"].as_str() {
        let mut item = ProtobufWriter::default();
        item.bytes(1, type_.as_bytes());
        message.message(22, &item);
    }
    if let Some(items) = value.get("items") {
        message.message(23, &wrapped(1, &schema(items)));
    }
    if value.get("properties").is_some() {
        let mut properties = ProtobufWriter::default();
        for (name, property) in sorted_entries(&value["properties"]) {
            properties.named(1, name, &schema(property));
        }
        message.message(25, &properties);
    }
    message.extensions(31, value);
    message
}
