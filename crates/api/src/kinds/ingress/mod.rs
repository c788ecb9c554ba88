//! Ingresses.

mod validate;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{copy_value, get_list, get_text, set_value};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, table};

pub struct Ingress;

const SHOWN: usize = 3;

impl KindRules for Ingress {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        match (old, subresource) {
            (None, _) => set_value(object, "status", json!({ "loadBalancer": {} })),
            (Some(old), Subresource::None) => copy_value(object, old, "status"),
            (Some(old), Subresource::Status) => copy_value(object, old, "spec"),
        }
        metadata::count_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        validate::validate_ingress(object, old)
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        validate::list_ingress_warnings(object)
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text(
                    "Class",
                    "The name of the IngressClass that is to implement this",
                ),
                TableColumn::text("Hosts", "The hosts that requests are matched against"),
                TableColumn::text("Address", "Where the load balancer takes requests"),
                TableColumn::text("Ports", "The ports that are open"),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let class = get_text(object, "spec.ingressClassName");
        let ports = if get_list(object, "spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            table::name_cell(object),
            table::format_or_none(class).into(),
            hosts(object).into(),
            ingress_addresses(object).into(),
            ports.into(),
            table::age_cell(object, now),
        ]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

fn hosts(object: &Value) -> String {
    let rules = get_list(object, "spec.rules");
    let mut shown: Vec<&str> = Vec::new();
    let mut is_cut = false;
    for rule in rules {
        is_cut |= shown.len() == SHOWN;
        let host = get_text(rule, "host");
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

fn ingress_addresses(object: &Value) -> String {
    let points = get_list(object, "status.loadBalancer.ingress").iter();
    let addresses: BTreeSet<&str> = points
        .map(|point| match get_text(point, "ip") {
            "" => get_text(point, "hostname"),
            ip => ip,
        })
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}
