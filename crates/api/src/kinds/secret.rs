//! Secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_entries, get_or_create_object, get_text, remove_value, set_if_missing};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, data, metadata, names, table};

pub struct Secret;

const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
const SERVICE_ACCOUNT: &str = "kubernetes.io/service-account.name";

impl KindRules for Secret {
    fn set_defaults(&self, object: &mut Value) {
        set_if_missing(object, "type", "Opaque");
        // Plain text from clients is stored and returned encoded.
        if let Some(Value::Object(texts)) = remove_value(object, "stringData") {
            let data = get_or_create_object(object, "data");
            for (key, text) in texts {
                let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
                data.insert(key, encoded.into());
            }
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::restore_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        if let Some(old) = old {
            violations.extend(metadata::validate_immutable(object, old, "type"));
            violations.extend(data::validate_frozen_data(object, old, &["data"]));
        }
        violations.extend(values(object));
        violations.extend(required(object));
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text(
                    "Type",
                    "Used to facilitate programmatic handling of secret data.",
                ),
                TableColumn::text("Data", "The number of entries."),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            table::name_cell(object),
            get_text(object, "type").into(),
            get_entries(object, "data").count().into(),
            table::age_cell(object, now),
        ]
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        metadata::selectable_field(object, path, &["type"])
    }
}

fn values(object: &Value) -> Vec<Violation> {
    let (size, wrong) = data::validate_base64_values(object, "data");
    let keys = data::validate_data_keys(object, "data").into_iter();
    keys.chain(wrong).chain(data::validate_data_size(size)).collect()
}

/// The key of a Docker configuration, which is a JSON object.
fn configuration(object: &Value, key: &str) -> Vec<Violation> {
    let field = format!("data[{key}]");
    let Some(encoded) = object["data"][key].as_str() else {
        return vec![Violation::required(field, "")];
    };
    let decoded = STANDARD.decode(encoded).unwrap_or_default();
    match serde_json::from_slice::<serde_json::Map<String, Value>>(&decoded) {
        Ok(_) => Vec::new(),
        Err(error) => {
            vec![Violation::invalid(field, "<secret contents redacted>", &error.to_string())]
        }
    }
}

/// The keys that well-known types require.
fn required(object: &Value) -> Vec<Violation> {
    let has = |key: &str| object.get("data").and_then(|data| data.get(key)).is_some();
    let missing = |key: &str| Violation::required(format!("data[{key}]"), "");
    let all = |keys: &[&str]| -> Vec<Violation> {
        keys.iter().filter(|key| !has(key)).map(|key| missing(key)).collect()
    };
    match get_text(object, "type") {
        "kubernetes.io/tls" => all(&["tls.crt", "tls.key"]),
        "kubernetes.io/dockercfg" => configuration(object, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => configuration(object, ".dockerconfigjson"),
        "kubernetes.io/ssh-auth" if object["data"]["ssh-privatekey"] == "" => {
            vec![missing("ssh-privatekey")]
        }
        "kubernetes.io/ssh-auth" => all(&["ssh-privatekey"]),
        // One of the two keys is enough.
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            all(&["username", "password"])
        }
        SERVICE_ACCOUNT_TOKEN
            if object["metadata"]["annotations"][SERVICE_ACCOUNT]
                .as_str()
                .is_none_or(str::is_empty) =>
        {
            vec![Violation::required(format!("metadata.annotations[{SERVICE_ACCOUNT}]"), "")]
        }
        _ => Vec::new(),
    }
}
