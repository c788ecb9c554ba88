//! Which Services are ours, and what their clients dial.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort as ApiPort, ServiceSpec};
use lb_common::layout::FrontendKind;

use super::types::{
    AddressFamily, Frontend, Policy, Problem, Protocol, ServiceName, ServicePort, ServicePortKey,
};

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const AFFINITY_SECONDS: i32 = 10_800;
const MAX_AFFINITY_SECONDS: i32 = 86_400;

/// The service ports of a Service, without their pools.
pub fn service_ports(
    service: &Service,
    name: &ServiceName,
    problems: &mut Vec<Problem>,
) -> BTreeMap<ServicePortKey, ServicePort> {
    let Some(spec) = service.spec.as_ref().filter(|_| is_ours(service)) else {
        return BTreeMap::new();
    };
    let mut reader = Reader { name, problems };
    let addresses = reader.addresses(service, spec);
    let external_policy =
        reader.policy("spec.externalTrafficPolicy", &spec.external_traffic_policy);
    let internal_policy =
        reader.policy("spec.internalTrafficPolicy", &spec.internal_traffic_policy);
    let affinity = reader.affinity(spec);
    let source_ranges = reader.source_ranges(spec);

    let mut found = BTreeMap::new();
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        let field = format!("spec.ports[{index}]");
        let Some(protocol) = reader.protocol(&field, port) else { continue };
        let Some(number) = reader.port(&format!("{field}.port"), port.port) else { continue };
        let node_port = match port.node_port {
            None | Some(0) => None,
            Some(node_port) => reader.port(&format!("{field}.nodePort"), node_port),
        };
        for family in [AddressFamily::V4, AddressFamily::V6] {
            let of_family = |(address, _): &&(IpAddr, _)| AddressFamily::of(address) == family;
            let frontends = addresses.iter().filter(of_family).map(|&(address, kind)| Frontend {
                address,
                port: number,
                kind,
            });
            // A Service is in a family if it has a cluster address of it.
            let has_cluster_address = addresses
                .iter()
                .filter(of_family)
                .any(|(_, kind)| *kind == FrontendKind::ClusterIp);
            if !has_cluster_address {
                continue;
            }
            let node_port = node_port.map(|port| Frontend {
                address: family.unspecified(),
                port,
                kind: FrontendKind::NodePort,
            });
            let key = ServicePortKey {
                service: name.clone(),
                port: port.name.clone().unwrap_or_default(),
                protocol,
                family,
            };
            let of_this_family = |range: &&IpNet| AddressFamily::of(&range.addr()) == family;
            let service_port = ServicePort {
                frontends: frontends.chain(node_port).collect(),
                external_policy,
                internal_policy,
                affinity,
                source_ranges: source_ranges.iter().filter(of_this_family).copied().collect(),
                ..ServicePort::default()
            };
            if found.insert(key, service_port).is_some() {
                reader.problem(&field, "another port has the same name and protocol".to_owned());
            }
        }
    }
    found
}

/// Whether a node's proxy has anything to do with it.
fn is_ours(service: &Service) -> bool {
    let labels = service.metadata.labels.as_ref();
    let labelled = |label| labels.is_some_and(|labels| labels.contains_key(label));
    let external_name = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    !labelled(PROXY_NAME) && !labelled(HEADLESS) && external_name != Some("ExternalName")
}

/// Reads fields, and notes what is wrong with them.
struct Reader<'a> {
    name: &'a ServiceName,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, field: &str, message: String) {
        let object = format!("Service {}", self.name);
        self.problems.push(Problem { object, field: field.to_owned(), message });
    }

    /// Every address that clients dial, with its kind.
    fn addresses(&mut self, service: &Service, spec: &ServiceSpec) -> Vec<(IpAddr, FrontendKind)> {
        let mut found = Vec::new();
        let cluster_addresses: Vec<&String> = match &spec.cluster_ips {
            Some(addresses) if !addresses.is_empty() => addresses.iter().collect(),
            _ => spec.cluster_ip.iter().collect(),
        };
        for (index, address) in cluster_addresses.into_iter().enumerate() {
            if address == "None" || address.is_empty() {
                return Vec::new();
            }
            let field = format!("spec.clusterIPs[{index}]");
            found.extend(self.address(&field, address).map(|a| (a, FrontendKind::ClusterIp)));
        }
        for (index, address) in spec.external_ips.iter().flatten().enumerate() {
            let field = format!("spec.externalIPs[{index}]");
            found.extend(self.address(&field, address).map(|a| (a, FrontendKind::ExternalIp)));
        }
        let is_load_balancer = spec.type_.as_deref() == Some("LoadBalancer");
        let status = service.status.as_ref().filter(|_| is_load_balancer);
        let ingress = status.and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
        for (index, entry) in ingress.into_iter().flatten().enumerate() {
            // `Proxy`: the load balancer wants its traffic at the node's own addresses.
            let virtual_address = entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
            if let Some(address) = entry.ip.as_ref().filter(|_| virtual_address) {
                let field = format!("status.loadBalancer.ingress[{index}].ip");
                found
                    .extend(self.address(&field, address).map(|a| (a, FrontendKind::LoadBalancer)));
            }
        }
        // One address has one meaning; the first kind in this order.
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|(address, _)| seen.insert(*address));
        found
    }

    fn address(&mut self, field: &str, text: &str) -> Option<IpAddr> {
        let address = text.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified());
        if address.is_none() {
            self.problem(field, format!("{text:?} is not an address that can be dialled"));
        }
        address
    }

    fn port(&mut self, field: &str, number: i32) -> Option<u16> {
        let port = u16::try_from(number).ok().filter(|&port| port != 0);
        if port.is_none() {
            self.problem(field, format!("{number} is not between 1 and 65535"));
        }
        port
    }

    fn protocol(&mut self, field: &str, port: &ApiPort) -> Option<Protocol> {
        let protocol = Protocol::parse(port.protocol.as_deref());
        if protocol.is_none() {
            let name = port.protocol.clone().unwrap_or_default();
            self.problem(&format!("{field}.protocol"), format!("{name:?} is not known"));
        }
        protocol
    }

    fn policy(&mut self, field: &str, policy: &Option<String>) -> Policy {
        match policy.as_deref() {
            Some("Local") => Policy::Local,
            None | Some("" | "Cluster") => Policy::Cluster,
            Some(other) => {
                self.problem(field, format!("{other:?} is not known; taken for Cluster"));
                Policy::Cluster
            }
        }
    }

    fn affinity(&mut self, spec: &ServiceSpec) -> Option<Duration> {
        match spec.session_affinity.as_deref() {
            None | Some("" | "None") => return None,
            Some("ClientIP") => {}
            Some(other) => {
                let message = format!("{other:?} is not known; taken for None");
                self.problem("spec.sessionAffinity", message);
                return None;
            }
        }
        let config = spec.session_affinity_config.as_ref();
        let seconds = config.and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
        let seconds = seconds.unwrap_or(AFFINITY_SECONDS);
        let within = seconds.clamp(1, MAX_AFFINITY_SECONDS);
        if within != seconds {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            self.problem(
                field,
                format!("{seconds} is not between 1 and 86400; taken for {within}"),
            );
        }
        Some(Duration::from_secs(within.unsigned_abs().into()))
    }

    /// A range that holds everybody in a family lifts all limits in it.
    fn source_ranges(&mut self, spec: &ServiceSpec) -> Vec<IpNet> {
        let mut ranges = Vec::new();
        for (index, text) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
            match text.trim().parse::<IpNet>() {
                Ok(range) => ranges.push(range.trunc()),
                Err(_) => {
                    let field = format!("spec.loadBalancerSourceRanges[{index}]");
                    self.problem(&field, format!("{text:?} is not an address range"));
                }
            }
        }
        let lifted: Vec<AddressFamily> = ranges
            .iter()
            .filter(|range| range.prefix_len() == 0)
            .map(|range| AddressFamily::of(&range.addr()))
            .collect();
        ranges.retain(|range| !lifted.contains(&AddressFamily::of(&range.addr())));
        ranges.sort();
        ranges.dedup();
        ranges
    }
}
