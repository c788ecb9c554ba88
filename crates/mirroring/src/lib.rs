//! Converts legacy Endpoints to EndpointSlices, like the cluster's mirroring controller: one slice
//! per subset and address family.

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};

/// The limit of a slice.
const MOST_ENDPOINTS: usize = 1000;
const NOT_MIRRORED: [&str; 2] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];

pub fn mirror_endpoints(endpoints: &Endpoints) -> Vec<EndpointSlice> {
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
            slices.extend(endpoints.chunks(MOST_ENDPOINTS).map(|endpoints| EndpointSlice {
                address_type: address_type.to_owned(),
                endpoints: Some(endpoints.to_vec()),
                ports: Some(ports.clone()),
                ..EndpointSlice::default()
            }));
        }
    }
    let mut annotations = endpoints.metadata.annotations.clone();
    annotations.iter_mut().for_each(|all| all.retain(|name, _| !NOT_MIRRORED.contains(&&**name)));
    for slice in &mut slices {
        slice.metadata.name = endpoints.metadata.name.clone();
        slice.metadata.namespace = endpoints.metadata.namespace.clone();
        slice.metadata.annotations = annotations.clone();
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn many_endpoints_are_spread_over_slices() {
        let address = |index| json!({ "ip": format!("10.0.{}.{}", index / 250, index % 250) });
        let addresses: Vec<_> = (0..2500).map(address).collect();
        let endpoints =
            json!({ "subsets": [{ "addresses": addresses, "ports": [{ "port": 80 }] }] });
        let slices = mirror_endpoints(&serde_json::from_value(endpoints).expect("Endpoints"));
        let count = |slice: &EndpointSlice| slice.endpoints.as_ref().map_or(0, Vec::len);
        assert_eq!(slices.iter().map(count).collect::<Vec<_>>(), [1000, 1000, 500]);
    }

    #[test]
    fn annotations_are_copied_except_those_about_the_endpoints_themselves() {
        let annotations = json!({"weight": "50", NOT_MIRRORED[0]: "now", NOT_MIRRORED[1]: "{}"});
        let subset = json!({"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]});
        let endpoints = json!({"metadata": {"annotations": annotations}, "subsets": [subset]});
        let slices = mirror_endpoints(&serde_json::from_value(endpoints).expect("Endpoints"));
        assert_eq!(json!(slices[0].metadata.annotations), json!({"weight": "50"}));
    }
}
