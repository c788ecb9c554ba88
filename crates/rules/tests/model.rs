//! The rules of Kubernetes, one file each: `model/*.txt`.
//!
//! A file contains manifests, the line `--- expect`, and the result: each service port with its
//! frontends and pools, health checks and problems. The agent's node is `node-a`, without a zone; a
//! comment `# zone: z1` sets one, and so does a manifest of the Node. `# own-addresses: 10.96.0.10` are those of
//! its interfaces; `# dead-nodes: node-b` are dead; `# external-ips: none` and `# forwarding: gue` are those settings, and pools are those
//! that pools list for its external addresses.
//!
//! `UPDATE_EXPECT=1` writes the actual results; review them.

// All of this file is a test.
#![allow(clippy::unwrap_used)]

mod cases;

use std::fmt::Write;

use lb_common::layout::{Forwarding, FrontendKind};
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_rules::documents;
use lb_rules::ipam::{Pools, api_server_service};
use lb_rules::model::{
    Claims, ExternalIpPolicy, Frontend, NodeContext, Object, Resolved, ServicePort, TrafficPolicy,
    forwarding_named, resolve_service,
};
use lb_rules::store::Store;

const NODE: &str = "node-a";
#[test]
fn every_rule_of_the_model_holds() {
    cases::check("model", meaning);
}

/// The result for manifests, as text.
fn meaning(name: &str, manifests: &str) -> String {
    let contents =
        documents::parse_documents(name, manifests).unwrap_or_else(|problem| panic!("{problem}"));
    let mut store = Store::default();
    for object in contents.objects.values() {
        store.apply(Object::clone(object));
    }
    let nodes = store.node_addresses();
    let mut node = NodeContext { nodes, ..NodeContext::of(NODE, store.node(NODE)) };
    if let Some(zone) = manifests.lines().find_map(|line| line.strip_prefix("# zone: ")) {
        node.zone = Some(zone.to_owned());
    }
    if let Some(rules) = manifests.lines().find_map(|line| line.strip_prefix("# external-ips: ")) {
        let rules: Vec<_> = rules.split(',').map(|rule| rule.parse().unwrap()).collect();
        node.external_ips = ExternalIpPolicy::of(&rules);
    }
    if let Some(name) = manifests.lines().find_map(|line| line.strip_prefix("# forwarding: ")) {
        node.forwarding = forwarding_named(name).unwrap();
    }
    if let Some(own) = manifests.lines().find_map(|line| line.strip_prefix("# own-addresses: ")) {
        node.own_addresses = own.split(' ').map(|address| address.parse().unwrap()).collect();
    }
    if let Some(dead) = manifests.lines().find_map(|line| line.strip_prefix("# dead-nodes: ")) {
        node.dead_nodes = dead.split(' ').map(str::to_owned).collect();
    }
    let mut pools = Pools::new(&[]);
    let changes: Vec<bool> = contents.objects.values().map(|object| pools.apply(object)).collect();
    if changes.contains(&true) {
        let own = store.node(NODE).unwrap();
        node.lent_ports = Some(pools.lent_by(own, store.slices(&api_server_service())));
    }

    let mut claims = Claims::default();
    for name in store.services() {
        let service = store.service(name).unwrap();
        let created = service.metadata.creation_timestamp.as_ref();
        let created = created.map(|time| time.0.to_string());
        claims.set(name, created, Some(resolve_service(service, &store.slices(name), &node)));
    }
    let mut text = String::new();
    let mut problems = contents.problems;
    for name in store.services() {
        let Resolved { service_ports, health_check, problems: found } = claims.settled(name, &node);
        for (key, service_port) in &service_ports {
            writeln!(text, "{key}{}", policies(service_port)).unwrap();
            members(&mut text, service_port);
        }
        if let Some(check) = health_check {
            let (port, local) = (check.port, check.local_endpoints);
            writeln!(text, "health check {name} *:{port} local endpoints={local}").unwrap();
        }
        problems.extend(found);
    }
    for problem in problems {
        writeln!(text, "problem {problem}").unwrap();
    }
    if text.is_empty() { "nothing\n".to_owned() } else { text }
}

fn policies(service_port: &ServicePort) -> String {
    let name = |policy| match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    };
    let (external, internal) =
        (name(service_port.external_policy), name(service_port.internal_policy));
    let mut text = format!("  external={external} internal={internal}");
    if let Some(affinity) = service_port.affinity {
        write!(text, " affinity={}s", affinity.as_secs()).unwrap();
    }
    if !service_port.source_ranges.is_empty() {
        let ranges: Vec<String> =
            service_port.source_ranges.iter().map(ToString::to_string).collect();
        write!(text, " from={}", ranges.join(",")).unwrap();
    }
    match service_port.forwarding {
        Forwarding::Masquerade => {}
        Forwarding::Ipip => text.push_str(" forwarding=ipip"),
        Forwarding::Gue => text.push_str(" forwarding=gue"),
        Forwarding::Auto => text.push_str(" forwarding=auto"),
    }
    // Otherwise the pools show it.
    if service_port.populated && service_port.cluster.is_empty() && service_port.local.is_empty() {
        text.push_str(" populated");
    }
    text
}

fn members(text: &mut String, service_port: &ServicePort) {
    for frontend in &service_port.frontends {
        let is_assigned = service_port.assigned.contains(&frontend.address);
        let assigned = if is_assigned { " assigned" } else { "" };
        writeln!(text, "  frontend {}{assigned}", destination(frontend)).unwrap();
    }
    let pools = [
        ("cluster", &service_port.cluster),
        ("local", &service_port.local),
        ("draining", &service_port.draining),
    ];
    for (pool, backends) in pools {
        for backend in backends {
            let here = if backend.local { " here" } else { "" };
            let node = backend.node.map(|node| format!(" on {node}")).unwrap_or_default();
            let weight = Some(backend.weight).filter(|weight| *weight != DEFAULT_WEIGHT);
            let weight = weight.map(|weight| format!(" weight={weight}")).unwrap_or_default();
            writeln!(text, "  {pool} {backend}{here}{node}{weight}").unwrap();
        }
    }
}

fn destination(frontend: &Frontend) -> String {
    let at = std::net::SocketAddr::new(frontend.address, frontend.port);
    match frontend.kind {
        FrontendKind::ClusterIp => format!("ClusterIP {at}"),
        FrontendKind::NodePort => format!("NodePort *:{}", frontend.port),
        FrontendKind::ExternalIp => format!("ExternalIP {at}"),
        FrontendKind::LoadBalancer => format!("LoadBalancer {at}"),
        FrontendKind::NodeAddress => format!("NodeAddress {at}"),
    }
}
