//! The status of a Service: the addresses of its load balancer.

use serde_json::Value;

use super::super::super::json::{get_list, get_text};
use super::super::super::names;
use super::super::super::violation::Violation;
use super::super::spec::service_type;

const MODES: [&str; 2] = ["Proxy", "VIP"];

pub(crate) fn validate_service_status(service: &Value) -> Vec<Violation> {
    let path = "status.loadBalancer.ingress";
    let ingresses = get_list(service, path);
    if service_type(service) != "LoadBalancer" && !ingresses.is_empty() {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        return vec![Violation::forbidden(path, detail)];
    }
    let points = ingresses.iter().enumerate();
    points.flat_map(|(index, ingress)| point(ingress, &format!("{path}[{index}]"))).collect()
}

/// Checks an entry of the load balancer's status. Also used for Ingresses, whose entries have no
/// mode.
pub fn validate_load_balancer_ingress(ingress: &Value, field: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let (ip, hostname) = (get_text(ingress, "ip"), get_text(ingress, "hostname"));
    if !ip.is_empty() {
        violations.extend(names::check_name(&format!("{field}.ip"), ip, names::check_ip));
    }
    if !hostname.is_empty() {
        let field = format!("{field}.hostname");
        violations.extend(names::check_name(&field, hostname, names::check_subdomain));
        if names::parse_ip(hostname).is_some() {
            let detail = "must be a DNS name, not an IP address";
            violations.push(Violation::invalid(field, hostname, detail));
        }
    }
    violations
}

fn point(ingress: &Value, field: &str) -> Vec<Violation> {
    let mut violations = validate_load_balancer_ingress(ingress, field);
    let mode_field = format!("{field}.ipMode");
    match (get_text(ingress, "ipMode"), get_text(ingress, "ip").is_empty()) {
        ("", false) => {
            violations.push(Violation::required(mode_field, "must be specified when `ip` is set"))
        }
        ("", true) => {}
        (_, true) => violations
            .push(Violation::forbidden(mode_field, "may not be specified when `ip` is not set")),
        (mode, false) if !MODES.contains(&mode) => {
            violations.push(Violation::not_supported(mode_field, mode, &MODES));
        }
        _ => {}
    }
    violations
}
