//! Which Services Millrace handles, and what their clients connect to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort as ApiPort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_common::layout::FrontendKind;

use super::address;
use super::fields::Fields;
use super::lent_ports::{NODE_PROBE_PORT, ProtocolPort, is_lending, ports_on_node};
use super::node_context::NodeContext;
use super::source_ranges::{Admitted, SourceRanges};
use super::tunnels;
use super::types::{
    AddressFamily, Frontend, Problem, Protocol, ServiceName, ServicePort, ServicePortKey,
    TrafficPolicy,
};
use super::weights;
use crate::kinds::service::{NODE_PORTS_CONDITION, is_marked, is_request};

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// External IPs of a Service, not served, that are named one by one: every node reports each.
const MOST_NAMED_REFUSALS: usize = 4;
const TYPES: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];

/// A Service without its endpoints.
#[derive(Default)]
pub(crate) struct ReadService {
    /// Without pools.
    pub service_ports: BTreeMap<ServicePortKey, ServicePort>,
    pub health_check_port: Option<u16>,
}

/// Removes fields that no rule uses. The assignment of addresses uses more of Services of type LoadBalancer.
pub(crate) fn trim_unused(service: &mut Service) {
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    if type_ != Some("LoadBalancer") {
        trim_service(service);
        return;
    }
    let metadata = std::mem::take(&mut service.metadata);
    service.metadata = ObjectMeta {
        resource_version: metadata.resource_version.clone(),
        ..trimmed(metadata, |_| true, |name| is_annotation_used(name) || is_request(name))
    };
}

/// Removes fields from a Service that the agent does not use: it holds all Services of a cluster.
pub fn trim_service(service: &mut Service) {
    let metadata = std::mem::take(&mut service.metadata);
    // Advertisements select Services by their labels.
    let spec = service.spec.as_ref();
    let is_load_balancer = spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
    let is_label_used = |name: &str| {
        is_load_balancer || [PROXY_NAME, HEADLESS].contains(&name) || is_advertising_label(name)
    };
    service.metadata = trimmed(metadata, is_label_used, is_annotation_used);
    if let Some(spec) = &mut service.spec {
        spec.selector = None;
        spec.ports.iter_mut().for_each(Vec::shrink_to_fit);
    }
    // Only that there is one matters: `strip` has removed those of other types.
    let conditions =
        service.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten());
    let unread = conditions.filter(|condition| condition.type_ != NODE_PORTS_CONDITION);
    unread.for_each(|condition| condition.message = String::new());
}

/// Whether advertisements to BGP peers may select Services of any type by a label. Of other labels, which are many, only
/// those of load balancers are held.
pub fn is_advertising_label(name: &str) -> bool {
    name.starts_with("millrace.io/")
}

fn is_annotation_used(name: &str) -> bool {
    [tunnels::FORWARDING, weights::NODE_WEIGHTS, weights::ZONE_WEIGHTS].contains(&name)
}

/// What identifies an object, with these of its labels and annotations.
fn trimmed(
    metadata: ObjectMeta,
    is_label_used: impl Fn(&str) -> bool,
    is_annotation_used: impl Fn(&str) -> bool,
) -> ObjectMeta {
    ObjectMeta {
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        creation_timestamp: metadata.creation_timestamp,
        labels: accept_only(metadata.labels, is_label_used),
        annotations: accept_only(metadata.annotations, is_annotation_used),
        ..ObjectMeta::default()
    }
}

fn accept_only(
    all: Option<BTreeMap<String, String>>,
    is_used: impl Fn(&str) -> bool,
) -> Option<BTreeMap<String, String>> {
    let mut all = all?;
    all.retain(|name, _| is_used(name));
    (!all.is_empty()).then_some(all)
}

pub fn read_service(
    service: &Service,
    name: &ServiceName,
    node: &NodeContext,
    problems: &mut Vec<Problem>,
) -> ReadService {
    let Some(spec) = service.spec.as_ref().filter(|_| !is_labelled_away(service)) else {
        return ReadService::default();
    };
    let mut fields = Fields { service: name, problems };
    let service_type = fields.one_of("spec.type", &spec.type_, &TYPES);
    if service_type == "ExternalName" {
        return ReadService::default();
    }
    let lent = ports_on_node(service, node);
    let addresses = addresses(service, spec, service_type, node, &lent, &mut fields);
    if addresses.is_empty() {
        return ReadService::default();
    }

    let shared = ServicePort {
        external_policy: fields.policy("spec.externalTrafficPolicy", &spec.external_traffic_policy),
        internal_policy: fields.policy("spec.internalTrafficPolicy", &spec.internal_traffic_policy),
        affinity: fields.affinity(spec),
        forwarding: tunnels::read_forwarding(service, node, &mut fields),
        lent: lent.keys().copied().collect(),
        ..ServicePort::default()
    };
    let source_ranges = SourceRanges::read(spec, &mut fields);
    let health_check_port = match spec.health_check_node_port {
        None | Some(0) => None,
        Some(_) if service_type != "LoadBalancer" => None,
        Some(_) if shared.external_policy != TrafficPolicy::Local => None,
        Some(port) => fields.port("spec.healthCheckNodePort", port),
    };

    let mut service_ports = BTreeMap::new();
    for port in read_ports(spec, &mut fields) {
        let mut open_addresses = addresses.clone();
        open_addresses.retain(|at| !port.takes_probes(at, node));
        if open_addresses.len() < addresses.len() {
            let message = format!(
                "TCP port {NODE_PROBE_PORT} is not served at external IPs and addresses of nodes: agents probe nodes \
                 at it. Use another port"
            );
            fields.problem("spec.ports", message);
        }
        for family in AddressFamily::ALL {
            let frontends = frontends(&port, family, &open_addresses, &lent, &source_ranges);
            // A Service has a family if it has a cluster address of it.
            if !frontends.iter().any(|frontend| frontend.kind == FrontendKind::ClusterIp) {
                continue;
            }
            let key = ServicePortKey {
                service: name.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
                family,
            };
            let source_ranges = match source_ranges.of(family) {
                Admitted::From(ranges) => ranges,
                Admitted::All | Admitted::None => Vec::new(),
            };
            let assigned = assigned_addresses(service, &frontends, &lent);
            let service_port = ServicePort { frontends, assigned, source_ranges, ..shared.clone() };
            service_ports.insert(key, service_port);
        }
    }
    ReadService { service_ports, health_check_port }
}

/// Whether a label assigns it to another proxy, or marks it as headless.
fn is_labelled_away(service: &Service) -> bool {
    let mut labels = service.metadata.labels.iter().flatten();
    labels.any(|(label, _)| label == PROXY_NAME || label == HEADLESS)
}

/// The cluster addresses that can be read.
pub(crate) fn list_cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.iter();
    let texts = spec.flat_map(|spec| spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
    texts.filter_map(|text| address::parse_address(text).ok())
}

/// Every address that clients connect to, with its kind; none if the Service has no cluster
/// address.
fn addresses(
    service: &Service,
    spec: &ServiceSpec,
    service_type: &str,
    node: &NodeContext,
    lent: &BTreeMap<IpAddr, BTreeSet<ProtocolPort>>,
    fields: &mut Fields<'_>,
) -> Vec<(IpAddr, FrontendKind)> {
    let cluster_addresses: Vec<(String, &String)> = match &spec.cluster_ips {
        Some(addresses) if !addresses.is_empty() => {
            let indexed = addresses.iter().enumerate();
            indexed.map(|(index, text)| (format!("spec.clusterIPs[{index}]"), text)).collect()
        }
        _ => spec.cluster_ip.iter().map(|text| ("spec.clusterIP".to_owned(), text)).collect(),
    };
    if cluster_addresses.iter().all(|(_, text)| text.is_empty()) {
        let message = "is missing, so the Service is not served. API servers allocate it; a manifest \
                       must contain it";
        fields.problem("spec.clusterIP", message.to_owned());
        return Vec::new();
    }
    let mut found = Vec::new();
    for (field, text) in cluster_addresses {
        if text == "None" || text.is_empty() {
            return Vec::new();
        }
        let address = fields.address(&field, text, address::parse_address);
        found.extend(address.map(|address| (address, FrontendKind::ClusterIp)));
    }
    if service_type == "LoadBalancer" {
        let virtual_addresses = virtual_addresses(service, fields);
        let all = virtual_addresses.chain(lent.keys().copied());
        found.extend(all.map(|address| (address, FrontendKind::LoadBalancer)));
    }
    let mut refused = 0_usize;
    for (index, text) in spec.external_ips.iter().flatten().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        let Some(address) = fields.address(&field, text, address::parse_global_address) else {
            continue;
        };
        // An address that the Service has in another role, too, stays served in that one.
        if found.iter().any(|(other, _)| *other == address) {
            continue;
        }
        match node.external_ips.refuse_external_ip(address) {
            None => found.push((address, FrontendKind::ExternalIp)),
            Some(why) => {
                refused += 1;
                if refused <= MOST_NAMED_REFUSALS {
                    fields.problem(&field, format!("{address} {why}"));
                }
            }
        }
    }
    if let Some(more @ 1..) = refused.checked_sub(MOST_NAMED_REFUSALS) {
        fields.problem("spec.externalIPs", format!("{more} more are not served"));
    }
    // Each address has one kind: the first one in this order. So a load balancer's address that is
    // also listed as an externalIP keeps its source ranges.
    let mut seen = BTreeSet::new();
    found.retain(|(address, _)| seen.insert(*address));
    found
}

/// The addresses that a load balancer routes to the nodes without translation, and that are no node's own. In mode `Proxy` it
/// connects to the nodes' own addresses, and for host names its behaviour is not defined.
fn virtual_addresses(
    service: &Service,
    fields: &mut Fields<'_>,
) -> impl Iterator<Item = IpAddr> + use<> {
    let mut found = Vec::new();
    let is_marked = is_marked(service);
    let status = service.status.as_ref();
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    for (index, entry) in ingress.into_iter().flatten().enumerate() {
        let field = format!("status.loadBalancer.ingress[{index}]");
        let Some(text) = entry.ip.as_ref().filter(|text| !text.is_empty()) else { continue };
        if is_marked && is_lending(entry) {
            continue;
        }
        match entry.ip_mode.as_deref() {
            None | Some("VIP") => {
                found.extend(fields.address(&format!("{field}.ip"), text, address::parse_address));
            }
            Some("Proxy") => {}
            Some(other) => {
                let message = format!("{other:?} is not one of VIP, Proxy; {text} is not served");
                fields.problem(&format!("{field}.ipMode"), message);
            }
        }
    }
    found.into_iter()
}

/// The load balancer addresses of these frontends that Millrace assigned and no node has. The others may belong to a
/// machine that has more ports than its Services.
fn assigned_addresses(
    service: &Service,
    frontends: &BTreeSet<Frontend>,
    lent: &BTreeMap<IpAddr, BTreeSet<ProtocolPort>>,
) -> BTreeSet<IpAddr> {
    let is_assigned = |frontend: &&Frontend| {
        frontend.kind == FrontendKind::LoadBalancer && !lent.contains_key(&frontend.address)
    };
    let of_load_balancer = frontends.iter().filter(is_assigned).map(|frontend| frontend.address);
    if is_marked(service) { of_load_balancer.collect() } else { BTreeSet::new() }
}

/// A valid port.
struct ReadPort {
    name: String,
    protocol: Protocol,
    number: u16,
    node_port: Option<u16>,
}

impl ReadPort {
    /// Whether its backends would get agents' probes of nodes at this address. Any external IP may become a node's;
    /// the address of a load balancer is one where its controller lists those of nodes.
    fn takes_probes(&self, &(address, kind): &(IpAddr, FrontendKind), node: &NodeContext) -> bool {
        let may_be_of_node = match kind {
            FrontendKind::ExternalIp => true,
            FrontendKind::LoadBalancer => node.is_of_node(address),
            _ => false,
        };
        may_be_of_node && (self.protocol, self.number) == (Protocol::Tcp, NODE_PROBE_PORT)
    }
}

/// The valid ports. Of two conflicting ports the first is used; the API server refuses such
/// Services, but a file may contain one.
fn read_ports(spec: &ServiceSpec, fields: &mut Fields<'_>) -> Vec<ReadPort> {
    let mut found: Vec<ReadPort> = Vec::new();
    for (index, api_port) in spec.ports.iter().flatten().enumerate() {
        let field = format!("spec.ports[{index}]");
        let Some(mut port) = read_port(&field, api_port, fields) else { continue };
        let protocol = port.protocol.name();
        let mut others = found.iter().filter(|other| other.protocol == port.protocol);
        if others.clone().any(|other| other.name == port.name) {
            let message = format!("{:?} is the name of another {protocol} port", port.name);
            fields.problem(&format!("{field}.name"), message);
            continue;
        }
        if others.clone().any(|other| other.number == port.number) {
            let message = format!("{} is that of another {protocol} port", port.number);
            fields.problem(&format!("{field}.port"), message);
            continue;
        }
        if let Some(node_port) = port.node_port
            && others.any(|other| other.node_port == port.node_port)
        {
            let message = format!("{node_port} is that of another {protocol} port");
            fields.problem(&format!("{field}.nodePort"), message);
            port.node_port = None;
        }
        found.push(port);
    }
    found
}

fn read_port(field: &str, port: &ApiPort, fields: &mut Fields<'_>) -> Option<ReadPort> {
    Some(ReadPort {
        name: port.name.clone().unwrap_or_default(),
        protocol: fields.protocol(&format!("{field}.protocol"), port)?,
        number: fields.port(&format!("{field}.port"), port.port)?,
        node_port: match port.node_port {
            None | Some(0) => None,
            Some(node_port) => fields.port(&format!("{field}.nodePort"), node_port),
        },
    })
}

/// The frontends of one port in one family.
fn frontends(
    port: &ReadPort,
    family: AddressFamily,
    addresses: &[(IpAddr, FrontendKind)],
    lent: &BTreeMap<IpAddr, BTreeSet<ProtocolPort>>,
    source_ranges: &SourceRanges,
) -> BTreeSet<Frontend> {
    let closed = source_ranges.of(family) == Admitted::None;
    let is_lent = |address: &IpAddr| {
        lent.get(address).is_none_or(|ports| ports.contains(&(port.protocol, port.number)))
    };
    let served = addresses.iter().filter(|(address, kind)| {
        let is_open = *kind != FrontendKind::LoadBalancer || !closed && is_lent(address);
        AddressFamily::of(address) == family && is_open
    });
    let at_addresses = served.map(|&(address, kind)| Frontend { address, port: port.number, kind });
    let at_node_port = port.node_port.map(|port| Frontend {
        address: family.unspecified(),
        port,
        kind: FrontendKind::NodePort,
    });
    at_addresses.chain(at_node_port).collect()
}
