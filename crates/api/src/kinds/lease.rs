//! Leases.

use jiff::Timestamp;
use serde_json::Value;

use super::json::{at, number, text};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, names, table};

pub struct Lease;

/// Strategies of Kubernetes. Others have a prefix, such as `example.org/strategy`.
const STRATEGIES: [&str; 1] = ["OldestEmulationVersion"];

impl Rules for Lease {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::keep_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        let mut at_least = |field: &str, least: i64, detail: &str| {
            if at(object, field).is_some() && number(object, field) < least {
                violations.push(Violation::invalid(field, number(object, field), detail));
            }
        };
        at_least("spec.leaseDurationSeconds", 1, "must be greater than 0");
        at_least("spec.leaseTransitions", 0, "must be greater than or equal to 0");
        violations.extend(strategy(object));
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const { &[table::NAME, Column::text("Holder", "Who holds the lease"), table::AGE] }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let holder = text(object, "spec.holderIdentity");
        vec![table::name(object), holder.into(), table::age(object, now)]
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
    let (field, strategy) = ("spec.strategy", text(object, "spec.strategy"));
    if at(object, field).is_none() {
        return match text(object, "spec.preferredHolder") {
            "" => Vec::new(),
            _ => {
                let why = "may only be specified if `strategy` is defined";
                vec![Violation::forbidden("spec.preferredHolder", why)]
            }
        };
    }
    if strategy.contains('/') {
        names::violations(field, strategy, names::qualified)
    } else if STRATEGIES.contains(&strategy) {
        Vec::new()
    } else {
        vec![Violation::not_supported(field, strategy, &STRATEGIES)]
    }
}
