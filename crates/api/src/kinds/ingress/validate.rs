//! Validates an Ingress.

use serde_json::{Value, json};

use super::super::json::{at, list, number, text, texts};
use super::super::service::validate_load_balancer_point;
use super::super::violation::Violation;
use super::super::{metadata, names};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
const WRONG_IN_PATHS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const WRONG_AT_ENDS: [&str; 2] = ["/..", "/."];

pub fn validate(ingress: &Value, old: Option<&Value>) -> Vec<Violation> {
    let mut violations = metadata::name(ingress, old, names::subdomain);
    if list(ingress, "spec.rules").is_empty() && at(ingress, "spec.defaultBackend").is_none() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        violations.push(Violation::invalid("spec", json!([]), detail));
    }
    if let Some(backend) = at(ingress, "spec.defaultBackend") {
        violations.extend(validate_backend(backend, "spec.defaultBackend"));
    }
    for (index, rule) in list(ingress, "spec.rules").iter().enumerate() {
        violations.extend(validate_rule(rule, &format!("spec.rules[{index}]")));
    }
    for (index, tls) in list(ingress, "spec.tls").iter().enumerate() {
        violations.extend(validate_tls(tls, &format!("spec.tls[{index}]")));
    }
    if let Some(Value::String(class)) = at(ingress, "spec.ingressClassName") {
        violations.extend(names::violations("spec.ingressClassName", class, names::subdomain));
        let annotation = class_annotation(ingress);
        if old.is_none()
            && let Some(annotation) = annotation.filter(|annotation| annotation != class)
        {
            let detail = "must match `ingressClassName` when both are specified";
            let field = format!("annotations.{CLASS_ANNOTATION}");
            violations.push(Violation::invalid(field, annotation, detail));
        }
    }
    let path = "status.loadBalancer.ingress";
    for (index, point) in list(ingress, path).iter().enumerate() {
        violations.extend(validate_load_balancer_point(point, &format!("{path}[{index}]")));
    }
    violations
}

pub fn warnings(ingress: &Value) -> Vec<String> {
    let is_old_manner = class_annotation(ingress).is_some();
    is_old_manner
        .then(|| {
            format!(
                "annotation {CLASS_ANNOTATION:?} is deprecated, \
                 please use 'spec.ingressClassName' instead"
            )
        })
        .into_iter()
        .collect()
}

fn class_annotation(ingress: &Value) -> Option<&str> {
    at(ingress, "metadata.annotations")?.get(CLASS_ANNOTATION)?.as_str()
}

fn validate_host(host: &str, field: &str) -> Vec<Violation> {
    let check = if host.contains('*') { names::wildcard_subdomain } else { names::subdomain };
    names::violations(field, host, check)
}

fn validate_rule(rule: &Value, path: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let host = text(rule, "host");
    if !host.is_empty() {
        let field = format!("{path}.host");
        if names::parse_ip(host).is_some() {
            let detail = "must be a DNS name, not an IP address";
            violations.push(Violation::invalid(field.as_str(), host, detail));
        }
        violations.extend(validate_host(host, &field));
    }
    if at(rule, "http").is_some() {
        let path = format!("{path}.http.paths");
        let paths = list(rule, "http.paths");
        if paths.is_empty() {
            violations.push(Violation::required(path.as_str(), ""));
        }
        for (index, one) in paths.iter().enumerate() {
            violations.extend(validate_path(one, &format!("{path}[{index}]")));
        }
    }
    violations
}

fn validate_path(path: &Value, field: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let value = text(path, "path");
    let value_field = format!("{field}.path");
    let mut wrong =
        |detail: &str| violations.push(Violation::invalid(value_field.as_str(), value, detail));
    match text(path, "pathType") {
        "" => {
            let detail = "pathType must be specified";
            return vec![Violation::required(format!("{field}.pathType"), detail)];
        }
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                wrong("must be an absolute path");
            }
            for part in WRONG_IN_PATHS.iter().filter(|part| value.contains(**part)) {
                wrong(&format!("must not contain '{part}'"));
            }
            for end in WRONG_AT_ENDS.iter().filter(|end| value.ends_with(**end)) {
                wrong(&format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                wrong("must be an absolute path");
            }
        }
        other => {
            let field = format!("{field}.pathType");
            violations.push(Violation::not_supported(field, other, &PATH_TYPES));
        }
    }
    let backend = at(path, "backend").unwrap_or(&Value::Null);
    violations.extend(validate_backend(backend, &format!("{field}.backend")));
    violations
}

fn validate_backend(backend: &Value, field: &str) -> Vec<Violation> {
    match (at(backend, "resource"), at(backend, "service")) {
        (Some(_), Some(_)) => {
            let detail = "cannot set both resource and service backends";
            vec![Violation::invalid(field, "", detail)]
        }
        (None, None) => {
            vec![Violation::invalid(field, "", "resource or service backend is required")]
        }
        (Some(resource), None) => ["kind", "name"]
            .iter()
            .filter(|name| text(resource, name).is_empty())
            .map(|name| Violation::required(format!("{field}.resource.{name}"), ""))
            .collect(),
        (None, Some(service)) => validate_service(service, field),
    }
}

fn validate_service(service: &Value, field: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let name_field = format!("{field}.service.name");
    match text(service, "name") {
        "" => violations.push(Violation::required(name_field, "")),
        name => violations.extend(names::violations(&name_field, name, names::label)),
    }
    match (text(service, "port.name"), number(service, "port.number")) {
        ("", 0) => {
            violations.push(Violation::required(field, "port name or number is required"));
        }
        ("", number) => {
            violations.extend(names::port_number(&format!("{field}.service.port.number"), number));
        }
        (name, 0) => {
            let field = format!("{field}.service.port.name");
            violations.extend(names::violations(&field, name, names::port_name));
        }
        _ => violations.push(Violation::invalid(
            field,
            "",
            "cannot set both port name & port number",
        )),
    }
    violations
}

fn validate_tls(tls: &Value, path: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, host) in texts(tls, "hosts").into_iter().enumerate() {
        violations.extend(validate_host(host, &format!("{path}.hosts[{index}]")));
    }
    let secret = text(tls, "secretName");
    if !secret.is_empty() {
        let field = format!("{path}.secretName");
        violations.extend(names::violations(&field, secret, names::subdomain));
    }
    violations
}
