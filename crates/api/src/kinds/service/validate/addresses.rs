//! The addresses of a Service and their families.

use serde_json::Value;

use super::super::super::json::{get_text, get_texts, get_value};
use super::super::super::names;
use super::super::super::violation::Violation;
use super::super::spec::needs_cluster_ip;

const ADDRESSES: &str = "spec.clusterIPs";
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];

pub(crate) fn validate_service_addresses(service: &Value) -> Vec<Violation> {
    let mut violations = validate_external_ips(service);
    if needs_cluster_ip(service) {
        violations.extend(families(service));
        violations.extend(agreement(service));
        violations.extend(validate_cluster_ips(service));
    }
    violations
}

fn validate_external_ips(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, address) in get_texts(service, "spec.externalIPs").into_iter().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        let wrong = names::check_name(&field, address, names::check_ip);
        if wrong.is_empty() {
            violations.extend(names::check_endpoint_ip(&field, address));
        }
        violations.extend(wrong);
    }
    violations
}

fn families(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let families = get_texts(service, "spec.ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        if !FAMILIES.contains(family) {
            violations.push(Violation::not_supported(field, *family, &FAMILIES));
        } else if families[..index].contains(family) {
            violations.push(Violation::duplicate(field, *family));
        }
    }
    if let Some(Value::String(policy)) = get_value(service, "spec.ipFamilyPolicy")
        && !POLICIES.contains(&policy.as_str())
    {
        let field = "spec.ipFamilyPolicy";
        violations.push(Violation::not_supported(field, policy.as_str(), &POLICIES));
    }
    violations
}

/// `clusterIP` must be the first of `clusterIPs`.
fn agreement(service: &Value) -> Option<Violation> {
    let all = get_texts(service, ADDRESSES);
    match (get_text(service, "spec.clusterIP"), all.first().copied()) {
        ("", None) => None,
        ("", Some(_)) => {
            let detail = "must be empty when `clusterIP` is not specified";
            Some(Violation::invalid(ADDRESSES, all, detail))
        }
        (_, None) => Some(Violation::required(ADDRESSES, "")),
        (single, Some(first)) => (single != first)
            .then(|| Violation::invalid(ADDRESSES, all, "first value must match `clusterIP`")),
    }
}

fn validate_cluster_ips(service: &Value) -> Vec<Violation> {
    let all = get_texts(service, ADDRESSES);
    let mut violations = Vec::new();
    for (index, address) in all.iter().enumerate() {
        if *address == "None" && index == 0 {
            if all.len() > 1 {
                let detail = "'None' must be the first and only value";
                violations.push(Violation::invalid(ADDRESSES, all.clone(), detail));
            }
            continue;
        }
        let field = format!("{ADDRESSES}[{index}]");
        violations.extend(names::check_name(&field, address, names::check_ip));
    }
    if all.len() > 2 {
        violations.push(Violation::invalid(ADDRESSES, all.clone(), "may only hold up to 2 values"));
    }
    if !violations.is_empty() {
        return violations;
    }
    let are_v4: Vec<bool> =
        all.iter().filter_map(|address| Some(names::parse_ip(address)?.is_ipv4())).collect();
    if are_v4.len() == 2 && are_v4[0] == are_v4[1] {
        let detail = "may specify no more than one IP for each IP family";
        violations.push(Violation::invalid(ADDRESSES, all.clone(), detail));
    }
    let families = get_texts(service, "spec.ipFamilies");
    for (index, (is_v4, family)) in are_v4.into_iter().zip(families).enumerate() {
        if FAMILIES.contains(&family) && is_v4 != (family == "IPv4") {
            let detail =
                format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            violations.push(Violation::invalid(
                format!("{ADDRESSES}[{index}]"),
                all[index],
                &detail,
            ));
        }
    }
    violations
}
