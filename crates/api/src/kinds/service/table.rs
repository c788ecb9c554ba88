//! The table of `kubectl get services`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::super::Column;
use super::super::json::{list, number, text, texts};
use super::super::table::{self, or_none};

pub const COLUMNS: &[Column] = &[
    table::NAME,
    Column::text("Type", "How the Service is exposed"),
    Column::text("Cluster-IP", "The address of the Service within the cluster"),
    Column::text("External-IP", "The addresses of the Service for the outside"),
    Column::text("Port(s)", "The ports that are exposed, with node ports"),
    table::AGE,
    Column::text("Selector", "The labels of the pods that serve").wide(),
];

pub fn row(service: &Value, now: Timestamp) -> Vec<Value> {
    let address = texts(service, "spec.clusterIPs").first().copied().unwrap_or_default();
    vec![
        table::name(service),
        text(service, "spec.type").into(),
        or_none(address).into(),
        external(service).into(),
        or_none(&ports(service)).into(),
        table::age(service, now),
        table::labels(service, "spec.selector").into(),
    ]
}

fn external(service: &Value) -> String {
    let external = texts(service, "spec.externalIPs");
    match text(service, "spec.type") {
        "ClusterIP" | "NodePort" => or_none(&external.join(",")).to_owned(),
        "LoadBalancer" => {
            let mut addresses = balanced(service);
            addresses.extend(external);
            if addresses.is_empty() { "<pending>".to_owned() } else { addresses.join(",") }
        }
        "ExternalName" => text(service, "spec.externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn balanced(service: &Value) -> Vec<&str> {
    let ingresses = list(service, "status.loadBalancer.ingress").iter();
    let points = ingresses.map(|ingress| match text(ingress, "ip") {
        "" => text(ingress, "hostname"),
        ip => ip,
    });
    points.filter(|point| !point.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn ports(service: &Value) -> String {
    let ports = list(service, "spec.ports").iter().map(|port| {
        let (own, protocol) = (number(port, "port"), text(port, "protocol"));
        match number(port, "nodePort") {
            0 => format!("{own}/{protocol}"),
            node => format!("{own}:{node}/{protocol}"),
        }
    });
    ports.collect::<Vec<_>>().join(",")
}
