//! The addresses in the status of Ingresses. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IngressLoadBalancerIngress, IngressPortStatus};

/// Host name or IP address.
pub(crate) fn parse_published_address(text: &str, ports: &[u16]) -> IngressLoadBalancerIngress {
    let is_address = text.parse::<IpAddr>().is_ok();
    let text = Some(text.to_owned());
    let (ip, hostname) = if is_address { (text, None) } else { (None, text) };
    let ports = ports.iter().map(|&port| IngressPortStatus {
        port: port.into(),
        protocol: "TCP".to_owned(),
        error: None,
    });
    IngressLoadBalancerIngress { ip, hostname, ports: Some(ports.collect()) }
}

/// Where clients reach the proxies through a Service: the same addresses as ingress-nginx reports.
pub(crate) fn list_service_addresses(service: &Service) -> Vec<IngressLoadBalancerIngress> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let ports: Vec<u16> = (spec.ports.iter().flatten())
        .filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
        .filter_map(|port| port.port.try_into().ok())
        .collect();
    let external = || spec.external_ips.iter().flatten();
    let addresses: Vec<&String> = match spec.type_.as_deref().unwrap_or("ClusterIP") {
        "ExternalName" => spec.external_name.iter().collect(),
        "LoadBalancer" => {
            let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
            let points = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
            points
                .filter_map(|at| at.ip.as_ref().or(at.hostname.as_ref()))
                .chain(external())
                .collect()
        }
        "NodePort" if external().next().is_some() => external().collect(),
        _ => spec.cluster_ip.iter().filter(|address| *address != "None").collect(),
    };
    let mut found = Vec::new();
    for address in addresses {
        let address = parse_published_address(address, &ports);
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn addresses(service: Value) -> Vec<String> {
        let service = serde_json::from_value(service).unwrap();
        let shown = |at: IngressLoadBalancerIngress| {
            let ports: Vec<i32> = at.ports.into_iter().flatten().map(|port| port.port).collect();
            format!("{} {ports:?}", at.ip.or(at.hostname).unwrap())
        };
        list_service_addresses(&service).into_iter().map(shown).collect()
    }

    #[test]
    fn each_type_of_service_has_its_addresses() {
        let ports = json!([{"port": 80}, {"port": 443, "protocol": "TCP"}, {"port": 443, "protocol": "UDP"}]);
        let spec = |kind: &str, more: Value| {
            let mut spec = json!({"type": kind, "ports": ports, "clusterIP": "10.96.0.1"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let status = json!({"loadBalancer": {"ingress": [
            {"ip": "192.0.2.1"}, {"hostname": "lb.example.org"}
        ]}});
        let external = json!({"externalIPs": ["192.0.2.1", "2001:db8::1"]});
        for (service, expected) in [
            (json!({"spec": spec("ClusterIP", json!({}))}), vec!["10.96.0.1 [80, 443]"]),
            (json!({"spec": spec("NodePort", json!({}))}), vec!["10.96.0.1 [80, 443]"]),
            (
                json!({"spec": spec("NodePort", external.clone())}),
                vec!["192.0.2.1 [80, 443]", "2001:db8::1 [80, 443]"],
            ),
            (
                json!({"spec": spec("LoadBalancer", external), "status": status}),
                vec!["192.0.2.1 [80, 443]", "lb.example.org [80, 443]", "2001:db8::1 [80, 443]"],
            ),
            (json!({"spec": spec("LoadBalancer", json!({}))}), vec![]),
            (
                json!({"spec": {"type": "ExternalName", "externalName": "a.example"}}),
                vec!["a.example []"],
            ),
            (json!({"spec": {"clusterIP": "None"}}), vec![]),
            (json!({}), vec![]),
        ] {
            assert_eq!(addresses(service.clone()), expected, "{service}");
        }
    }
}
