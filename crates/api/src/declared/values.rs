//! What is wrong with a value according to its schema, in the words of an API server.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use jiff::Timestamp;
use regex::Regex;
use serde_json::Value;

use crate::kinds::Violation;

pub(crate) const LIST_KEYS: &str = "x-kubernetes-list-map-keys";

/// Formats that are enforced.
pub(crate) const FORMATS: [&str; 9] =
    ["byte", "cidr", "date-time", "double", "float", "int32", "int64", "ipv4", "ipv6"];

/// The most violations that are listed. Bounds the response to an object that is wrong everywhere.
const MAX_VIOLATIONS: usize = 100;

pub(crate) fn validate_value(
    schema: &Value,
    object: &Value,
    patterns: &BTreeMap<String, Regex>,
) -> Vec<Violation> {
    let mut walk = ValueWalk { patterns, violations: Vec::new() };
    // The metadata has a type and rules of its own.
    walk.value(schema, object, "");
    walk.violations
}

struct ValueWalk<'a> {
    patterns: &'a BTreeMap<String, Regex>,
    violations: Vec<Violation>,
}

impl ValueWalk<'_> {
    fn add(&mut self, violation: Violation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }

    fn invalid(&mut self, path: &str, value: &Value, detail: &str) {
        let detail = format!("{path} in body {detail}");
        self.add(Violation::invalid(path, value.clone(), &detail));
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        if value.is_null() && schema["nullable"] == true {
            return;
        }
        if !value_has_type(schema, value) {
            let wanted = schema["type"].as_str().unwrap_or("integer or string");
            let is = name_type(value);
            let detail = format!("{path} in body must be of type {wanted}: {is:?}");
            self.add(Violation::invalid(path, is, &detail));
            return;
        }
        self.constraints(schema, value, path);
        match value {
            Value::Object(fields) => {
                let properties = schema["properties"].as_object();
                for (name, field) in fields {
                    let known = properties.and_then(|properties| properties.get(name));
                    let Some(schema) = known.or_else(|| schema.get("additionalProperties")) else {
                        continue;
                    };
                    if !schema["$ref"].is_string() {
                        let path =
                            if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                        self.value(schema, field, &path);
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(&schema["items"], item, &format!("{path}[{index}]"));
                }
                self.duplicates(schema, items, path);
            }
            _ => {}
        }
    }

    /// What a schema says besides types.
    fn constraints(&mut self, schema: &Value, value: &Value, path: &str) {
        if let Some(allowed) = schema["enum"].as_array()
            && !allowed.contains(value)
        {
            let texts: Vec<String> = allowed
                .iter()
                .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
                .collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.add(Violation::not_supported(path, value.clone(), &texts));
        }
        match value {
            Value::String(text) => self.text(schema, text, path),
            Value::Number(_) => self.number(schema, value, path),
            Value::Array(items) => {
                self.size(schema, ["minItems", "maxItems"], items.len(), value, path)
            }
            Value::Object(fields) => {
                let names = ["minProperties", "maxProperties"];
                self.size(schema, names, fields.len(), value, path);
                for name in schema["required"].as_array().into_iter().flatten() {
                    let name = name.as_str().unwrap_or_default();
                    if !fields.contains_key(name) {
                        let path = if path.is_empty() {
                            name.to_owned()
                        } else {
                            format!("{path}.{name}")
                        };
                        self.add(Violation::required(path, ""));
                    }
                }
            }
            _ => {}
        }
        self.junctors(schema, value, path);
    }

    fn junctors(&mut self, schema: &Value, value: &Value, path: &str) {
        let all = |name: &str| schema[name].as_array().map(Vec::as_slice).unwrap_or_default();
        for schema in all("allOf") {
            self.value(schema, value, path);
        }
        let fitting = |walk: &Self, name: &str| {
            all(name).iter().filter(|schema| walk.fits(schema, value, path)).count()
        };
        if !all("anyOf").is_empty() && fitting(self, "anyOf") == 0 {
            self.invalid(path, value, "must validate at least one schema (anyOf)");
        }
        if !all("oneOf").is_empty() && fitting(self, "oneOf") != 1 {
            self.invalid(path, value, "must validate one and only one schema (oneOf)");
        }
        if schema["not"].is_object() && self.fits(&schema["not"], value, path) {
            self.invalid(path, value, "must not validate the schema (not)");
        }
    }

    fn fits(&self, schema: &Value, value: &Value, path: &str) -> bool {
        let mut walk = ValueWalk { patterns: self.patterns, violations: Vec::new() };
        walk.value(schema, value, path);
        walk.violations.is_empty()
    }

    fn text(&mut self, schema: &Value, text: &str, path: &str) {
        let value = Value::from(text);
        let length = text.chars().count() as u64;
        if let Some(most) = schema["maxLength"].as_u64().filter(|most| length > *most) {
            self.add(Violation::too_long(path, usize::try_from(most).unwrap_or(usize::MAX)));
        }
        if let Some(least) = schema["minLength"].as_u64().filter(|least| length < *least) {
            self.invalid(path, &value, &format!("should be at least {least} chars long"));
        }
        if let Some(pattern) = schema["pattern"].as_str()
            && !self.patterns.get(pattern).is_some_and(|pattern| pattern.is_match(text))
        {
            self.invalid(path, &value, &format!("should match '{pattern}'"));
        }
        if let Some(format) = schema["format"].as_str()
            && !has_format(format, text)
        {
            self.invalid(path, &value, &format!("must be of type {format}: {text:?}"));
        }
    }

    fn number(&mut self, schema: &Value, value: &Value, path: &str) {
        let number = value.as_f64().unwrap_or_default();
        if let Some(most) = schema["maximum"].as_f64() {
            let (is_exclusive, shown) = (schema["exclusiveMaximum"] == true, &schema["maximum"]);
            if number > most || (is_exclusive && number >= most) {
                let or_equal = if is_exclusive { "" } else { " or equal to" };
                self.invalid(
                    path,
                    value,
                    &format!("should be less than{or_equal} {}", format_limit(shown)),
                );
            }
        }
        if let Some(least) = schema["minimum"].as_f64() {
            let (is_exclusive, shown) = (schema["exclusiveMinimum"] == true, &schema["minimum"]);
            if number < least || (is_exclusive && number <= least) {
                let or_equal = if is_exclusive { "" } else { " or equal to" };
                self.invalid(
                    path,
                    value,
                    &format!("should be greater than{or_equal} {}", format_limit(shown)),
                );
            }
        }
        if let Some(unit) = schema["multipleOf"].as_f64().filter(|unit| *unit != 0.0)
            && (number / unit).fract() != 0.0
        {
            let unit = format_limit(&schema["multipleOf"]);
            self.invalid(path, value, &format!("should be a multiple of {unit}"));
        }
    }

    fn size(&mut self, schema: &Value, names: [&str; 2], size: usize, value: &Value, path: &str) {
        let limit =
            |name: &str| schema[name].as_u64().and_then(|limit| usize::try_from(limit).ok());
        let [least, most] = names;
        if let Some(most) = limit(most).filter(|most| size > *most) {
            self.add(Violation::too_many(path, size, most));
        }
        if let Some(limit) = limit(least).filter(|limit| size < *limit) {
            let what = if value.is_array() { "items" } else { "properties" };
            self.invalid(path, value, &format!("should have at least {limit} {what}"));
        }
    }

    /// Items of sets, and keys of maps, occur once.
    fn duplicates(&mut self, schema: &Value, items: &[Value], path: &str) {
        let key_of: Box<dyn Fn(&Value) -> Value> = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Box::new(Value::clone),
            Some("map") => {
                let keys = schema[LIST_KEYS].as_array().cloned().unwrap_or_default();
                Box::new(move |item| {
                    let pair = |key: &Value| {
                        let key = key.as_str().unwrap_or_default();
                        (key.to_owned(), item[key].clone())
                    };
                    Value::Object(keys.iter().map(pair).collect())
                })
            }
            _ => return,
        };
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let key = key_of(item);
            if !seen.insert(key.to_string()) {
                self.add(Violation::duplicate(format!("{path}[{index}]"), key));
            }
        }
    }
}

/// Whether the value has the type of the schema. Without a type any value fits: constraints in
/// junctors have none.
pub(crate) fn value_has_type(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => match schema["format"].as_str() {
            Some("int32") => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            _ => value.is_i64(),
        },
        _ => true,
    }
}

fn name_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "byte" => STANDARD.decode(text).is_ok(),
        "cidr" => text.parse::<IpNet>().is_ok(),
        "date-time" => text.parse::<Timestamp>().is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok() && text.parse::<IpAddr>().is_ok(),
        _ => true,
    }
}

/// A limit as people write it: `5`, not `5.0`.
fn format_limit(limit: &Value) -> String {
    match limit.as_f64() {
        Some(number) if number.fract() == 0.0 => format!("{number:.0}"),
        _ => limit.to_string(),
    }
}

/// Sets missing fields that have a default, in everything that exists.
pub(crate) fn set_schema_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = schema.get("default").filter(|_| !fields.contains_key(name))
                {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    set_schema_defaults(schema, field);
                }
            }
            if let Some(schema) = schema.get("additionalProperties") {
                fields.values_mut().for_each(|field| set_schema_defaults(schema, field));
            }
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| set_schema_defaults(&schema["items"], item));
        }
        _ => {}
    }
}
