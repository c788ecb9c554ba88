//! Endpoints.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::json::{list, list_mut, number, set_default, text};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, names, table};

pub struct Endpoints;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const SHOWN: usize = 3;
const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];

impl Rules for Endpoints {
    fn set_defaults(&self, object: &mut Value) {
        for subset in list_mut(object, "subsets").into_iter().flatten() {
            for port in list_mut(subset, "ports").into_iter().flatten() {
                set_default(port, "protocol", "TCP");
            }
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::keep_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        let nodes = old.map(nodes_by_address).unwrap_or_default();
        for (index, subset) in list(object, "subsets").iter().enumerate() {
            violations.extend(validate_subset(subset, &format!("subsets[{index}]"), &nodes));
        }
        violations
    }

    fn deprecation(&self) -> Option<&'static str> {
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                table::NAME,
                Column::text("Endpoints", "The addresses and ports that serve"),
                table::AGE,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![table::name(object), endpoints(object).into(), table::age(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

fn nodes_by_address(object: &Value) -> BTreeMap<&str, &str> {
    let subsets = list(object, "subsets").iter();
    let addresses =
        subsets.flat_map(|subset| ADDRESSES.iter().flat_map(|field| list(subset, field)));
    addresses
        .map(|address| (text(address, "ip"), text(address, "nodeName")))
        .filter(|(_, node)| !node.is_empty())
        .collect()
}

fn validate_subset(subset: &Value, path: &str, nodes: &BTreeMap<&str, &str>) -> Vec<Violation> {
    let mut violations = Vec::new();
    if ADDRESSES.iter().all(|field| list(subset, field).is_empty()) {
        let detail = "must specify `addresses` or `notReadyAddresses`";
        violations.push(Violation::required(path, detail));
    }
    for field in ADDRESSES {
        for (index, address) in list(subset, field).iter().enumerate() {
            violations.extend(validate_address(
                address,
                &format!("{path}.{field}[{index}]"),
                nodes,
            ));
        }
    }
    let ports = list(subset, "ports");
    for (index, port) in ports.iter().enumerate() {
        violations.extend(validate_port(port, &format!("{path}.ports[{index}]"), ports.len() > 1));
    }
    violations
}

fn validate_address(address: &Value, path: &str, nodes: &BTreeMap<&str, &str>) -> Vec<Violation> {
    let ip = text(address, "ip");
    let mut violations = names::violations(&format!("{path}.ip"), ip, names::ip);
    let hostname = text(address, "hostname");
    if !hostname.is_empty() {
        let field = format!("{path}.hostname");
        violations.extend(names::violations(&field, hostname, names::label));
    }
    let node = text(address, "nodeName");
    if !node.is_empty() {
        let field = format!("{path}.nodeName");
        violations.extend(names::violations(&field, node, names::subdomain));
        if nodes.get(ip).is_some_and(|before| *before != node) {
            let detail = format!("Cannot change NodeName for {ip} to {node}");
            violations.push(Violation::forbidden(field, &detail));
        }
    }
    if violations.is_empty() {
        violations.extend(names::special_ip(&format!("{path}.ip"), ip));
    }
    violations
}

fn validate_port(port: &Value, path: &str, needs_name: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    match text(port, "name") {
        "" if needs_name => violations.push(Violation::required(format!("{path}.name"), "")),
        "" => {}
        name => {
            violations.extend(names::violations(&format!("{path}.name"), name, names::label));
        }
    }
    violations.extend(names::port_number(&format!("{path}.port"), number(port, "port")));
    let field = format!("{path}.protocol");
    match text(port, "protocol") {
        "" => violations.push(Violation::required(field, "")),
        protocol if PROTOCOLS.contains(&protocol) => {}
        protocol => violations.push(Violation::not_supported(field, protocol, &PROTOCOLS)),
    }
    violations
}

fn endpoints(object: &Value) -> String {
    let subsets = list(object, "subsets");
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut ends = Vec::new();
    for subset in subsets {
        let ips = list(subset, "addresses").iter().map(|address| text(address, "ip"));
        let ports = list(subset, "ports");
        // Endpoints of headless Services may have no ports.
        if ports.is_empty() {
            ends.extend(ips.map(str::to_owned));
            continue;
        }
        for port in ports {
            let port = number(port, "port");
            ends.extend(ips.clone().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    table::first(&ends, SHOWN)
}
