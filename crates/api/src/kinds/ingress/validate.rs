//! Validates an Ingress.

use serde_json::{Value, json};

use super::super::json::{get_list, get_number, get_text, get_texts, get_value};
use super::super::service::validate_load_balancer_ingress;
use super::super::violation::Violation;
use super::super::{metadata, names};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
const WRONG_IN_PATHS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const WRONG_AT_ENDS: [&str; 2] = ["/..", "/."];

pub(crate) fn validate_ingress(ingress: &Value, old: Option<&Value>) -> Vec<Violation> {
    let mut violations = metadata::validate_new_name(ingress, old, names::check_subdomain);
    if get_list(ingress, "spec.rules").is_empty()
        && get_value(ingress, "spec.defaultBackend").is_none()
    {
        let detail = "either `defaultBackend` or `rules` must be specified";
        violations.push(Violation::invalid("spec", json!([]), detail));
    }
    if let Some(backend) = get_value(ingress, "spec.defaultBackend") {
        violations.extend(validate_backend(backend, "spec.defaultBackend"));
    }
    for (index, rule) in get_list(ingress, "spec.rules").iter().enumerate() {
        violations.extend(validate_rule(rule, &format!("spec.rules[{index}]")));
    }
    for (index, tls) in get_list(ingress, "spec.tls").iter().enumerate() {
        violations.extend(validate_tls(tls, &format!("spec.tls[{index}]")));
    }
    if let Some(Value::String(class)) = get_value(ingress, "spec.ingressClassName") {
        violations.extend(names::check_name(
            "spec.ingressClassName",
            class,
            names::check_subdomain,
        ));
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
    for (index, point) in get_list(ingress, path).iter().enumerate() {
        violations.extend(validate_load_balancer_ingress(point, &format!("{path}[{index}]")));
    }
    violations
}

pub(crate) fn list_ingress_warnings(ingress: &Value) -> Vec<String> {
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
    get_value(ingress, "metadata.annotations")?.get(CLASS_ANNOTATION)?.as_str()
}

fn validate_host(host: &str, field: &str) -> Vec<Violation> {
    let check =
        if host.contains('*') { names::check_wildcard_subdomain } else { names::check_subdomain };
    names::check_name(field, host, check)
}

fn validate_rule(rule: &Value, path: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let host = get_text(rule, "host");
    if !host.is_empty() {
        let field = format!("{path}.host");
        if names::parse_ip(host).is_some() {
            let detail = "must be a DNS name, not an IP address";
            violations.push(Violation::invalid(field.as_str(), host, detail));
        }
        violations.extend(validate_host(host, &field));
    }
    if get_value(rule, "http").is_some() {
        let path = format!("{path}.http.paths");
        let paths = get_list(rule, "http.paths");
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
    let value = get_text(path, "path");
    let value_field = format!("{field}.path");
    let mut wrong =
        |detail: &str| violations.push(Violation::invalid(value_field.as_str(), value, detail));
    match get_text(path, "pathType") {
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
    let backend = get_value(path, "backend").unwrap_or(&Value::Null);
    violations.extend(validate_backend(backend, &format!("{field}.backend")));
    violations
}

fn validate_backend(backend: &Value, field: &str) -> Vec<Violation> {
    match (get_value(backend, "resource"), get_value(backend, "service")) {
        (Some(_), Some(_)) => {
            let detail = "cannot set both resource and service backends";
            vec![Violation::invalid(field, "", detail)]
        }
        (None, None) => {
            vec![Violation::invalid(field, "", "resource or service backend is required")]
        }
        (Some(resource), None) => ["kind", "name"]
            .iter()
            .filter(|name| get_text(resource, name).is_empty())
            .map(|name| Violation::required(format!("{field}.resource.{name}"), ""))
            .collect(),
        (None, Some(service)) => validate_backend_service(service, field),
    }
}

fn validate_backend_service(service: &Value, field: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let name_field = format!("{field}.service.name");
    match get_text(service, "name") {
        "" => violations.push(Violation::required(name_field, "")),
        name => violations.extend(names::check_name(&name_field, name, names::check_label)),
    }
    match (get_text(service, "port.name"), get_number(service, "port.number")) {
        ("", 0) => {
            violations.push(Violation::required(field, "port name or number is required"));
        }
        ("", number) => {
            violations
                .extend(names::check_port_number(&format!("{field}.service.port.number"), number));
        }
        (name, 0) => {
            let field = format!("{field}.service.port.name");
            violations.extend(names::check_name(&field, name, names::check_port_name));
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
    for (index, host) in get_texts(tls, "hosts").into_iter().enumerate() {
        violations.extend(validate_host(host, &format!("{path}.hosts[{index}]")));
    }
    let secret = get_text(tls, "secretName");
    if !secret.is_empty() {
        let field = format!("{path}.secretName");
        violations.extend(names::check_name(&field, secret, names::check_subdomain));
    }
    violations
}
