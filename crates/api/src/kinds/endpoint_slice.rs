//! EndpointSlices.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::json::{at, list, list_mut, number, remove, set, set_default, text, texts};
use super::names::{self, Check};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, table};

pub struct EndpointSlice;

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const MOST_ENDPOINTS: usize = 1000;
const MOST_PORTS: usize = 20_000;
const MOST_ADDRESSES: usize = 100;
const MOST_HINTS: usize = 8;
const SHOWN: usize = 3;

impl Rules for EndpointSlice {
    fn set_defaults(&self, object: &mut Value) {
        for port in list_mut(object, "ports").into_iter().flatten() {
            if at(port, "name").is_none() {
                set(port, "name", "");
            }
            set_default(port, "protocol", "TCP");
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        // A field from before v1. It may stay, but not be added.
        let had_topology = old.is_some_and(|old| {
            list(old, "endpoints").iter().any(|one| at(one, "deprecatedTopology").is_some())
        });
        if !had_topology {
            for endpoint in list_mut(object, "endpoints").into_iter().flatten() {
                remove(endpoint, "deprecatedTopology");
            }
        }
        metadata::count_generation(object, old);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        match text(object, "addressType") {
            "" => violations.push(Violation::required("addressType", "")),
            kind if ADDRESS_TYPES.contains(&kind) => {}
            kind => {
                violations.push(Violation::not_supported("addressType", kind, &ADDRESS_TYPES));
            }
        }
        violations.extend(validate_endpoints(object));
        violations.extend(validate_ports(list(object, "ports")));
        if let Some(old) = old {
            violations.extend(metadata::immutable(object, old, "addressType"));
        }
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                table::NAME,
                Column::text("AddressType", "The type of the addresses of this slice"),
                Column::text("Ports", "The ports of each endpoint of this slice"),
                Column::text("Endpoints", "The addresses of the endpoints of this slice"),
                table::AGE,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports: Vec<String> = list(object, "ports").iter().map(shown_port).collect();
        let endpoints = list(object, "endpoints").iter();
        let addresses: Vec<&str> =
            endpoints.flat_map(|endpoint| texts(endpoint, "addresses")).collect();
        vec![
            table::name(object),
            text(object, "addressType").into(),
            or_unset(table::first(&ports, SHOWN)).into(),
            or_unset(table::first(&addresses, SHOWN)).into(),
            table::age(object, now),
        ]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

fn shown_port(port: &Value) -> String {
    match (at(port, "port"), text(port, "name")) {
        (Some(_), _) => number(port, "port").to_string(),
        (None, "") => "*".to_owned(),
        (None, name) => name.to_owned(),
    }
}

fn or_unset(cell: String) -> String {
    if cell.is_empty() { "<unset>".to_owned() } else { cell }
}

fn validate_endpoints(object: &Value) -> Vec<Violation> {
    let endpoints = list(object, "endpoints");
    if endpoints.len() > MOST_ENDPOINTS {
        return vec![Violation::too_many("endpoints", endpoints.len(), MOST_ENDPOINTS)];
    }
    let kind = text(object, "addressType");
    let mut violations = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{index}]");
        violations.extend(validate_addresses(endpoint, &path, kind));
        violations.extend(validate_names(endpoint, &path));
        for hints in ["forZones", "forNodes"] {
            violations.extend(validate_hints(endpoint, &path, hints));
        }
    }
    violations
}

fn validate_addresses(endpoint: &Value, path: &str, kind: &str) -> Vec<Violation> {
    let path = format!("{path}.addresses");
    let addresses = texts(endpoint, "addresses");
    let mut violations = Vec::new();
    if addresses.is_empty() {
        violations.push(Violation::required(path.as_str(), "must contain at least 1 address"));
    } else if addresses.len() > MOST_ADDRESSES {
        violations.push(Violation::too_many(path.as_str(), addresses.len(), MOST_ADDRESSES));
    }
    for (index, address) in addresses.into_iter().enumerate() {
        let field = format!("{path}[{index}]");
        match kind {
            "IPv4" | "IPv6" => {
                let is_v4 = kind == "IPv4";
                if names::parse_ip(address).is_none_or(|ip| ip.is_ipv4() != is_v4) {
                    let detail = format!("must be a valid {kind} address");
                    violations.push(Violation::invalid(field.as_str(), address, &detail));
                }
                violations.extend(names::special_ip(&field, address));
            }
            "FQDN" => violations.extend(domain_name(&field, address)),
            _ => {}
        }
    }
    violations
}

fn domain_name(field: &str, name: &str) -> Vec<Violation> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return vec![Violation::required(field, "")];
    }
    let violations = names::violations(field, name, names::subdomain);
    if violations.is_empty() && !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        return vec![Violation::invalid(field, name, detail)];
    }
    violations
}

fn validate_names(endpoint: &Value, path: &str) -> Vec<Violation> {
    let checks: [(&str, Check); 2] = [("hostname", names::label), ("nodeName", names::subdomain)];
    let mut violations = Vec::new();
    for (field, check) in checks {
        if let Some(Value::String(name)) = at(endpoint, field) {
            violations.extend(names::violations(&format!("{path}.{field}"), name, check));
        }
    }
    violations
}

fn validate_hints(endpoint: &Value, path: &str, kind: &str) -> Vec<Violation> {
    let path = format!("{path}.hints.{kind}");
    let hints = list(endpoint, &format!("hints.{kind}"));
    if hints.len() > MOST_HINTS {
        return vec![Violation::too_many(path, hints.len(), MOST_HINTS)];
    }
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, hint) in hints.iter().enumerate() {
        let field = format!("{path}[{index}].name");
        let name = text(hint, "name");
        if !seen.insert(name) {
            violations.push(Violation::duplicate(field.as_str(), name));
        }
        violations.extend(names::violations(&field, name, names::label_value));
    }
    violations
}

fn validate_ports(ports: &[Value]) -> Vec<Violation> {
    if ports.len() > MOST_PORTS {
        return vec![Violation::too_many("ports", ports.len(), MOST_PORTS)];
    }
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            violations.extend(names::violations(&format!("{path}.name"), name, names::label));
        }
        if !seen.insert(name) {
            violations.push(Violation::duplicate(format!("{path}.name"), name));
        }
        let field = format!("{path}.protocol");
        match text(port, "protocol") {
            "" => violations.push(Violation::required(field, "")),
            protocol if PROTOCOLS.contains(&protocol) => {}
            protocol => violations.push(Violation::not_supported(field, protocol, &PROTOCOLS)),
        }
        if let Some(Value::String(protocol)) = at(port, "appProtocol") {
            let field = format!("{path}.appProtocol");
            violations.extend(names::violations(&field, protocol, names::qualified));
        }
    }
    violations
}
