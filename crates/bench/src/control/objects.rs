//! Services and slices by number, as the text that an API server would send.

use std::net::Ipv4Addr;

use anyhow::Result;
use lb_rules::model::{Kind, Object};
use serde_json::{Value, json};

pub fn write_service(number: u32) -> String {
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number);
    json!({
        "metadata": {"name": service_name(number), "namespace": "bench", "uid": service_name(number)},
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(),
            "selector": {"app": service_name(number)},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]
        }
    })
    .to_string()
}

/// `variant`: the endpoint that has another address than usual.
pub fn write_slice(number: u32, endpoints: u32, variant: Option<u32>) -> String {
    let endpoints: Vec<Value> = (0..endpoints)
        .map(|endpoint| {
            let elsewhere = if variant == Some(endpoint) { 1 << 23 } else { 0 };
            let address = u32::from(Ipv4Addr::new(10, 128, 0, 1)) + number * endpoints + endpoint;
            json!({
                "addresses": [Ipv4Addr::from(address ^ elsewhere).to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{}", endpoint)
            })
        })
        .collect();
    json!({
        "metadata": {
            "name": format!("{}-1", service_name(number)), "namespace": "bench", "uid": service_name(number),
            "labels": {"kubernetes.io/service-name": service_name(number)}
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints
    })
    .to_string()
}

pub fn parse_object(kind: Kind, text: &str) -> Result<Object> {
    Object::read(kind, serde_json::from_str(text)?)
}

fn service_name(number: u32) -> String {
    format!("service-{number}")
}
