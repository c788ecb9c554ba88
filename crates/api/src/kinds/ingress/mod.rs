//! Ingresses.

mod validate;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{copy, list, set, text};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, table};

pub struct Ingress;

const SHOWN: usize = 3;

impl Rules for Ingress {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        match (old, subresource) {
            (None, _) => set(object, "status", json!({ "loadBalancer": {} })),
            (Some(old), Subresource::None) => copy(object, old, "status"),
            (Some(old), Subresource::Status) => copy(object, old, "spec"),
        }
        metadata::count_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        validate::validate(object, old)
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        validate::warnings(object)
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                table::NAME,
                Column::text("Class", "The name of the IngressClass that is to implement this"),
                Column::text("Hosts", "The hosts that requests are matched against"),
                Column::text("Address", "Where the load balancer takes requests"),
                Column::text("Ports", "The ports that are open"),
                table::AGE,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let class = text(object, "spec.ingressClassName");
        let ports = if list(object, "spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            table::name(object),
            table::or_none(class).into(),
            hosts(object).into(),
            addresses(object).into(),
            ports.into(),
            table::age(object, now),
        ]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

fn hosts(object: &Value) -> String {
    let rules = list(object, "spec.rules");
    let mut shown: Vec<&str> = Vec::new();
    let mut is_cut = false;
    for rule in rules {
        is_cut |= shown.len() == SHOWN;
        let host = text(rule, "host");
        if !is_cut && !host.is_empty() {
            shown.push(host);
        }
    }
    if shown.is_empty() {
        return "*".to_owned();
    }
    let shown = shown.join(",");
    if is_cut { format!("{shown} + {} more...", rules.len() - SHOWN) } else { shown }
}

fn addresses(object: &Value) -> String {
    let points = list(object, "status.loadBalancer.ingress").iter();
    let addresses: BTreeSet<&str> = points
        .map(|point| match text(point, "ip") {
            "" => text(point, "hostname"),
            ip => ip,
        })
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}
