//! ServiceAccounts. Nothing issues tokens for them.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{list, list_mut};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, names, table};

pub struct ServiceAccount;

impl Rules for ServiceAccount {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::keep_generation(object, old);
        // Secrets are in the account's namespace; an API server keeps only their names.
        for secret in list_mut(object, "secrets").into_iter().flatten() {
            if let Some(secret) = secret.as_object_mut() {
                secret.retain(|field, _| field == "name");
            }
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        metadata::name(object, old, names::subdomain)
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const { &[table::NAME, Column::text("Secrets", "The number of Secrets."), table::AGE] }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let secrets = list(object, "secrets").len();
        vec![table::name(object), secrets.into(), table::age(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}
