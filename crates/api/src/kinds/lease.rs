//! Leases.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_number, get_text, get_value};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, names, table};

pub struct Lease;

/// Strategies of Kubernetes. Others have a prefix, such as `example.org/strategy`.
const STRATEGIES: [&str; 1] = ["OldestEmulationVersion"];

impl KindRules for Lease {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::restore_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        let mut at_least = |field: &str, least: i64, detail: &str| {
            if get_value(object, field).is_some() && get_number(object, field) < least {
                violations.push(Violation::invalid(field, get_number(object, field), detail));
            }
        };
        at_least("spec.leaseDurationSeconds", 1, "must be greater than 0");
        at_least("spec.leaseTransitions", 0, "must be greater than or equal to 0");
        violations.extend(strategy(object));
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("Holder", "Who holds the lease"),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let holder = get_text(object, "spec.holderIdentity");
        vec![table::name_cell(object), holder.into(), table::age_cell(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }
}

fn strategy(object: &Value) -> Vec<Violation> {
    let (field, strategy) = ("spec.strategy", get_text(object, "spec.strategy"));
    if get_value(object, field).is_none() {
        return match get_text(object, "spec.preferredHolder") {
            "" => Vec::new(),
            _ => {
                let why = "may only be specified if `strategy` is defined";
                vec![Violation::forbidden("spec.preferredHolder", why)]
            }
        };
    }
    if strategy.contains('/') {
        names::check_name(field, strategy, names::check_qualified_name)
    } else if STRATEGIES.contains(&strategy) {
        Vec::new()
    } else {
        vec![Violation::not_supported(field, strategy, &STRATEGIES)]
    }
}
