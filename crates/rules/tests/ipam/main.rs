//! Addresses of Services of type LoadBalancer: cases in text files, and random histories.
//!
//! A file contains manifests, the line `--- expect`, and the result: what each Service has and why, how much of each
//! pool is used, and problems. A comment `# setting: RANGE` adds a range of `load-balancer-addresses`;
//! `# load-balancer-classes: CLASS,CLASS` and `# require-load-balancer-class` are those settings. `# then:`
//! begins the manifests of a second step, which are applied when the first one is settled; `# delete: KIND NAME` deletes
//! an object in that step.
//!
//! `UPDATE_EXPECT=1` writes the actual results; review them.

// All of this is tests.
#![allow(clippy::unwrap_used)]

#[path = "../cases/mod.rs"]
mod cases;
mod history;
mod naive;
mod node_history;
mod scale;

use std::fmt::Write;

use lb_rules::documents;
use lb_rules::ipam::{Ipam, IpamSettings, Pools, Range, find_announcement};
use lb_rules::model::{Kind, Object, ObjectRef, ServiceName};

#[test]
fn every_rule_of_assignment_holds() {
    cases::check("ipam", meaning);
}

/// The result of manifests, as text.
fn meaning(name: &str, manifests: &str) -> String {
    let lines = |prefix| manifests.lines().filter_map(move |line| line.strip_prefix(prefix));
    let ranges: Vec<Range> = lines("# setting: ").map(|text| Range::parse(text).unwrap()).collect();
    let mut settings = IpamSettings {
        is_alone: lines("# alone").next().is_some(),
        needs_class: lines("# require-load-balancer-class").next().is_some(),
        ..IpamSettings::default()
    };
    if let Some(classes) = lines("# load-balancer-classes: ").next() {
        settings.classes = classes.split(',').map(str::to_owned).collect();
    }
    let mut ipam = Ipam::new(settings, Pools::new(&ranges));
    let mut text = String::new();
    for (number, step) in manifests.split("# then:\n").enumerate() {
        let contents =
            documents::parse_documents(name, step).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(contents.problems.is_empty(), "{:?}", contents.problems);
        for object in contents.objects.values() {
            ipam.apply(object);
        }
        for deleted in step.lines().filter_map(|line| line.strip_prefix("# delete: ")) {
            ipam.delete(&ObjectRef::parse(deleted).unwrap());
        }
        ipam.settle();
        if number > 0 {
            text.push_str("then\n");
        }
        describe(&ipam, manifests, &mut text);
    }
    text
}

fn describe(ipam: &Ipam, manifests: &str, text: &mut String) {
    let all = documents::parse_documents("", &manifests.replace("# then:\n", "---\n")).unwrap();
    for (reference, _) in all.objects.iter().filter(|(of, _)| of.kind == Kind::Service) {
        let service = ServiceName::new(&reference.namespace, &reference.name);
        let Some(outcome) = ipam.outcome(&service) else {
            writeln!(text, "{service} left alone").unwrap();
            continue;
        };
        let addresses: Vec<String> = outcome.addresses.iter().map(ToString::to_string).collect();
        let (reason, message) = (outcome.reason.name(), &outcome.message);
        writeln!(text, "{service} [{}] {reason}: {message}", addresses.join(", ")).unwrap();
        for port in &outcome.ports {
            let (protocol, number) = (port.protocol.name(), port.port);
            let refused = port.refused.map_or("has it", |reason| reason.name());
            writeln!(text, "  {protocol} port {number}: {refused}").unwrap();
        }
        if !outcome.ports.is_empty() {
            continue;
        }
        for &address in &outcome.addresses {
            if let Some(announcement) = find_announcement(ipam.pools(), true, address) {
                let scopes = announcement.scopes.iter().map(|scope| {
                    let interfaces: Vec<&str> =
                        scope.interfaces.iter().map(|name| name.as_str()).collect();
                    let nodes = if scope.nodes.is_empty() { "all nodes" } else { "selected nodes" };
                    let on = if interfaces.is_empty() {
                        "fitting".to_owned()
                    } else {
                        interfaces.join("|")
                    };
                    format!("{nodes} on {on}")
                });
                writeln!(text, "  {address} by {}", scopes.collect::<Vec<_>>().join(", ")).unwrap();
            } else {
                writeln!(text, "  {address} not announced").unwrap();
            }
        }
    }
    for usage in ipam.usage() {
        let (pool, family) = (usage.pool, usage.family.name());
        writeln!(text, "{pool} {family}: {} used, {} free", usage.used, usage.free).unwrap();
    }
    for problem in ipam.pools().problems().values().flatten() {
        writeln!(text, "problem {problem}").unwrap();
    }
}

/// A Service of a manifest.
fn object(kind: Kind, value: serde_json::Value) -> Object {
    Object::read(kind, value).unwrap()
}

/// So that no Service makes a status that the API server refuses, or that all agents read at length.
#[test]
fn a_status_has_a_bounded_number_of_ports_of_nodes() {
    let mut ipam = Ipam::new(IpamSettings::default(), Pools::new(&[]));
    let pool = serde_json::json!({
        "metadata": {"name": "edge"},
        "spec": {"nodes": {"addressType": "InternalIP", "ports": ["20000-20999"]}}
    });
    ipam.apply(&object(Kind::AddressPool, pool));
    for number in 0..300_u32 {
        let addresses = serde_json::json!([
            {"type": "InternalIP", "address": format!("10.0.{}.{}", number / 250, number % 250 + 1)},
            {"type": "InternalIP", "address": format!("2001:db8::{:x}", number + 1)}
        ]);
        let node = serde_json::json!({
            "metadata": {"name": format!("node-{number:03}")}, "status": {"addresses": addresses}
        });
        ipam.apply(&object(Kind::Node, node));
    }
    let name = ServiceName::new("default", "web");
    for (ports, listed) in [(1, 256), (64, 64)] {
        let ports: Vec<_> = (0..ports)
            .map(|port| serde_json::json!({"name": format!("p{port}"), "port": 20_000 + port}))
            .collect();
        let service = serde_json::json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "type": "LoadBalancer", "ipFamilies": ["IPv4", "IPv6"],
                "ipFamilyPolicy": "RequireDualStack", "ports": ports
            }
        });
        ipam.apply(&object(Kind::Service, service));
        ipam.settle();
        let outcome = ipam.outcome(&name).unwrap();
        assert_eq!(outcome.addresses.len(), listed);
        assert!(outcome.addresses.len() * outcome.ports.len() <= 4096);
    }
}
