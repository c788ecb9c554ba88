//! Endpoints.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_list, get_list_mut, get_number, get_text, set_if_missing};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, names, table};

pub struct Endpoints;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const SHOWN: usize = 3;
const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];

impl KindRules for Endpoints {
    fn set_defaults(&self, object: &mut Value) {
        for subset in get_list_mut(object, "subsets").into_iter().flatten() {
            for port in get_list_mut(subset, "ports").into_iter().flatten() {
                set_if_missing(port, "protocol", "TCP");
            }
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        metadata::restore_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        let nodes = old.map(nodes_by_address).unwrap_or_default();
        for (index, subset) in get_list(object, "subsets").iter().enumerate() {
            violations.extend(validate_subset(subset, &format!("subsets[{index}]"), &nodes));
        }
        violations
    }

    fn deprecation(&self) -> Option<&'static str> {
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("Endpoints", "The addresses and ports that serve"),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![table::name_cell(object), endpoints(object).into(), table::age_cell(object, now)]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

fn nodes_by_address(object: &Value) -> BTreeMap<&str, &str> {
    let subsets = get_list(object, "subsets").iter();
    let addresses =
        subsets.flat_map(|subset| ADDRESSES.iter().flat_map(|field| get_list(subset, field)));
    addresses
        .map(|address| (get_text(address, "ip"), get_text(address, "nodeName")))
        .filter(|(_, node)| !node.is_empty())
        .collect()
}

fn validate_subset(subset: &Value, path: &str, nodes: &BTreeMap<&str, &str>) -> Vec<Violation> {
    let mut violations = Vec::new();
    if ADDRESSES.iter().all(|field| get_list(subset, field).is_empty()) {
        let detail = "must specify `addresses` or `notReadyAddresses`";
        violations.push(Violation::required(path, detail));
    }
    for field in ADDRESSES {
        for (index, address) in get_list(subset, field).iter().enumerate() {
            violations.extend(validate_address(
                address,
                &format!("{path}.{field}[{index}]"),
                nodes,
            ));
        }
    }
    let ports = get_list(subset, "ports");
    for (index, port) in ports.iter().enumerate() {
        violations.extend(validate_port(port, &format!("{path}.ports[{index}]"), ports.len() > 1));
    }
    violations
}

fn validate_address(address: &Value, path: &str, nodes: &BTreeMap<&str, &str>) -> Vec<Violation> {
    let ip = get_text(address, "ip");
    let mut violations = names::check_name(&format!("{path}.ip"), ip, names::check_ip);
    let hostname = get_text(address, "hostname");
    if !hostname.is_empty() {
        let field = format!("{path}.hostname");
        violations.extend(names::check_name(&field, hostname, names::check_label));
    }
    let node = get_text(address, "nodeName");
    if !node.is_empty() {
        let field = format!("{path}.nodeName");
        violations.extend(names::check_name(&field, node, names::check_subdomain));
        if nodes.get(ip).is_some_and(|before| *before != node) {
            let detail = format!("Cannot change NodeName for {ip} to {node}");
            violations.push(Violation::forbidden(field, &detail));
        }
    }
    if violations.is_empty() {
        violations.extend(names::check_endpoint_ip(&format!("{path}.ip"), ip));
    }
    violations
}

fn validate_port(port: &Value, path: &str, needs_name: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    match get_text(port, "name") {
        "" if needs_name => violations.push(Violation::required(format!("{path}.name"), "")),
        "" => {}
        name => {
            violations.extend(names::check_name(&format!("{path}.name"), name, names::check_label));
        }
    }
    violations.extend(names::check_port_number(&format!("{path}.port"), get_number(port, "port")));
    let field = format!("{path}.protocol");
    match get_text(port, "protocol") {
        "" => violations.push(Violation::required(field, "")),
        protocol if PROTOCOLS.contains(&protocol) => {}
        protocol => violations.push(Violation::not_supported(field, protocol, &PROTOCOLS)),
    }
    violations
}

fn endpoints(object: &Value) -> String {
    let subsets = get_list(object, "subsets");
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut ends = Vec::new();
    for subset in subsets {
        let ips = get_list(subset, "addresses").iter().map(|address| get_text(address, "ip"));
        let ports = get_list(subset, "ports");
        // Endpoints of headless Services may have no ports.
        if ports.is_empty() {
            ends.extend(ips.map(str::to_owned));
            continue;
        }
        for port in ports {
            let port = get_number(port, "port");
            ends.extend(ips.clone().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    table::format_first(&ends, SHOWN)
}
