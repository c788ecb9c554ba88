//! The forms in which objects are returned: complete, metadata only, or as a table.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::options::QueryParameters;
use super::watch::{ReportedObject, WatchEvent};
use crate::failure::ApiFailure;
use crate::kinds::ApiKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseShape {
    Whole,
    Metadata { version: &'static str },
    Table { version: &'static str, include: TableInclude },
}

/// What the rows of a table contain of their objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableInclude {
    None,
    Metadata,
    Object,
}

impl ResponseShape {
    /// The first form in an `Accept` header that is supported.
    pub fn negotiate(accept: &str, query: &QueryParameters) -> Result<Self, ApiFailure> {
        let include = match query.first_value("includeObject") {
            "None" => TableInclude::None,
            "Object" => TableInclude::Object,
            _ => TableInclude::Metadata,
        };
        let offers = accept.split(',').map(str::trim).filter(|offer| !offer.is_empty());
        let mut any = false;
        for offer in offers {
            any = true;
            let mut parts = offer.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if !matches!(media, "application/json" | "application/*" | "*/*") {
                continue;
            }
            let parameters: Vec<(&str, &str)> =
                parts.filter_map(|part| part.split_once('=')).collect();
            let parameter = |name: &str| {
                parameters.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| *value)
            };
            let version = match parameter("v") {
                "v1" => "v1",
                "v1beta1" => "v1beta1",
                _ => "",
            };
            match (parameter("as"), parameter("g"), version) {
                ("", ..) => return Ok(Self::Whole),
                (_, _, "") => {}
                ("Table", "meta.k8s.io", version) => return Ok(Self::Table { version, include }),
                ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", version) => {
                    return Ok(Self::Metadata { version });
                }
                _ => {}
            }
        }
        if any {
            let message = "only the following media types are accepted: application/json";
            Err(ApiFailure::new(406, "NotAcceptable", message).with_empty_details())
        } else {
            Ok(Self::Whole)
        }
    }

    /// An object or a list in this form. A Status is returned unchanged.
    pub fn render(self, kind: &ApiKind, value: Value, now: Timestamp) -> Value {
        if value["kind"] == "Status" {
            return value;
        }
        match self {
            Self::Whole => value,
            Self::Metadata { version } => metadata_of(value, version),
            Self::Table { version, include } => table(kind, value, version, include, now),
        }
    }

    /// The field of a list that has the items.
    pub fn items(self) -> &'static str {
        match self {
            Self::Whole | Self::Metadata { .. } => "items",
            Self::Table { .. } => "rows",
        }
    }

    /// A watch event as a line. Only the first event of a table has the columns.
    pub(crate) fn render_event(self, kind: &ApiKind, event: WatchEvent, first: bool) -> String {
        let type_ = event.type_;
        let line_of = |text: &str| format!("{{\"type\":\"{type_}\",\"object\":{text}}}\n");
        let line = |object: &Value| line_of(&object.to_string());
        match (self, &event.object) {
            (_, ReportedObject::Made(object)) if type_ == "ERROR" => line(object),
            // Not read: the same text is sent to all watches.
            (Self::Whole, object) => match object.stored_text(kind) {
                Some(text) => line_of(text),
                None => line(&object.seen(kind)),
            },
            (_, object) => {
                let value = object.seen(kind).into_owned();
                line(&self.render_event_object(kind, type_, value, first))
            }
        }
    }

    fn render_event_object(self, kind: &ApiKind, type_: &str, value: Value, first: bool) -> Value {
        let mut rendered = if type_ == "BOOKMARK" && matches!(self, Self::Table { .. }) {
            let metadata = value["metadata"].clone();
            let items: [Value; 0] = [];
            self.render(kind, json!({"metadata": metadata, "items": items}), Timestamp::now())
        } else {
            self.render(kind, value, Timestamp::now())
        };
        if !first && let Self::Table { .. } = self {
            rendered["columnDefinitions"] = Value::Null;
        }
        rendered
    }
}

fn metadata_of(mut value: Value, version: &str) -> Value {
    let api_version = format!("meta.k8s.io/{version}");
    let partial = |metadata: Value| json!({"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": metadata});
    let metadata = value["metadata"].take();
    match value["items"].take() {
        Value::Array(items) => json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": api_version,
            "metadata": metadata,
            "items": items.into_iter().map(|mut item| partial(item["metadata"].take()))
                .collect::<Vec<_>>(),
        }),
        _ => partial(metadata),
    }
}

fn table(
    kind: &ApiKind,
    mut value: Value,
    version: &str,
    include: TableInclude,
    now: Timestamp,
) -> Value {
    let api_version = format!("meta.k8s.io/{version}");
    let (metadata, objects) = match value["items"].take() {
        Value::Array(items) => (value["metadata"].take(), items),
        _ => {
            let revision = value["metadata"]["resourceVersion"].clone();
            if let Some(object) = value.as_object_mut() {
                object.remove("items");
            }
            (json!({"resourceVersion": revision}), vec![value])
        }
    };
    let columns: Vec<Value> = kind
        .rules
        .columns()
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.type_,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|mut object| {
            let cells = kind.rules.row(&object, now);
            let object = match include {
                TableInclude::None => Value::Null,
                TableInclude::Metadata => json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": api_version,
                    "metadata": object["metadata"].take(),
                }),
                TableInclude::Object => {
                    object["apiVersion"] = kind.api_version().into();
                    object["kind"] = kind.kind.into();
                    object
                }
            };
            json!({"cells": cells, "object": object})
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(accept: &str) -> Result<ResponseShape, u16> {
        ResponseShape::negotiate(accept, &QueryParameters::default())
            .map_err(|failure| failure.code)
    }

    #[test]
    fn the_first_supported_form_is_selected() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                       application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let table = ResponseShape::Table { version: "v1", include: TableInclude::Metadata };
        assert_eq!(negotiate(kubectl), Ok(table));
        for accept in ["", "*/*", "application/vnd.kubernetes.protobuf, application/json"] {
            assert_eq!(negotiate(accept), Ok(ResponseShape::Whole), "{accept}");
        }
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(negotiate(partial), Ok(ResponseShape::Metadata { version: "v1" }));
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf"), Err(406));
        assert_eq!(negotiate("application/json;as=Chart;v=v1;g=meta.k8s.io"), Err(406));
    }
}
