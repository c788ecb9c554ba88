//! Splits the body of a list into its items as it arrives, so that memory is bounded by the largest
//! item and not by the list: servers ignore limits where they serve lists from their cache. Pure.

use serde::Deserialize;

/// The API server stores objects of up to 1.5 MiB; JSON takes more than what it stores.
pub(crate) const MAX_ITEM: usize = 16 << 20;
/// What surrounds the items: kind and metadata.
const MAX_ENVELOPE: usize = 64 << 10;

/// The metadata of a list.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    pub resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub continue_token: Option<String>,
}

#[derive(Deserialize)]
struct Envelope {
    metadata: Option<ListMeta>,
}

/// Scans JSON only as far as nesting and strings; items and envelope are decoded by others.
#[derive(Debug, Default)]
pub struct Items {
    /// The body without its items.
    envelope: Vec<u8>,
    /// The item that is being read.
    item: Vec<u8>,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// Where in the envelope the last string began, and whether it was the key `items`.
    string_start: usize,
    is_items_key: bool,
    /// Whether the scan is inside the array of items.
    is_in_items: bool,
}

impl Items {
    /// Takes in the next bytes, and hands each item that is complete to `take`.
    pub fn push<E: From<String>>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for &byte in bytes {
            if self.scan(byte)? {
                take(&self.item)?;
                self.item.clear();
            }
        }
        Ok(())
    }

    /// Takes in one byte; returns whether it completes an item.
    fn scan(&mut self, byte: u8) -> Result<bool, String> {
        let was_item = self.is_in_items && self.depth > 2;
        let mut is_complete = false;
        if self.is_in_string {
            self.scan_string(byte);
        } else {
            match byte {
                b'"' => {
                    self.is_in_string = true;
                    self.string_start = self.envelope.len() + 1;
                }
                b'{' | b'[' => {
                    self.is_in_items |= self.depth == 1 && byte == b'[' && self.is_items_key;
                    self.depth += 1;
                }
                b'}' | b']' => {
                    let depth = self.depth.checked_sub(1);
                    self.depth = depth.ok_or("the server's list is not JSON")?;
                    is_complete = was_item && self.depth == 2;
                    self.is_in_items &= self.depth > 1;
                }
                // A value other than an array, of whatever key.
                b',' if self.depth == 1 => self.is_items_key = false,
                _ => {}
            }
        }
        if was_item || (self.is_in_items && self.depth > 2) {
            push_within(&mut self.item, byte, MAX_ITEM, "an object of the server's list")?;
        } else if !(self.is_in_items && self.depth == 2 && self.is_skipped(byte)) {
            push_within(&mut self.envelope, byte, MAX_ENVELOPE, "the metadata of the list")?;
        }
        Ok(is_complete)
    }

    /// Whether a byte between the items need not be kept: commas, and repeated white space. Their
    /// number grows with that of the items.
    fn is_skipped(&self, byte: u8) -> bool {
        let is_repeated = || self.envelope.last().is_some_and(u8::is_ascii_whitespace);
        byte == b',' || byte.is_ascii_whitespace() && is_repeated()
    }

    fn scan_string(&mut self, byte: u8) {
        if self.is_escaped {
            self.is_escaped = false;
        } else if byte == b'\\' {
            self.is_escaped = true;
        } else if byte == b'"' {
            self.is_in_string = false;
            if self.depth == 1 {
                self.is_items_key = self.envelope.get(self.string_start..) == Some(b"items");
            }
        }
    }

    /// The metadata, if the body is complete.
    pub fn finish(self) -> Result<ListMeta, String> {
        if self.depth != 0 || self.is_in_string {
            return Err("the server's list breaks off".to_owned());
        }
        let envelope: Envelope = serde_json::from_slice(&self.envelope)
            .map_err(|error| format!("the server's list can't be read: {error}"))?;
        Ok(envelope.metadata.unwrap_or_default())
    }
}

fn push_within(buffer: &mut Vec<u8>, byte: u8, limit: usize, what: &str) -> Result<(), String> {
    if buffer.len() == limit {
        return Err(format!("{what} is larger than {} KiB", limit >> 10));
    }
    buffer.push(byte);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The items and the metadata of a body that arrives in pieces of this size.
    fn split(body: &str, piece: usize) -> Result<(Vec<Value>, ListMeta), String> {
        let mut found = Vec::new();
        let mut items = Items::default();
        for bytes in body.as_bytes().chunks(piece) {
            items.push(bytes, |item| {
                found.push(serde_json::from_slice(item).map_err(|error| error.to_string())?);
                Ok::<_, String>(())
            })?;
        }
        Ok((found, items.finish()?))
    }

    fn list(items: &[Value]) -> Value {
        json!({
            "kind": "items", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": "7", "continue": "next", "items": ["no"]}
        })
    }

    #[test]
    fn items_are_found_wherever_the_body_is_cut() {
        let objects = [
            json!({"metadata": {"name": "a\"}]\\"}, "items": [1, {"items": []}]}),
            json!({}),
            json!({"x": [[], {}], "y": "{["}),
        ];
        for body in [list(&objects).to_string(), format!("{:#}\n", list(&objects))] {
            for piece in 1..=body.len() {
                let (found, meta) = split(&body, piece).unwrap();
                assert_eq!(found, objects);
                assert_eq!(meta.resource_version.as_deref(), Some("7"));
                assert_eq!(meta.continue_token.as_deref(), Some("next"));
            }
        }
    }

    #[test]
    fn lists_without_items_are_empty() {
        for body in [
            r#"{"metadata": {"resourceVersion": "7"}, "items": null}"#,
            r#"{"items": [], "metadata": {"resourceVersion": "7", "continue": null}}"#,
            r#"{"items": null, "other": [{"a": 1}], "metadata": {"resourceVersion": "7"}}"#,
        ] {
            let (found, meta) = split(body, 3).unwrap();
            assert!(found.is_empty(), "{body}: {found:?}");
            assert_eq!(meta.resource_version.as_deref(), Some("7"));
        }
    }

    #[test]
    fn a_body_that_breaks_off_or_is_no_list_is_an_error() {
        let body = list(&[json!({"a": 1}), json!({"b": "c"})]).to_string();
        for end in 0..body.len() {
            assert!(split(&body[..end], 5).is_err(), "{}", &body[..end]);
        }
        for body in ["]", "<html>", "{\"items\": [1 2]}", "{\"items\": [{}}"] {
            assert!(split(body, 5).is_err(), "{body}");
        }
    }

    #[test]
    fn endless_items_and_envelopes_are_refused() {
        for (start, piece) in [
            (r#"{"items": [{"a": ""#, "aaaaaaaaaaaaaaaa"),
            (r#"{"kind": ""#, "aaaaaaaaaaaaaaaa"),
            (r#"{"items": ["#, "1 1 1 1 1 1 1 1 "),
        ] {
            let mut items = Items::default();
            let mut push = |text: &str| items.push(text.as_bytes(), |_| Ok::<_, String>(()));
            push(start).unwrap();
            let pieces = MAX_ITEM / piece.len() + 1;
            let error = (0..pieces).find_map(|_| push(piece).err()).expect("a limit");
            assert!(error.contains("is larger than"), "{error}");
        }
    }

    /// Some servers indent what they send.
    #[test]
    fn the_space_between_items_is_not_limited() {
        let body = list(&vec![json!({"a": 1}); 8_000]).to_string().replace(',', ",\n            ");
        assert!(body.len() > 2 * MAX_ENVELOPE);
        assert_eq!(split(&body, 4096).unwrap().0.len(), 8_000);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[\"{}\\[\\]\\\\a:,]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                object(inner),
            ]
        })
    }

    fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
        let key = prop_oneof![Just("items".to_owned()), "[a\"\\\\{]{0,3}"];
        prop::collection::btree_map(key, inner, 0..4)
            .prop_map(|fields: BTreeMap<String, Value>| json!(fields))
    }

    proptest! {
        #[test]
        fn any_objects_are_found_again(
            objects in prop::collection::vec(object(any_json()), 0..5),
            piece in 1usize..40,
        ) {
            let (found, _) = split(&list(&objects).to_string(), piece).unwrap();
            prop_assert_eq!(found, objects);
        }

        #[test]
        fn no_bytes_cause_a_panic(body in "[\"{}\\[\\]\\\\a:, items]{0,80}", piece in 1usize..9) {
            let _ = split(&body, piece);
        }
    }
}
