//! The ports of a Service.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::super::json::{get_list, get_number, get_text, get_value};
use super::super::super::names;
use super::super::super::violation::Violation;
use super::super::spec::{is_headless, service_type};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const KUBELET_PORT: i64 = 10250;

pub(crate) fn validate_service_ports(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let ports = get_list(service, "spec.ports");
    if ports.is_empty() && !is_headless(service) && service_type(service) != "ExternalName" {
        violations.push(Violation::required("spec.ports", ""));
    }
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        violations.extend(validate_port_name(port, &field, ports.len() > 1, &mut names));
        violations.extend(validate_port_numbers(port, &field));
        violations.extend(validate_port_for_type(port, &field, service_type(service)));
    }
    violations.extend(duplicates(ports));
    violations
}

fn validate_port_name<'a>(
    port: &'a Value,
    field: &str,
    is_required: bool,
    seen: &mut BTreeSet<&'a str>,
) -> Vec<Violation> {
    let field = format!("{field}.name");
    match get_text(port, "name") {
        "" if is_required => vec![Violation::required(field, "")],
        "" => Vec::new(),
        name => {
            let mut violations = names::check_name(&field, name, names::check_label);
            if !seen.insert(name) {
                violations.push(Violation::duplicate(field, name));
            }
            violations
        }
    }
}

fn validate_port_numbers(port: &Value, field: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(names::check_port_number(&format!("{field}.port"), get_number(port, "port")));
    match get_text(port, "protocol") {
        "" => violations.push(Violation::required(format!("{field}.protocol"), "")),
        protocol if !PROTOCOLS.contains(&protocol) => {
            let field = format!("{field}.protocol");
            violations.push(Violation::not_supported(field, protocol, &PROTOCOLS));
        }
        _ => {}
    }
    let target = format!("{field}.targetPort");
    match get_value(port, "targetPort") {
        Some(Value::String(name)) => {
            violations.extend(names::check_name(&target, name, names::check_port_name));
        }
        _ => violations.extend(names::check_port_number(&target, get_number(port, "targetPort"))),
    }
    if let Some(Value::String(protocol)) = get_value(port, "appProtocol") {
        let field = format!("{field}.appProtocol");
        violations.extend(names::check_name(&field, protocol, names::check_qualified_name));
    }
    violations
}

fn validate_port_for_type(port: &Value, field: &str, kind: &str) -> Option<Violation> {
    match kind {
        "LoadBalancer" if get_number(port, "port") == KUBELET_PORT => {
            let detail = format!(
                "may not expose port {KUBELET_PORT} externally since it is used by kubelet"
            );
            Some(Violation::invalid(field, KUBELET_PORT, &detail))
        }
        "ClusterIP" if get_number(port, "nodePort") != 0 => {
            let detail = "may not be used when `type` is 'ClusterIP'";
            Some(Violation::forbidden(format!("{field}.nodePort"), detail))
        }
        _ => None,
    }
}

fn duplicates(ports: &[Value]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let node_port = get_number(port, "nodePort");
        if node_port != 0 && !seen.insert((get_text(port, "protocol"), node_port)) {
            let field = format!("spec.ports[{index}].nodePort");
            violations.push(Violation::duplicate(field, node_port));
        }
    }
    seen.clear();
    for (index, port) in ports.iter().enumerate() {
        let (protocol, number) = (get_text(port, "protocol"), get_number(port, "port"));
        if !seen.insert((protocol, number)) {
            let key = json!({ "protocol": protocol, "port": number });
            violations.push(Violation::duplicate(format!("spec.ports[{index}]"), key));
        }
    }
    violations
}
