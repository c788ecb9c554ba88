//! Validates a Service, except for what depends on this server's ranges.

mod addresses;
mod ports;
mod status;
mod traffic;

use ipnet::IpNet;
use serde_json::Value;

use super::super::json::{get_list, get_text, get_texts, get_value};
use super::super::violation::Violation;
use super::super::{metadata, names};
use super::spec::{is_headless, service_type};

pub use status::validate_load_balancer_ingress;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

pub(crate) fn validate_service(service: &Value, old: Option<&Value>) -> Vec<Violation> {
    let mut violations = metadata::validate_new_name(service, old, names::check_label);
    if let Some(old) = old {
        violations.extend(traffic::validate_traffic_update(service, old));
    }
    violations.extend(topology(service));
    violations.extend(validate_type_fields(service));
    violations.extend(ports::validate_service_ports(service));
    violations.extend(metadata::validate_labels(service, "spec.selector"));
    violations.extend(traffic::validate_session_affinity(service));
    violations.extend(addresses::validate_service_addresses(service));
    violations.extend(source_ranges(service));
    violations.extend(traffic::validate_service_traffic(service));
    violations.extend(status::validate_service_status(service));
    if let Some(old) = old {
        violations.retain(|violation| !was_valid(violation, old));
    }
    violations
}

/// Addresses that were valid once may stay.
fn was_valid(violation: &Violation, old: &Value) -> bool {
    let list = match violation.field.split('[').next() {
        Some("spec.LoadBalancerSourceRanges") => "spec.loadBalancerSourceRanges",
        list => list.unwrap_or_default(),
    };
    let is_ambiguous =
        names::AMBIGUOUS_IP.contains(&violation.detail.as_str()) || violation.detail == HOST_BITS;
    is_ambiguous && get_texts(old, list).into_iter().any(|before| violation.value == *before)
}

pub(crate) fn list_service_warnings(service: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if service_annotation(service, TOPOLOGY_HINTS).is_some() {
        warnings.push(format!(
            "annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
        ));
    }
    if is_headless(service) {
        if !get_text(service, "spec.loadBalancerIP").is_empty() {
            warnings.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if !get_list(service, "spec.externalIPs").is_empty() {
            warnings.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if get_text(service, "spec.sessionAffinity") != "None" {
            warnings.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    if !is_headless(service)
        && service_type(service) != "ExternalName"
        && !get_list(service, "spec.externalIPs").is_empty()
    {
        warnings.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                .to_owned(),
        );
    }
    if service_type(service) == "ExternalName" && !get_list(service, "spec.externalIPs").is_empty()
    {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if service_type(service) != "ExternalName" && !get_text(service, "spec.externalName").is_empty()
    {
        warnings
            .push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if get_text(service, "spec.trafficDistribution") == "PreferClose" {
        warnings.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""
                .to_owned(),
        );
    }
    warnings
}

fn service_annotation<'a>(service: &'a Value, name: &str) -> Option<&'a str> {
    get_value(service, "metadata.annotations")?.get(name)?.as_str()
}

fn topology(service: &Value) -> Option<Violation> {
    let (mode, hints) =
        (service_annotation(service, TOPOLOGY_MODE)?, service_annotation(service, TOPOLOGY_HINTS)?);
    (mode != hints).then(|| {
        let detail = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
        Violation::invalid(format!("metadata.annotations[{TOPOLOGY_MODE}]"), mode, &detail)
    })
}

fn validate_type_fields(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let kind = service_type(service);
    if kind.is_empty() {
        violations.push(Violation::required("spec.type", ""));
    } else if !TYPES.contains(&kind) {
        violations.push(Violation::not_supported("spec.type", kind, &TYPES));
    }
    if matches!(kind, "NodePort" | "LoadBalancer") && is_headless(service) {
        let detail = format!("may not be set to 'None' for {kind} services");
        violations.push(Violation::invalid("spec.clusterIPs[0]", "None", &detail));
    }
    if kind == "ExternalName" {
        violations.extend(external_name(service));
    }
    if kind != "LoadBalancer" {
        for path in ["spec.allocateLoadBalancerNodePorts", "spec.loadBalancerClass"] {
            if get_value(service, path).is_some() {
                let detail = "may only be used when `type` is 'LoadBalancer'";
                violations.push(Violation::forbidden(path, detail));
            }
        }
    } else if let Some(Value::String(class)) = get_value(service, "spec.loadBalancerClass") {
        violations.extend(names::check_name(
            "spec.loadBalancerClass",
            class,
            names::check_qualified_name,
        ));
    }
    violations
}

fn external_name(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let is_set = [
        ("spec.clusterIPs", !get_list(service, "spec.clusterIPs").is_empty()),
        ("spec.ipFamilies", !get_list(service, "spec.ipFamilies").is_empty()),
        ("spec.ipFamilyPolicy", get_value(service, "spec.ipFamilyPolicy").is_some()),
    ];
    for (path, _) in is_set.iter().filter(|(_, is_set)| *is_set) {
        violations.push(Violation::forbidden(*path, "may not be set for ExternalName services"));
    }
    let field = "spec.externalName";
    let name = get_text(service, field);
    // A trailing dot marks a fully qualified name.
    match name.strip_suffix('.').unwrap_or(name) {
        "" => violations.push(Violation::required(field, "")),
        name => violations.extend(names::check_name(field, name, names::check_subdomain)),
    }
    violations
}

const HOST_BITS: &str = "must not have bits set beyond the prefix length";

fn source_ranges(service: &Value) -> Vec<Violation> {
    let ranges = get_texts(service, "spec.loadBalancerSourceRanges");
    // An API server spells the field like this.
    let (field, ranges) = match (ranges.is_empty(), service_annotation(service, SOURCE_RANGES)) {
        (false, _) => ("spec.LoadBalancerSourceRanges".to_owned(), ranges),
        (true, Some(annotation)) => {
            let ranges = annotation.split(',').filter(|range| !range.trim().is_empty()).collect();
            (format!("metadata.annotations[{SOURCE_RANGES}]"), ranges)
        }
        (true, None) => return Vec::new(),
    };
    let mut violations = Vec::new();
    if service_type(service) != "LoadBalancer" {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        violations.push(Violation::forbidden(field.as_str(), detail));
    }
    for (index, range) in ranges.iter().enumerate() {
        let detail = match range.trim().parse::<IpNet>() {
            Err(_) => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            Ok(network) if network.trunc() != network => HOST_BITS,
            Ok(_) => continue,
        };
        violations.push(Violation::invalid(format!("{field}[{index}]"), range.trim(), detail));
    }
    violations
}
