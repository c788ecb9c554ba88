//! Nodes.

use std::collections::BTreeSet;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use super::json::{at, copy, entries, flag, list, set, text, texts};
use super::violation::Violation;
use super::{Column, Rules, Subresource, metadata, names, table};

pub struct Node;

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE: &str = "kubernetes.io/role";
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];

impl Rules for Node {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        metadata::keep_generation(object, old);
        match (old, subresource) {
            // A node's agent sends the status when it registers.
            (None, _) => {}
            (Some(old), Subresource::None) => copy(object, old, "status"),
            (Some(old), Subresource::Status) => copy(object, old, "spec"),
        }
        // Each is derived from the other.
        let first = texts(object, "spec.podCIDRs").first().map(|&network| network.to_owned());
        match (first, text(object, "spec.podCIDR").to_owned()) {
            (None, single) if !single.is_empty() => set(object, "spec.podCIDRs", vec![single]),
            (Some(first), single) if single.is_empty() => set(object, "spec.podCIDR", first),
            _ => {}
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::name(object, old, names::subdomain);
        violations.extend(networks(object, old));
        violations.extend(taints(object));
        if let Some(old) = old.filter(|old| !text(old, "spec.providerID").is_empty())
            && text(old, "spec.providerID") != text(object, "spec.providerID")
        {
            violations.push(Violation::forbidden(
                "spec.providerID",
                "node updates may not change providerID except from \"\" to valid",
            ));
        }
        violations
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                table::NAME,
                Column::text("Status", "The status of the node"),
                Column::text("Roles", "The roles of the node"),
                table::AGE,
                Column::text("Version", "The version of the node's agent"),
                Column::text("Internal-IP", "The node's address within the cluster").wide(),
                Column::text("External-IP", "The node's address for the outside").wide(),
                Column::text("OS-Image", "The operating system the node reports").wide(),
                Column::text("Kernel-Version", "The kernel the node reports").wide(),
                Column::text("Container-Runtime", "The container runtime the node reports").wide(),
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let reported = |path| match text(object, path) {
            "" => "<unknown>".into(),
            text => text.into(),
        };
        vec![
            table::name(object),
            status(object).into(),
            roles(object).into(),
            table::age(object, now),
            text(object, "status.nodeInfo.kubeletVersion").into(),
            address(object, "InternalIP").into(),
            address(object, "ExternalIP").into(),
            reported("status.nodeInfo.osImage"),
            reported("status.nodeInfo.kernelVersion"),
            reported("status.nodeInfo.containerRuntimeVersion"),
        ]
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        (path == "spec.unschedulable").then(|| flag(object, path).to_string())
    }
}

fn networks(object: &Value, old: Option<&Value>) -> Vec<Violation> {
    let path = "spec.podCIDRs";
    let mut violations = Vec::new();
    let networks = texts(object, path);
    for (index, network) in networks.iter().enumerate() {
        if network.parse::<IpNet>().is_err() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            violations.push(Violation::invalid(format!("{path}[{index}]"), *network, detail));
        }
    }
    let valid: Vec<IpNet> = networks.iter().filter_map(|network| network.parse().ok()).collect();
    let twice_ipv4 = valid.iter().filter(|network| network.addr().is_ipv4()).count() > 1;
    let twice_ipv6 = valid.iter().filter(|network| network.addr().is_ipv6()).count() > 1;
    if networks.len() > 2 || twice_ipv4 || twice_ipv6 {
        let detail = "may specify no more than one CIDR for each IP family";
        violations.push(Violation::invalid(path, networks.clone(), detail));
    }
    if let Some(old) = old
        && !texts(old, path).is_empty()
        && texts(old, path) != networks
    {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        violations.push(Violation::forbidden(path, detail));
    }
    violations
}

fn taints(object: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in list(object, "spec.taints").iter().enumerate() {
        let field = format!("spec.taints[{index}]");
        let (key, effect) = (text(taint, "key"), text(taint, "effect"));
        violations.extend(names::violations(&format!("{field}.key"), key, names::qualified));
        let value = text(taint, "value");
        violations.extend(names::violations(&format!("{field}.value"), value, names::label_value));
        if effect.is_empty() {
            violations.push(Violation::required(format!("{field}.effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            violations.push(Violation::not_supported(format!("{field}.effect"), effect, &EFFECTS));
        }
        if !seen.insert((key, effect)) {
            violations.push(Violation::duplicate(field, taint.clone()));
        }
    }
    violations
}

fn status(object: &Value) -> String {
    let ready = list(object, "status.conditions")
        .iter()
        .find(|condition| text(condition, "type") == "Ready")
        .map(|condition| text(condition, "status"));
    let mut status = match ready {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if flag(object, "spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn roles(object: &Value) -> String {
    let roles: BTreeSet<&str> = entries(object, "metadata.labels")
        .filter_map(|(key, value)| {
            let role = key.strip_prefix(ROLE_PREFIX);
            role.or_else(|| (key == ROLE).then(|| value.as_str()).flatten())
        })
        .filter(|role| !role.is_empty())
        .collect();
    table::or_none(&roles.into_iter().collect::<Vec<_>>().join(",")).to_owned()
}

fn address<'a>(object: &'a Value, kind: &str) -> &'a str {
    let found =
        list(object, "status.addresses").iter().find(|address| text(address, "type") == kind);
    table::or_none(found.and_then(|address| at(address, "address")?.as_str()).unwrap_or_default())
}
