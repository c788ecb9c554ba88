//! Nodes.

use std::collections::BTreeSet;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use super::json::{
    copy_value, get_entries, get_flag, get_list, get_text, get_texts, get_value, set_value,
};
use super::violation::Violation;
use super::{KindRules, Subresource, TableColumn, metadata, names, table};

pub struct Node;

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE: &str = "kubernetes.io/role";
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];

impl KindRules for Node {
    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        metadata::restore_generation(object, old);
        match (old, subresource) {
            // A node's agent sends the status when it registers.
            (None, _) => {}
            (Some(old), Subresource::None) => copy_value(object, old, "status"),
            (Some(old), Subresource::Status) => copy_value(object, old, "spec"),
        }
        // Each is derived from the other.
        let first = get_texts(object, "spec.podCIDRs").first().map(|&network| network.to_owned());
        match (first, get_text(object, "spec.podCIDR").to_owned()) {
            (None, single) if !single.is_empty() => {
                set_value(object, "spec.podCIDRs", vec![single])
            }
            (Some(first), single) if single.is_empty() => set_value(object, "spec.podCIDR", first),
            _ => {}
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        let mut violations = metadata::validate_new_name(object, old, names::check_subdomain);
        violations.extend(networks(object, old));
        violations.extend(taints(object));
        if let Some(old) = old.filter(|old| !get_text(old, "spec.providerID").is_empty())
            && get_text(old, "spec.providerID") != get_text(object, "spec.providerID")
        {
            violations.push(Violation::forbidden(
                "spec.providerID",
                "node updates may not change providerID except from \"\" to valid",
            ));
        }
        violations
    }

    fn columns(&self) -> &'static [TableColumn] {
        const {
            &[
                table::NAME_COLUMN,
                TableColumn::text("Status", "The status of the node"),
                TableColumn::text("Roles", "The roles of the node"),
                table::AGE_COLUMN,
                TableColumn::text("Version", "The version of the node's agent"),
                TableColumn::text("Internal-IP", "The node's address within the cluster").wide(),
                TableColumn::text("External-IP", "The node's address for the outside").wide(),
                TableColumn::text("OS-Image", "The operating system the node reports").wide(),
                TableColumn::text("Kernel-Version", "The kernel the node reports").wide(),
                TableColumn::text("Container-Runtime", "The container runtime the node reports")
                    .wide(),
            ]
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let reported = |path| match get_text(object, path) {
            "" => "<unknown>".into(),
            text => text.into(),
        };
        vec![
            table::name_cell(object),
            status(object).into(),
            roles(object).into(),
            table::age_cell(object, now),
            get_text(object, "status.nodeInfo.kubeletVersion").into(),
            node_address(object, "InternalIP").into(),
            node_address(object, "ExternalIP").into(),
            reported("status.nodeInfo.osImage"),
            reported("status.nodeInfo.kernelVersion"),
            reported("status.nodeInfo.containerRuntimeVersion"),
        ]
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        (path == "spec.unschedulable").then(|| get_flag(object, path).to_string())
    }
}

fn networks(object: &Value, old: Option<&Value>) -> Vec<Violation> {
    let path = "spec.podCIDRs";
    let mut violations = Vec::new();
    let networks = get_texts(object, path);
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
        && !get_texts(old, path).is_empty()
        && get_texts(old, path) != networks
    {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        violations.push(Violation::forbidden(path, detail));
    }
    violations
}

fn taints(object: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in get_list(object, "spec.taints").iter().enumerate() {
        let field = format!("spec.taints[{index}]");
        let (key, effect) = (get_text(taint, "key"), get_text(taint, "effect"));
        violations.extend(names::check_name(
            &format!("{field}.key"),
            key,
            names::check_qualified_name,
        ));
        let value = get_text(taint, "value");
        violations.extend(names::check_name(
            &format!("{field}.value"),
            value,
            names::check_label_value,
        ));
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
    let ready = get_list(object, "status.conditions")
        .iter()
        .find(|condition| get_text(condition, "type") == "Ready")
        .map(|condition| get_text(condition, "status"));
    let mut status = match ready {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if get_flag(object, "spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn roles(object: &Value) -> String {
    let roles: BTreeSet<&str> = get_entries(object, "metadata.labels")
        .filter_map(|(key, value)| {
            let role = key.strip_prefix(ROLE_PREFIX);
            role.or_else(|| (key == ROLE).then(|| value.as_str()).flatten())
        })
        .filter(|role| !role.is_empty())
        .collect();
    table::format_or_none(&roles.into_iter().collect::<Vec<_>>().join(",")).to_owned()
}

fn node_address<'a>(object: &'a Value, kind: &str) -> &'a str {
    let found = get_list(object, "status.addresses")
        .iter()
        .find(|address| get_text(address, "type") == kind);
    table::format_or_none(
        found.and_then(|address| get_value(address, "address")?.as_str()).unwrap_or_default(),
    )
}
