//! Reads JSON and YAML as a Go server does: the last of duplicate fields wins, and duplicates are
//! reported.
//!
//! Bounded, whatever the input:
//! - Depth: by the parsers, 128 levels.
//! - Memory: `MAX_BODY_VALUES` and `MAX_TEXT_BYTES`. YAML aliases count each time that they are used.
//! - Time: linear. A path is only built for a duplicate field.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The limit of values (objects, lists and scalars) in a body. The largest object of a cluster has
/// a tenth of it.
pub(crate) const MAX_BODY_VALUES: usize = 200_000;
/// The limit of bytes in strings and names.
pub const MAX_TEXT_BYTES: usize = 8 << 20;
/// Duplicate fields that are reported.
const MAX_REPORTED_DUPLICATES: usize = 100;

/// A value and the paths of its duplicate fields.
pub(crate) fn read_with_duplicates<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<(Value, Vec<String>), D::Error> {
    let mut found = DuplicateFields::default();
    let value =
        BoundedReader { path: &ReaderPath::Root, found: &mut found }.deserialize(deserializer)?;
    Ok((value, found.duplicates))
}

#[derive(Default)]
struct DuplicateFields {
    duplicates: Vec<String>,
    values: usize,
    text: usize,
}

/// The location of a value, without a text of its own.
enum ReaderPath<'a> {
    Root,
    Field(&'a ReaderPath<'a>, &'a str),
    Item(&'a ReaderPath<'a>, usize),
}

impl fmt::Display for ReaderPath<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(ReaderPath::Root, name) => formatter.write_str(name),
            Self::Field(parent, name) => write!(formatter, "{parent}.{name}"),
            Self::Item(parent, index) => write!(formatter, "{parent}[{index}]"),
        }
    }
}

struct BoundedReader<'a> {
    path: &'a ReaderPath<'a>,
    found: &'a mut DuplicateFields,
}

impl BoundedReader<'_> {
    fn count<E: Error>(&mut self, text: usize) -> Result<(), E> {
        self.found.values += 1;
        self.found.text += text;
        if self.found.values > MAX_BODY_VALUES {
            return Err(E::custom(format_args!(
                "it has more than {MAX_BODY_VALUES} values, at {}",
                self.path
            )));
        }
        if self.found.text > MAX_TEXT_BYTES {
            return Err(E::custom(format_args!(
                "its strings have more than {MAX_TEXT_BYTES} bytes, at {}",
                self.path
            )));
        }
        Ok(())
    }

    fn scalar<E: Error>(mut self, value: Value) -> Result<Value, E> {
        self.count(0)?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for BoundedReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedReader<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(value.into())
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<Value, E> {
        self.count(value.len())?;
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut sequence: A) -> Result<Value, A::Error> {
        self.count(0)?;
        let mut items = Vec::new();
        loop {
            let path = ReaderPath::Item(self.path, items.len());
            let reader = BoundedReader { path: &path, found: &mut *self.found };
            match sequence.next_element_seed(reader)? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        self.count(0)?;
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            self.found.text += name.len();
            let path = ReaderPath::Field(self.path, &name);
            let reader = BoundedReader { path: &path, found: &mut *self.found };
            let value = map.next_value_seed(reader)?;
            if fields.contains_key(&name) && self.found.duplicates.len() < MAX_REPORTED_DUPLICATES {
                let path = path.to_string();
                if !self.found.duplicates.contains(&path) {
                    self.found.duplicates.push(path);
                }
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{BodyFormat, parse_body};
    use super::*;

    fn json(body: &str) -> Result<(Value, Vec<String>), String> {
        parse_body(BodyFormat::Json, body.as_bytes())
    }

    fn yaml(body: &str) -> Result<(Value, Vec<String>), String> {
        parse_body(BodyFormat::Yaml, body.as_bytes())
    }

    #[test]
    fn the_last_duplicate_wins_and_its_path_is_returned() {
        let (value, duplicates) =
            json(r#"{"a": 1, "b": [{"c": 1, "c": 2, "c": 3}], "a": 2}"#).unwrap();
        assert_eq!(value, json!({"a": 2, "b": [{"c": 3}]}));
        assert_eq!(duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn what_follows_the_value_is_an_error() {
        assert!(json("{} {}").is_err());
        assert!(json("").is_err());
    }

    #[test]
    fn depth_has_a_limit() {
        assert!(json(&"[".repeat(100_000)).is_err());
        assert!(yaml(&"- ".repeat(10_000)).is_err());
        assert!(yaml(&"[".repeat(10_000)).is_err());
    }

    #[test]
    fn the_number_of_values_has_a_limit_which_the_error_names() {
        let error = json(&format!("{{\"a\":[0{}]}}", ",0".repeat(MAX_BODY_VALUES))).unwrap_err();
        assert!(error.contains("200000 values") && error.contains("a["), "{error}");
    }

    #[test]
    fn aliases_count_each_time() {
        // 2 kB that would become 200 MB.
        let lists = format!("[{}]", "*b, ".repeat(400));
        let numbers = format!("[{}]", "*a, ".repeat(400));
        let many = format!("a: &a [1, 2, 3]\nb: &b {numbers}\nc: {lists}\n");
        let error = yaml(&many).unwrap_err();
        assert!(error.contains("values") || error.contains("repetition"), "{error}");
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(90));
        let error = yaml(&long).unwrap_err();
        assert!(error.contains("bytes"), "{error}");
    }

    #[test]
    fn a_few_aliases_are_read() {
        let (value, _) = yaml("a: &a {b: 1}\nc: *a\n1: x\n").unwrap();
        assert_eq!(value, json!({"a": {"b": 1}, "c": {"b": 1}, "1": "x"}));
    }

    /// Time is not measured: with a path for each of the values this would need 100 GB.
    #[test]
    fn many_values_below_a_long_name_cost_no_more_than_others() {
        let long = "x".repeat(1 << 20);
        let body = format!("{{\"{long}\":[0{}]}}", ",0".repeat(100_000));
        assert_eq!(json(&body).unwrap().0[&long].as_array().unwrap().len(), 100_001);
    }
}
