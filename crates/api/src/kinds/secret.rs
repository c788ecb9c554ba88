//! Secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use super::json::{entries, object_mut, remove, set_default, text};
use super::violation::Violation;
use super::{Column, Rules, Subresource, data, metadata, names, table};

pub struct Secret;

const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
const SERVICE_ACCOUNT: &str = "kubernetes.io/service-account.name";

impl Rules for Secret {
    fn set_defaults(&self, object: &mut Value) {
        set_default(object, "type", "Opaque");
        // Plain text from clients is stored and returned encoded.
        if let Some(Value::Object(texts)) = remove(object, "stringData") {
            let data = object_mut(object, "data");
            for (key, text) in texts {
                let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
                data.insert(key, encoded.into());
            }
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::keep_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        if let Some(old) = old {
            violations.extend(metadata::immutable(object, old, "type"));
            violations.extend(data::frozen(object, old, &["data"]));
        }
        violations.extend(values(object));
        violations.extend(required(object));
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                table::NAME,
                Column::text("Type", "Used to facilitate programmatic handling of secret data."),
                Column::text("Data", "The number of entries."),
                table::AGE,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            table::name(object),
            text(object, "type").into(),
            entries(object, "data").count().into(),
            table::age(object, now),
        ]
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        metadata::field(object, path, &["type"])
    }
}

fn values(object: &Value) -> Vec<Violation> {
    let (size, wrong) = data::decoded(object, "data");
    let keys = data::keys(object, "data").into_iter();
    keys.chain(wrong).chain(data::too_large(size)).collect()
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
    match text(object, "type") {
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
