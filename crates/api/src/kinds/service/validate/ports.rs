//! The ports of a Service.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::super::json::{at, list, number, text};
use super::super::super::names;
use super::super::super::violation::Violation;
use super::super::spec::{is_headless, kind};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const KUBELET_PORT: i64 = 10250;

pub fn validate(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let ports = list(service, "spec.ports");
    if ports.is_empty() && !is_headless(service) && kind(service) != "ExternalName" {
        violations.push(Violation::required("spec.ports", ""));
    }
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        violations.extend(name(port, &field, ports.len() > 1, &mut names));
        violations.extend(numbers(port, &field));
        violations.extend(of_kind(port, &field, kind(service)));
    }
    violations.extend(duplicates(ports));
    violations
}

fn name<'a>(
    port: &'a Value,
    field: &str,
    is_required: bool,
    seen: &mut BTreeSet<&'a str>,
) -> Vec<Violation> {
    let field = format!("{field}.name");
    match text(port, "name") {
        "" if is_required => vec![Violation::required(field, "")],
        "" => Vec::new(),
        name => {
            let mut violations = names::violations(&field, name, names::label);
            if !seen.insert(name) {
                violations.push(Violation::duplicate(field, name));
            }
            violations
        }
    }
}

fn numbers(port: &Value, field: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(names::port_number(&format!("{field}.port"), number(port, "port")));
    match text(port, "protocol") {
        "" => violations.push(Violation::required(format!("{field}.protocol"), "")),
        protocol if !PROTOCOLS.contains(&protocol) => {
            let field = format!("{field}.protocol");
            violations.push(Violation::not_supported(field, protocol, &PROTOCOLS));
        }
        _ => {}
    }
    let target = format!("{field}.targetPort");
    match at(port, "targetPort") {
        Some(Value::String(name)) => {
            violations.extend(names::violations(&target, name, names::port_name));
        }
        _ => violations.extend(names::port_number(&target, number(port, "targetPort"))),
    }
    if let Some(Value::String(protocol)) = at(port, "appProtocol") {
        let field = format!("{field}.appProtocol");
        violations.extend(names::violations(&field, protocol, names::qualified));
    }
    violations
}

fn of_kind(port: &Value, field: &str, kind: &str) -> Option<Violation> {
    match kind {
        "LoadBalancer" if number(port, "port") == KUBELET_PORT => {
            let detail = format!(
                "may not expose port {KUBELET_PORT} externally since it is used by kubelet"
            );
            Some(Violation::invalid(field, KUBELET_PORT, &detail))
        }
        "ClusterIP" if number(port, "nodePort") != 0 => {
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
        let node_port = number(port, "nodePort");
        if node_port != 0 && !seen.insert((text(port, "protocol"), node_port)) {
            let field = format!("spec.ports[{index}].nodePort");
            violations.push(Violation::duplicate(field, node_port));
        }
    }
    seen.clear();
    for (index, port) in ports.iter().enumerate() {
        let (protocol, number) = (text(port, "protocol"), number(port, "port"));
        if !seen.insert((protocol, number)) {
            let key = json!({ "protocol": protocol, "port": number });
            violations.push(Violation::duplicate(format!("spec.ports[{index}]"), key));
        }
    }
    violations
}
