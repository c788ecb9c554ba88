//! ServiceAccounts. Nothing issues tokens for them.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_list, get_list_mut};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, names, table};

pub struct ServiceAccount;

impl KindRules for ServiceAccount {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::restore_generation(object, old);
        // Secrets are in the account's namespace; an API server keeps only their names.
        for secret in get_list_mut(object, "secrets").into_iter().flatten() {
            if let Some(secret) = secret.as_object_mut() {
                secret.retain(|field, _| field == "name");
            }
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        metadata::validate_new_name(object, old, names::check_subdomain)
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("Secrets", "The number of Secrets."),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let secrets = get_list(object, "secrets").len();
        vec![table::name_cell(object), secrets.into(), table::age_cell(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}
