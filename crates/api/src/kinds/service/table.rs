//! The table of `kubectl get services`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::super::TableColumn;
use super::super::json::{get_list, get_number, get_text, get_texts};
use super::super::table::{self, format_or_none};

pub(crate) const COLUMNS: &[TableColumn] = &[
    table::NAME_COLUMN,
    TableColumn::text("Type", "How the Service is exposed"),
    TableColumn::text("Cluster-IP", "The address of the Service within the cluster"),
    TableColumn::text("External-IP", "The addresses of the Service for the outside"),
    TableColumn::text("Port(s)", "The ports that are exposed, with node ports"),
    table::AGE_COLUMN,
    TableColumn::text("Selector", "The labels of the pods that serve").wide(),
];

pub(crate) fn service_row(service: &Value, now: Timestamp) -> Vec<Value> {
    let address = get_texts(service, "spec.clusterIPs").first().copied().unwrap_or_default();
    vec![
        table::name_cell(service),
        get_text(service, "spec.type").into(),
        format_or_none(address).into(),
        external_addresses(service).into(),
        format_or_none(&format_ports(service)).into(),
        table::age_cell(service, now),
        table::format_labels(service, "spec.selector").into(),
    ]
}

fn external_addresses(service: &Value) -> String {
    let external = get_texts(service, "spec.externalIPs");
    match get_text(service, "spec.type") {
        "ClusterIP" | "NodePort" => format_or_none(&external.join(",")).to_owned(),
        "LoadBalancer" => {
            let mut addresses = balanced(service);
            addresses.extend(external);
            if addresses.is_empty() { "<pending>".to_owned() } else { addresses.join(",") }
        }
        "ExternalName" => get_text(service, "spec.externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn balanced(service: &Value) -> Vec<&str> {
    let ingresses = get_list(service, "status.loadBalancer.ingress").iter();
    let points = ingresses.map(|ingress| match get_text(ingress, "ip") {
        "" => get_text(ingress, "hostname"),
        ip => ip,
    });
    points.filter(|point| !point.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn format_ports(service: &Value) -> String {
    let ports = get_list(service, "spec.ports").iter().map(|port| {
        let (own, protocol) = (get_number(port, "port"), get_text(port, "protocol"));
        match get_number(port, "nodePort") {
            0 => format!("{own}/{protocol}"),
            node => format!("{own}:{node}/{protocol}"),
        }
    });
    ports.collect::<Vec<_>>().join(",")
}
