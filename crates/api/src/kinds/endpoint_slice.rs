//! EndpointSlices.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::json::{
    get_list, get_list_mut, get_number, get_text, get_texts, get_value, remove_value,
    set_if_missing, set_value,
};
use super::names::{self, NameCheck};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, table};

pub struct EndpointSlice;

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const MOST_ENDPOINTS: usize = 1000;
const MOST_PORTS: usize = 20_000;
const MOST_ADDRESSES: usize = 100;
const MOST_HINTS: usize = 8;
const SHOWN: usize = 3;

impl KindRules for EndpointSlice {
    fn set_defaults(&self, object: &mut Value) {
        for port in get_list_mut(object, "ports").into_iter().flatten() {
            if get_value(port, "name").is_none() {
                set_value(port, "name", "");
            }
            set_if_missing(port, "protocol", "TCP");
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, _subresource: Subresource) {
        // A field from before v1. It may stay, but not be added.
        let had_topology = old.is_some_and(|old| {
            get_list(old, "endpoints")
                .iter()
                .any(|one| get_value(one, "deprecatedTopology").is_some())
        });
        if !had_topology {
            for endpoint in get_list_mut(object, "endpoints").into_iter().flatten() {
                remove_value(endpoint, "deprecatedTopology");
            }
        }
        metadata::count_generation(object, old);
        // Labels name the Service, so they count, too.
        if let Some(old) = old
            && get_value(object, "metadata.labels") != get_value(old, "metadata.labels")
        {
            let generation = get_number(old, "metadata.generation").max(1) + 1;
            set_value(object, "metadata.generation", generation);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        match get_text(object, "addressType") {
            "" => violations.push(Violation::required("addressType", "")),
            kind if ADDRESS_TYPES.contains(&kind) => {}
            kind => {
                violations.push(Violation::not_supported("addressType", kind, &ADDRESS_TYPES));
            }
        }
        violations.extend(validate_ports(get_list(object, "ports")));
        // What is stored was valid in the version that stored it.
        let stored = old.map(|old| get_list(old, "endpoints"));
        if stored != Some(get_list(object, "endpoints")) {
            violations.extend(validate_endpoints(object));
        }
        if let Some(old) = old {
            violations.extend(metadata::validate_immutable(object, old, "addressType"));
        }
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("AddressType", "The type of the addresses of this slice"),
                TableColumn::text("Ports", "The ports of each endpoint of this slice"),
                TableColumn::text("Endpoints", "The addresses of the endpoints of this slice"),
                table::AGE_COLUMN,
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports: Vec<String> = get_list(object, "ports").iter().map(shown_port).collect();
        let endpoints = get_list(object, "endpoints").iter();
        let addresses: Vec<&str> =
            endpoints.flat_map(|endpoint| get_texts(endpoint, "addresses")).collect();
        vec![
            table::name_cell(object),
            get_text(object, "addressType").into(),
            or_unset(table::format_first(&ports, SHOWN)).into(),
            or_unset(table::format_first(&addresses, SHOWN)).into(),
            table::age_cell(object, now),
        ]
    }

    fn field(&self, _object: &Value, _path: &str) -> Option<String> {
        None
    }
}

fn shown_port(port: &Value) -> String {
    match (get_value(port, "port"), get_text(port, "name")) {
        (Some(_), _) => get_number(port, "port").to_string(),
        (None, "") => "*".to_owned(),
        (None, name) => name.to_owned(),
    }
}

fn or_unset(cell: String) -> String {
    if cell.is_empty() { "<unset>".to_owned() } else { cell }
}

fn validate_endpoints(object: &Value) -> Vec<Violation> {
    let endpoints = get_list(object, "endpoints");
    if endpoints.len() > MOST_ENDPOINTS {
        return vec![Violation::too_many("endpoints", endpoints.len(), MOST_ENDPOINTS)];
    }
    let kind = get_text(object, "addressType");
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
    let addresses = get_texts(endpoint, "addresses");
    let mut violations = Vec::new();
    if addresses.is_empty() {
        violations.push(Violation::required(path.as_str(), "must contain at least 1 address"));
    } else if addresses.len() > MOST_ADDRESSES {
        violations.push(Violation::too_many(path.as_str(), addresses.len(), MOST_ADDRESSES));
    }
    for (index, address) in addresses.into_iter().enumerate() {
        let field = format!("{path}[{index}]");
        match kind {
            "IPv4" | "IPv6" => violations.extend(validate_ip(&path, &field, address, kind)),
            "FQDN" => violations.extend(domain_name(&field, address)),
            _ => {}
        }
    }
    violations
}

/// An address of the slice's family. `path` is that of all addresses of the endpoint.
fn validate_ip(path: &str, field: &str, address: &str, family: &str) -> Vec<Violation> {
    let wrong = names::check_name(field, address, names::check_ip);
    if !wrong.is_empty() {
        return wrong;
    }
    let is_v4 = family == "IPv4";
    let mut violations = Vec::new();
    if let Some(ip) = names::parse_ip(address) {
        if !is_v4 && ip.to_string() != address {
            let detail = format!("must be in canonical form ({:?})", ip.to_string());
            return vec![Violation::invalid(field, address, &detail)];
        }
        if ip.is_ipv4() != is_v4 {
            let detail = format!("must be an {family} address");
            violations.push(Violation::invalid(path, address, &detail));
        }
    }
    violations.extend(names::check_endpoint_ip(field, address));
    violations
}

fn domain_name(field: &str, name: &str) -> Vec<Violation> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return vec![Violation::required(field, "")];
    }
    let violations = names::check_name(field, name, names::check_subdomain);
    if violations.is_empty() && !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        return vec![Violation::invalid(field, name, detail)];
    }
    violations
}

fn validate_names(endpoint: &Value, path: &str) -> Vec<Violation> {
    let checks: [(&str, NameCheck); 2] =
        [("hostname", names::check_label), ("nodeName", names::check_subdomain)];
    let mut violations = Vec::new();
    for (field, check) in checks {
        if let Some(Value::String(name)) = get_value(endpoint, field) {
            violations.extend(names::check_name(&format!("{path}.{field}"), name, check));
        }
    }
    violations
}

fn validate_hints(endpoint: &Value, path: &str, kind: &str) -> Vec<Violation> {
    let path = format!("{path}.hints.{kind}");
    let hints = get_list(endpoint, &format!("hints.{kind}"));
    if hints.len() > MOST_HINTS {
        return vec![Violation::too_many(path, hints.len(), MOST_HINTS)];
    }
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, hint) in hints.iter().enumerate() {
        let field = format!("{path}[{index}].name");
        let name = get_text(hint, "name");
        if !seen.insert(name) {
            violations.push(Violation::duplicate(field.as_str(), name));
        }
        violations.extend(names::check_name(&field, name, names::check_label_value));
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
        let name = get_text(port, "name");
        if !name.is_empty() {
            violations.extend(names::check_name(&format!("{path}.name"), name, names::check_label));
        }
        if !seen.insert(name) {
            violations.push(Violation::duplicate(format!("{path}.name"), name));
        }
        let field = format!("{path}.protocol");
        match get_text(port, "protocol") {
            "" => violations.push(Violation::required(field, "")),
            protocol if PROTOCOLS.contains(&protocol) => {}
            protocol => violations.push(Violation::not_supported(field, protocol, &PROTOCOLS)),
        }
        if let Some(Value::String(protocol)) = get_value(port, "appProtocol") {
            let field = format!("{path}.appProtocol");
            violations.extend(names::check_name(&field, protocol, names::check_qualified_name));
        }
    }
    violations
}
