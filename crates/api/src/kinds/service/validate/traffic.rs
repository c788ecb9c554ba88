//! Fields that direct the traffic of a Service: policies, affinity, health checks.

use serde_json::Value;

use super::super::super::json::{get_number, get_text, get_value};
use super::super::super::metadata;
use super::super::super::names;
use super::super::super::violation::Violation;
use super::super::spec::{is_reachable_from_outside, needs_health_check, service_type};

const AFFINITIES: [&str; 2] = ["ClientIP", "None"];
const POLICIES: [&str; 2] = ["Cluster", "Local"];
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameNode", "PreferSameZone"];
const MOST_SECONDS: i64 = 86_400;
const HEALTH_CHECK: &str = "spec.healthCheckNodePort";
const IMMUTABLE_CLASS: &str = "may not change once set";

pub(crate) fn validate_traffic_update(service: &Value, old: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    if [service, old].iter().all(|service| service_type(service) == "LoadBalancer") {
        let path = "spec.loadBalancerClass";
        if metadata::validate_immutable(service, old, path).is_some() {
            let class = get_value(service, path).cloned().unwrap_or(Value::Null);
            violations.push(Violation::invalid(path, class, IMMUTABLE_CLASS));
        }
    }
    if [service, old].iter().all(|service| needs_health_check(service))
        && get_number(service, HEALTH_CHECK) != get_number(old, HEALTH_CHECK)
    {
        violations.push(Violation::forbidden(HEALTH_CHECK, "field is immutable"));
    }
    violations
}

pub(crate) fn validate_session_affinity(service: &Value) -> Vec<Violation> {
    let path = "spec.sessionAffinity";
    let config = "spec.sessionAffinityConfig";
    match get_text(service, path) {
        "" => vec![Violation::required(path, "")],
        "None" if get_value(service, config).is_some() => {
            let detail = "must not be set when session affinity is None";
            vec![Violation::forbidden(config, detail)]
        }
        "None" => Vec::new(),
        "ClientIP" => {
            let timeout = format!("{config}.clientIP.timeoutSeconds");
            let seconds = get_number(service, &timeout);
            if get_value(service, &timeout).is_none() {
                let detail = "when session affinity type is ClientIP";
                vec![Violation::required(timeout, detail)]
            } else if (1..=MOST_SECONDS).contains(&seconds) {
                Vec::new()
            } else {
                let detail = format!("must be greater than 0 and less than {MOST_SECONDS}");
                vec![Violation::invalid(timeout, seconds, &detail)]
            }
        }
        other => vec![Violation::not_supported(path, other, &AFFINITIES)],
    }
}

pub(crate) fn validate_service_traffic(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(validate_external_policy(service));
    let internal = "spec.internalTrafficPolicy";
    match (get_text(service, internal), service_type(service)) {
        ("", "ClusterIP" | "NodePort" | "LoadBalancer") => {
            violations.push(Violation::required(internal, ""));
        }
        ("", _) => {}
        (policy, _) if POLICIES.contains(&policy) => {}
        (policy, _) => violations.push(Violation::not_supported(internal, policy, &POLICIES)),
    }
    let distribution = "spec.trafficDistribution";
    if let Some(Value::String(wish)) = get_value(service, distribution)
        && !DISTRIBUTIONS.contains(&wish.as_str())
    {
        violations.push(Violation::not_supported(distribution, wish.as_str(), &DISTRIBUTIONS));
    }
    let port = get_number(service, HEALTH_CHECK);
    if port != 0 {
        if needs_health_check(service) {
            violations.extend(names::check_port_number(HEALTH_CHECK, port));
        } else {
            let detail = "may only be set when `type` is 'LoadBalancer' and \
                          `externalTrafficPolicy` is 'Local'";
            violations.push(Violation::invalid(HEALTH_CHECK, port, detail));
        }
    }
    violations
}

fn validate_external_policy(service: &Value) -> Option<Violation> {
    let path = "spec.externalTrafficPolicy";
    match (get_text(service, path), is_reachable_from_outside(service)) {
        ("", true) => Some(Violation::required(path, "")),
        ("", false) => None,
        (policy, false) => {
            let detail = "may only be set for externally-accessible services";
            Some(Violation::invalid(path, policy, detail))
        }
        (policy, true) => {
            (!POLICIES.contains(&policy)).then(|| Violation::not_supported(path, policy, &POLICIES))
        }
    }
}
