//! The columns of declared kinds: where in an object a cell is, and how it is printed.

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::{TableColumn, table};

/// A path to one value: `.spec.size`, `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Field(String),
    Item(usize),
    /// The first item whose field has this value.
    Where {
        field: String,
        value: String,
    },
}

impl CellPath {
    /// Fails for what a path to one value does not need: wildcards, slices, functions.
    pub fn parse(text: &str) -> Result<Self> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (step, after) = parse_step(rest).with_context(|| {
                format!("{text:?} is not a path like .spec.a, .a[0].b or .a[?(@.type==\"x\")].b")
            })?;
            steps.push(step);
            rest = after;
        }
        if steps.is_empty() {
            bail!("a column has an empty jsonPath");
        }
        Ok(Self(steps))
    }

    fn value<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let found = self.0.iter().try_fold(object, |value, step| match step {
            PathStep::Field(name) => value.get(name),
            PathStep::Item(index) => value.get(index),
            PathStep::Where { field, value: wanted } => {
                value.as_array()?.iter().find(|item| item[field] == **wanted)
            }
        });
        found.filter(|value| !value.is_null())
    }
}

fn parse_step(path: &str) -> Option<(PathStep, &str)> {
    if let Some(rest) = path.strip_prefix('.') {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
        return (!name.is_empty() && name.chars().all(is_name))
            .then(|| (PathStep::Field(name.to_owned()), rest));
    }
    let (inner, rest) = path.strip_prefix('[')?.split_once(']')?;
    if let Ok(index) = inner.parse() {
        return Some((PathStep::Item(index), rest));
    }
    let quoted = |text: &str| {
        let text = text.trim();
        let of = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
        of('"').or_else(|| of('\'')).map(str::to_owned)
    };
    // `['name']`
    if let Some(name) = quoted(inner) {
        return Some((PathStep::Field(name), rest));
    }
    let (field, value) = inner.strip_prefix("?(@.")?.strip_suffix(')')?.split_once("==")?;
    Some((PathStep::Where { field: field.trim().to_owned(), value: quoted(value)? }, rest))
}

/// One cell of a row.
#[derive(Debug)]
pub(crate) struct TableCell {
    path: CellPath,
    /// The type of the column: `string`, `integer`, `number`, `boolean` or `date`.
    type_: &'static str,
}

impl TableCell {
    pub fn value(&self, object: &Value, now: Timestamp) -> Value {
        let Some(value) = self.path.value(object) else { return Value::Null };
        match (self.type_, value) {
            ("string", Value::String(_)) => value.clone(),
            ("string", other) => other.to_string().into(),
            ("date", Value::String(time)) => table::format_time_since(time, now).into(),
            ("date", _) => "<unknown>".into(),
            ("integer", Value::Number(_)) | ("number", Value::Number(_)) => value.clone(),
            ("boolean", Value::Bool(_)) => value.clone(),
            // A value of another type is not shown.
            _ => Value::Null,
        }
    }
}

/// The name, and the columns of a version. Without any, the age.
pub(crate) fn parse_columns(version: &'static Value) -> Result<(Vec<TableColumn>, Vec<TableCell>)> {
    let field = |path: &str, type_| -> Result<TableCell> {
        Ok(TableCell { path: CellPath::parse(path)?, type_ })
    };
    let mut columns = vec![table::NAME_COLUMN];
    let mut cells = vec![field(".metadata.name", "string")?];
    let own = version["additionalPrinterColumns"].as_array().map(Vec::as_slice);
    for column in own.unwrap_or_default() {
        columns.push(TableColumn {
            name: schema_text(&column["name"]),
            type_: schema_text(&column["type"]),
            format: schema_text(&column["format"]),
            description: schema_text(&column["description"]),
            priority: column["priority"].as_i64().and_then(|n| n.try_into().ok()).unwrap_or(0),
        });
        cells.push(field(schema_text(&column["jsonPath"]), schema_text(&column["type"]))?);
    }
    if own.is_none_or(<[_]>::is_empty) {
        columns.push(TableColumn { type_: "date", ..table::AGE_COLUMN });
        cells.push(field(".metadata.creationTimestamp", "date")?);
    }
    Ok((columns, cells))
}

pub(crate) fn schema_text(value: &'static Value) -> &'static str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cell(path: &str, type_: &'static str, object: &Value) -> Value {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        TableCell { path: CellPath::parse(path).unwrap(), type_ }.value(object, now)
    }

    #[test]
    fn cells_are_found_and_printed_by_their_type() {
        let object = json!({
            "metadata": {"creationTimestamp": "2026-01-02T03:03:00Z",
                "labels": {"a.b/c": "x"}},
            "spec": {"size": 3, "on": true, "ranges": ["a", "b"]},
            "status": {"conditions": [
                {"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"},
            ]},
        });
        for (path, type_, expected) in [
            (".spec.size", "integer", json!(3)),
            (".spec.size", "string", json!("3")),
            (".spec.size", "boolean", json!(null)),
            (".spec.on", "boolean", json!(true)),
            (".spec.ranges", "string", json!("[\"a\",\"b\"]")),
            (".spec.ranges[1]", "string", json!("b")),
            (".spec.nothing.at.all", "string", json!(null)),
            (".metadata.creationTimestamp", "date", json!("65s")),
            (".metadata.labels['a.b/c']", "string", json!("x")),
            (".status.conditions[?(@.type==\"Ready\")].status", "string", json!("True")),
            (".status.conditions[?(@.type=='None')].status", "string", json!(null)),
        ] {
            assert_eq!(cell(path, type_, &object), expected, "{path} {type_}");
        }
    }

    #[test]
    fn paths_that_are_not_supported_are_refused() {
        for path in
            ["", "spec.size", ".spec..size", ".a[*].b", ".a[0:2]", ".a[?(@.b>1)]", ".a[", "."]
        {
            assert!(CellPath::parse(path).is_err(), "{path}");
        }
    }
}
