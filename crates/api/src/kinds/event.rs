//! Events in both API groups. The core group's form is stored.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::json::{at, number, text};
use super::violation::Violation;
use super::{Column, Kind, Rules, Subresource, metadata, names, table};

/// `v1`
pub struct Core;
/// `events.k8s.io/v1`
pub struct Grouped;

const TYPES: [&str; 2] = ["Normal", "Warning"];

/// Fields with different names in the core group and in `events.k8s.io`.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

const OBJECT_FIELDS: [&str; 7] =
    ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];

impl Rules for Core {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::keep_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        violations.extend(same_namespace(object, "involvedObject"));
        // Events of the new API have an `eventTime`. Others are hardly validated.
        if at(object, "eventTime").is_some() {
            violations.extend(reported(object, "reportingComponent"));
            violations.extend(described(object, "message"));
        }
        violations
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        row(object, now)
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        match path {
            "source" => Some(
                match text(object, "source.component") {
                    "" => text(object, "reportingComponent"),
                    component => component,
                }
                .to_owned(),
            ),
            "reason" | "reportingComponent" | "type" => Some(text(object, path).to_owned()),
            _ => {
                let field = path.strip_prefix("involvedObject.")?;
                OBJECT_FIELDS.contains(&field).then(|| text(object, path).to_owned())
            }
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

impl Rules for Grouped {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        Core.prepare(object, old, subresource);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        violations.extend(same_namespace(object, "regarding"));
        if let Some(old) = old {
            violations.extend(changed(object, old));
        } else if at(object, "eventTime").is_none() {
            violations.push(Violation::required("eventTime", ""));
        }
        if old.is_none() || at(object, "eventTime").is_some() {
            violations.extend(reported(object, "reportingController"));
            violations.extend(described(object, "note"));
        }
        violations
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        row(&self.to_stored(object), now)
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        let stored = self.to_stored(object);
        match (path, path.strip_prefix("regarding.")) {
            ("reportingController", _) => Core.field(&stored, "reportingComponent"),
            (_, Some(field)) => Core.field(&stored, &format!("involvedObject.{field}")),
            _ => Core.field(&stored, path),
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn stored_as(&self) -> Option<&'static Kind> {
        super::find_kind("v1", "Event")
    }

    fn to_stored(&self, object: &Value) -> Value {
        renamed(object, "v1", |name| {
            RENAMED.iter().find(|(_, theirs)| *theirs == name).map(|(stored, _)| *stored)
        })
    }

    fn as_shown(&self, object: &Value) -> Value {
        renamed(object, "events.k8s.io/v1", |name| {
            RENAMED.iter().find(|(stored, _)| *stored == name).map(|(_, theirs)| *theirs)
        })
    }
}

fn renamed(
    object: &Value,
    api_version: &str,
    rename: impl Fn(&str) -> Option<&'static str>,
) -> Value {
    let fields = object.as_object().into_iter().flatten();
    let mut renamed: Map<String, Value> = fields
        .map(|(name, value)| (rename(name).unwrap_or(name).to_owned(), value.clone()))
        .collect();
    renamed.insert("apiVersion".to_owned(), json!(api_version));
    Value::Object(renamed)
}

/// Events about cluster-scoped objects are in `default` or `kube-system`.
fn same_namespace(object: &Value, subject: &str) -> Option<Violation> {
    let namespace = text(object, "metadata.namespace");
    let field = format!("{subject}.namespace");
    let of_subject = text(object, &field);
    let detail = if of_subject.is_empty() && !["default", "kube-system"].contains(&namespace) {
        "not allowed in namespaces other than default and kube-system"
    } else if !of_subject.is_empty() && of_subject != namespace {
        "does not match event.namespace"
    } else {
        return None;
    };
    Some(Violation::invalid(field, of_subject, detail))
}

/// Only the series of an event may change.
fn changed(object: &Value, old: &Value) -> Vec<Violation> {
    const OTHERS: [&str; 7] =
        ["reason", "type", "eventTime", "action", "related", "reportingInstance", "metadata.name"];
    let fields = RENAMED.iter().map(|(_, field)| *field).chain(OTHERS);
    fields.filter_map(|field| metadata::immutable(object, old, field)).collect()
}

fn reported(object: &Value, controller: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    match text(object, controller) {
        "" => violations.push(Violation::required("reportingController", "")),
        name => violations.extend(names::violations("reportingController", name, names::qualified)),
    }
    for (field, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        match text(object, field) {
            "" => violations.push(Violation::required(field, "")),
            text if text.len() > most => {
                let detail = format!("can have at most {most} characters");
                violations.push(Violation::invalid(field, "", &detail));
            }
            _ => {}
        }
    }
    violations
}

fn described(object: &Value, note: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    if text(object, note).len() > 1024 {
        violations.push(Violation::invalid(note, "", "can have at most 1024 characters"));
    }
    if !TYPES.contains(&text(object, "type")) {
        let detail = "must be one of Normal or Warning";
        violations.push(Violation::invalid("type", text(object, "type"), detail));
    }
    violations
}

const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "When the event was seen last"),
    Column::text("Type", "Normal or Warning; new types could be added"),
    Column::text("Reason", "A short, machine understandable reason"),
    Column::text("Object", "The object that the event is about"),
    Column::text("Subobject", "The part of the object that the event is about").wide(),
    Column::text("Source", "The component that reported the event").wide(),
    Column::text("Message", "A human-readable description"),
    Column::text("First Seen", "When the event was seen first").wide(),
    Column::text("Count", "How often the event was seen").wide(),
    table::NAME.wide(),
];

/// The table row of a stored event.
fn row(event: &Value, now: Timestamp) -> Vec<Value> {
    let first = match text(event, "firstTimestamp") {
        "" => text(event, "eventTime"),
        time => time,
    };
    let (last, count) = match at(event, "series") {
        Some(series) => (text(series, "lastObservedTime"), number(series, "count")),
        None => {
            let last = text(event, "lastTimestamp");
            (if last.is_empty() { first } else { last }, number(event, "count").max(1))
        }
    };
    let kind = text(event, "involvedObject.kind").to_lowercase();
    let object = match text(event, "involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        table::since(last, now).into(),
        text(event, "type").into(),
        text(event, "reason").into(),
        object.into(),
        text(event, "involvedObject.fieldPath").into(),
        source(event).into(),
        text(event, "message").trim().into(),
        table::since(first, now).into(),
        count.into(),
        table::name(event),
    ]
}

fn source(event: &Value) -> String {
    let either = |first, second| match text(event, first) {
        "" => text(event, second),
        text => text,
    };
    let component = either("source.component", "reportingComponent");
    match either("source.host", "reportingInstance") {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}
