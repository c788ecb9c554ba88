//! Values as Go prints them with `%+v`: messages of API servers contain them.

use serde_json::Value;

/// `map[a:1 b:[x y]]`
pub(crate) fn format_go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(format_go_value).collect::<Vec<_>>().join(" "))
        }
        // serde_json's maps are ordered by key, as Go prints them.
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, field)| format!("{name}:{}", format_go_value(field)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn values_are_printed_like_gos() {
        let value = json!({"b": ["x", 1], "a": {"c": null, "d": true}});
        assert_eq!(super::format_go_value(&value), "map[a:map[c:<nil> d:true] b:[x 1]]");
    }
}
