//! Legacy Endpoints as the EndpointSlices they amount to, as the cluster's controller mirrors
//! them: a slice per subset and address family.

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};

pub fn slices(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let mut slices = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let all: Vec<(&EndpointAddress, bool)> = ready.chain(unready).collect();
        let ports: Vec<EndpointPort> = subset
            .ports
            .iter()
            .flatten()
            .map(|port| EndpointPort {
                name: port.name.clone(),
                port: Some(port.port),
                protocol: port.protocol.clone(),
                app_protocol: port.app_protocol.clone(),
            })
            .collect();
        for address_type in ["IPv4", "IPv6"] {
            let of_type = |ip: &str| ip.contains(':') == (address_type == "IPv6");
            let endpoints: Vec<Endpoint> = all
                .iter()
                .filter(|(address, _)| of_type(&address.ip))
                .map(|(address, ready)| endpoint(address, *ready))
                .collect();
            if !endpoints.is_empty() {
                slices.push(EndpointSlice {
                    address_type: address_type.to_owned(),
                    endpoints: Some(endpoints),
                    ports: Some(ports.clone()),
                    ..EndpointSlice::default()
                });
            }
        }
    }
    for slice in &mut slices {
        slice.metadata.name = endpoints.metadata.name.clone();
        slice.metadata.namespace = endpoints.metadata.namespace.clone();
    }
    slices
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        ..Endpoint::default()
    }
}
