//! Two Services for each plugin: `near` has its endpoint on node A, `far` on node B.

use super::names::{
    Ip, Plugin, Scope, TransportProtocol, cluster_ip, load_balancer_address, node_port, pod_address,
};

/// Where the servers listen.
pub const TCP: u16 = 8080;
pub const UDP: u16 = 5353;

pub fn cluster_manifests() -> String {
    let mut text = String::new();
    for plugin in Plugin::ALL {
        for scope in Scope::BOTH {
            text += &cluster_service(plugin, scope);
            for ip in Ip::BOTH {
                text += &slice(plugin, scope, ip);
            }
        }
    }
    text
}

fn name(plugin: Plugin, scope: Scope) -> String {
    format!("{}-{}", scope.name(), plugin as usize)
}

fn cluster_service(plugin: Plugin, scope: Scope) -> String {
    let name = name(plugin, scope);
    let policy = match scope {
        Scope::Near => "Local",
        Scope::Far => "Cluster",
    };
    let [v4, v6] = Ip::BOTH.map(|ip| cluster_ip(plugin, scope, ip));
    let [vip4, vip6] = Ip::BOTH.map(|ip| load_balancer_address(plugin, scope, ip));
    let node_port = node_port(plugin, scope);
    let [tcp, udp] = TransportProtocol::BOTH.map(TransportProtocol::port);
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: {policy}
  clusterIPs: [{v4}, '{v6}']
  ports:
  - {{name: http, port: {tcp}, targetPort: {TCP}, nodePort: {node_port}}}
  - {{name: dns, port: {udp}, protocol: UDP, targetPort: {UDP}, nodePort: {node_port}}}
status: {{loadBalancer: {{ingress: [{{ip: {vip4}}}, {{ip: '{vip6}'}}]}}}}
"
    )
}

fn slice(plugin: Plugin, scope: Scope, ip: Ip) -> String {
    let (service, node) = (name(plugin, scope), scope.side().name());
    let address = pod_address(plugin, scope.side(), 0, ip);
    let (kind, number) = match ip {
        Ip::V4 => ("IPv4", 4),
        Ip::V6 => ("IPv6", 6),
    };
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-{number}, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: {kind}
ports: [{{name: http, port: {TCP}}}, {{name: dns, port: {UDP}, protocol: UDP}}]
endpoints: [{{addresses: ['{address}'], nodeName: {node}}}]
"
    )
}
