//! Fields that direct the traffic of a Service: policies, affinity, health checks.

use serde_json::Value;

use super::super::super::json::{at, number, text};
use super::super::super::metadata;
use super::super::super::names;
use super::super::super::violation::Violation;
use super::super::spec::{is_reachable_from_outside, kind, needs_health_check};

const AFFINITIES: [&str; 2] = ["ClientIP", "None"];
const POLICIES: [&str; 2] = ["Cluster", "Local"];
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameNode", "PreferSameZone"];
const MOST_SECONDS: i64 = 86_400;
const HEALTH_CHECK: &str = "spec.healthCheckNodePort";
const IMMUTABLE_CLASS: &str = "may not change once set";

pub fn updated(service: &Value, old: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    if [service, old].iter().all(|service| kind(service) == "LoadBalancer") {
        let path = "spec.loadBalancerClass";
        if metadata::immutable(service, old, path).is_some() {
            let class = at(service, path).cloned().unwrap_or(Value::Null);
            violations.push(Violation::invalid(path, class, IMMUTABLE_CLASS));
        }
    }
    if [service, old].iter().all(|service| needs_health_check(service))
        && number(service, HEALTH_CHECK) != number(old, HEALTH_CHECK)
    {
        violations.push(Violation::forbidden(HEALTH_CHECK, "field is immutable"));
    }
    violations
}

pub fn affinity(service: &Value) -> Vec<Violation> {
    let path = "spec.sessionAffinity";
    let config = "spec.sessionAffinityConfig";
    match text(service, path) {
        "" => vec![Violation::required(path, "")],
        "None" if at(service, config).is_some() => {
            let detail = "must not be set when session affinity is None";
            vec![Violation::forbidden(config, detail)]
        }
        "None" => Vec::new(),
        "ClientIP" => {
            let timeout = format!("{config}.clientIP.timeoutSeconds");
            let seconds = number(service, &timeout);
            if at(service, &timeout).is_none() {
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

pub fn validate(service: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(external(service));
    let internal = "spec.internalTrafficPolicy";
    match (text(service, internal), kind(service)) {
        ("", "ClusterIP" | "NodePort" | "LoadBalancer") => {
            violations.push(Violation::required(internal, ""));
        }
        ("", _) => {}
        (policy, _) if POLICIES.contains(&policy) => {}
        (policy, _) => violations.push(Violation::not_supported(internal, policy, &POLICIES)),
    }
    let distribution = "spec.trafficDistribution";
    if let Some(Value::String(wish)) = at(service, distribution)
        && !DISTRIBUTIONS.contains(&wish.as_str())
    {
        violations.push(Violation::not_supported(distribution, wish.as_str(), &DISTRIBUTIONS));
    }
    let port = number(service, HEALTH_CHECK);
    if port != 0 {
        if needs_health_check(service) {
            violations.extend(names::port_number(HEALTH_CHECK, port));
        } else {
            let detail = "may only be set when `type` is 'LoadBalancer' and \
                          `externalTrafficPolicy` is 'Local'";
            violations.push(Violation::invalid(HEALTH_CHECK, port, detail));
        }
    }
    violations
}

fn external(service: &Value) -> Option<Violation> {
    let path = "spec.externalTrafficPolicy";
    match (text(service, path), is_reachable_from_outside(service)) {
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
