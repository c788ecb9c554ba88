//! Events in both API groups. The core group's form is stored.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::json::{get_number, get_text, get_value};
use super::violation::Violation;
use super::{ApiKind, KindRules, Subresource, TableColumn, metadata, names, table};

/// `v1`
pub(crate) struct CoreEvent;
/// `events.k8s.io/v1`
pub(crate) struct GroupedEvent;

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

impl KindRules for CoreEvent {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::restore_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        violations.extend(same_namespace(object, "involvedObject"));
        // Events of the new API have an `eventTime`. Others are hardly validated.
        if get_value(object, "eventTime").is_some() {
            violations.extend(reported(object, "reportingComponent"));
            violations.extend(described(object, "message"));
        }
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        COLUMNS
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        event_row(object, now)
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        match path {
            "source" => Some(
                match get_text(object, "source.component") {
                    "" => get_text(object, "reportingComponent"),
                    component => component,
                }
                .to_owned(),
            ),
            "reason" | "reportingComponent" | "type" => Some(get_text(object, path).to_owned()),
            _ => {
                let field = path.strip_prefix("involvedObject.")?;
                OBJECT_FIELDS.contains(&field).then(|| get_text(object, path).to_owned())
            }
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

impl KindRules for GroupedEvent {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        CoreEvent.prepare(object, old, subresource);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        violations.extend(same_namespace(object, "regarding"));
        if let Some(old) = old {
            violations.extend(changed(object, old));
        } else if get_value(object, "eventTime").is_none() {
            violations.push(Violation::required("eventTime", ""));
        }
        if old.is_none() || get_value(object, "eventTime").is_some() {
            violations.extend(reported(object, "reportingController"));
            violations.extend(described(object, "note"));
        }
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        COLUMNS
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        event_row(&self.to_stored(object), now)
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        let stored = self.to_stored(object);
        match (path, path.strip_prefix("regarding.")) {
            ("reportingController", _) => CoreEvent.field(&stored, "reportingComponent"),
            (_, Some(field)) => CoreEvent.field(&stored, &format!("involvedObject.{field}")),
            _ => CoreEvent.field(&stored, path),
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn stored_as(&self) -> Option<&'static ApiKind> {
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
    let namespace = get_text(object, "metadata.namespace");
    let field = format!("{subject}.namespace");
    let of_subject = get_text(object, &field);
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
    fields.filter_map(|field| metadata::validate_immutable(object, old, field)).collect()
}

fn reported(object: &Value, controller: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    match get_text(object, controller) {
        "" => violations.push(Violation::required("reportingController", "")),
        name => violations.extend(names::check_name(
            "reportingController",
            name,
            names::check_qualified_name,
        )),
    }
    for (field, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        match get_text(object, field) {
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
    if get_text(object, note).len() > 1024 {
        violations.push(Violation::invalid(note, "", "can have at most 1024 characters"));
    }
    if !TYPES.contains(&get_text(object, "type")) {
        let detail = "must be one of Normal or Warning";
        violations.push(Violation::invalid("type", get_text(object, "type"), detail));
    }
    violations
}

const COLUMNS: &[TableColumn] = &[
    TableColumn::text("Last Seen", "When the event was seen last"),
    TableColumn::text("Type", "Normal or Warning; new types could be added"),
    TableColumn::text("Reason", "A short, machine understandable reason"),
    TableColumn::text("Object", "The object that the event is about"),
    TableColumn::text("Subobject", "The part of the object that the event is about").wide(),
    TableColumn::text("Source", "The component that reported the event").wide(),
    TableColumn::text("Message", "A human-readable description"),
    TableColumn::text("First Seen", "When the event was seen first").wide(),
    TableColumn::text("Count", "How often the event was seen").wide(),
    table::NAME_COLUMN.wide(),
];

/// The table row of a stored event.
fn event_row(event: &Value, now: Timestamp) -> Vec<Value> {
    let first = match get_text(event, "firstTimestamp") {
        "" => get_text(event, "eventTime"),
        time => time,
    };
    let (last, count) = match get_value(event, "series") {
        Some(series) => (get_text(series, "lastObservedTime"), get_number(series, "count")),
        None => {
            let last = get_text(event, "lastTimestamp");
            (if last.is_empty() { first } else { last }, get_number(event, "count").max(1))
        }
    };
    let kind = get_text(event, "involvedObject.kind").to_lowercase();
    let object = match get_text(event, "involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        table::format_time_since(last, now).into(),
        get_text(event, "type").into(),
        get_text(event, "reason").into(),
        object.into(),
        get_text(event, "involvedObject.fieldPath").into(),
        event_source(event).into(),
        get_text(event, "message").trim().into(),
        table::format_time_since(first, now).into(),
        count.into(),
        table::name_cell(event),
    ]
}

fn event_source(event: &Value) -> String {
    let either = |first, second| match get_text(event, first) {
        "" => get_text(event, second),
        text => text,
    };
    let component = either("source.component", "reportingComponent");
    match either("source.host", "reportingInstance") {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}
