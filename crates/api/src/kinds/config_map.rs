//! ConfigMaps.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_entries, get_value};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, data, metadata, names, table};

pub struct ConfigMap;

impl KindRules for ConfigMap {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::restore_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        if let Some(old) = old {
            violations.extend(data::validate_frozen_data(object, old, &["data", "binaryData"]));
        }
        violations.extend(data::validate_data_keys(object, "data"));
        violations.extend(data::validate_data_keys(object, "binaryData"));
        violations.extend(twice(object));
        let (binary, wrong) = data::validate_base64_values(object, "binaryData");
        violations.extend(wrong);
        let text = get_entries(object, "data").map(|(_, value)| value.as_str().map_or(0, str::len));
        violations.extend(data::validate_data_size(binary + text.sum::<usize>()));
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("Data", "The number of entries."),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = get_entries(object, "data").count() + get_entries(object, "binaryData").count();
        vec![table::name_cell(object), count.into(), table::age_cell(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

/// Keys of `data` that `binaryData` has, too.
fn twice(object: &Value) -> Vec<Violation> {
    let Some(binary) = get_value(object, "binaryData") else { return Vec::new() };
    let both = get_entries(object, "data").filter(|(key, _)| binary.get(key).is_some());
    let detail = "duplicate of key present in binaryData";
    both.map(|(key, _)| Violation::invalid(format!("data[{key}]"), key, detail)).collect()
}
