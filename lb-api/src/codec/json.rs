//! JSON as a Go server reads it: the last of duplicate fields wins, and duplicates are reported.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Returns the value and the paths of duplicate fields.
pub fn parse(body: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let reader = Reader { path: String::new(), duplicates: &mut duplicates };
    let value = reader.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, duplicates))
}

struct Reader<'a> {
    path: String,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, items.len());
            let reader = Reader { path, duplicates: &mut *self.duplicates };
            match sequence.next_element_seed(reader)? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = super::child(&self.path, &name);
            let reader = Reader { path: path.clone(), duplicates: &mut *self.duplicates };
            let value = map.next_value_seed(reader)?;
            if fields.insert(name, value).is_some() && !self.duplicates.contains(&path) {
                self.duplicates.push(path);
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_duplicate_wins_and_its_path_is_returned() {
        let (value, duplicates) =
            parse(br#"{"a": 1, "b": [{"c": 1, "c": 2, "c": 3}], "a": 2}"#).unwrap();
        assert_eq!(value, json!({"a": 2, "b": [{"c": 3}]}));
        assert_eq!(duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn what_follows_the_value_is_an_error() {
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn depth_has_a_limit() {
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err());
    }
}
