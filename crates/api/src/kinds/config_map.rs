//! ConfigMaps.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{at, entries};
use super::violation::Violation;
use super::{Column, Rules, Subresource, data, metadata, names, table};

pub struct ConfigMap;

impl Rules for ConfigMap {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::keep_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        if let Some(old) = old {
            violations.extend(data::frozen(object, old, &["data", "binaryData"]));
        }
        violations.extend(data::keys(object, "data"));
        violations.extend(data::keys(object, "binaryData"));
        violations.extend(twice(object));
        let (binary, wrong) = data::decoded(object, "binaryData");
        violations.extend(wrong);
        let text = entries(object, "data").map(|(_, value)| value.as_str().map_or(0, str::len));
        violations.extend(data::too_large(binary + text.sum::<usize>()));
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const { &[table::NAME, Column::text("Data", "The number of entries."), table::AGE] }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = entries(object, "data").count() + entries(object, "binaryData").count();
        vec![table::name(object), count.into(), table::age(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

/// Keys of `data` that `binaryData` has, too.
fn twice(object: &Value) -> Vec<Violation> {
    let Some(binary) = at(object, "binaryData") else { return Vec::new() };
    let both = entries(object, "data").filter(|(key, _)| binary.get(key).is_some());
    let detail = "duplicate of key present in binaryData";
    both.map(|(key, _)| Violation::invalid(format!("data[{key}]"), key, detail)).collect()
}
