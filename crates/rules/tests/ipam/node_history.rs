//! Random histories of pools that stand for nodes: whatever changed in whatever order, no port of a node is lent twice,
//! and a process that finds the result in the statuses decides the same.

use std::collections::{BTreeMap, BTreeSet};

use lb_rules::ipam::{AssignmentOutcome, Ipam, IpamSettings, Pools};
use lb_rules::model::{Kind, ObjectRef, PortGrant, ServiceName};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::object;

const NAMESPACE: &str = "default";
const PORTS: std::ops::Range<u16> = 80..83;

type Letters = BTreeSet<char>;

#[derive(Clone, Debug)]
struct NodePool {
    /// The label that selected nodes have; `None`: all nodes.
    selected: Option<char>,
    ports: BTreeSet<u16>,
    is_automatic: bool,
    priority: i32,
}

#[derive(Clone, Debug)]
struct Machine {
    labels: Letters,
    is_ready: bool,
    has_v6: bool,
}

#[derive(Clone, Debug)]
struct Borrower {
    ports: BTreeSet<u16>,
    pool: Option<u8>,
    is_local: bool,
    is_dual: bool,
    endpoints: BTreeSet<u8>,
}

#[derive(Clone, Debug)]
enum NodeChange {
    SetPool(u8, NodePool),
    /// A pool of the same name with an address of its own.
    SetPoolOfAddresses(u8),
    DeletePool(u8),
    SetNode(u8, Machine),
    DeleteNode(u8),
    SetService(u8, Borrower),
    DeleteService(u8),
}

fn changes() -> impl Strategy<Value = NodeChange> {
    let ports = || prop::collection::btree_set(PORTS, 1..3);
    let letter = prop_oneof![Just('a'), Just('b')];
    let selected = prop_oneof![1 => Just(None), 2 => letter.clone().prop_map(Some)];
    let pool = (selected, ports(), prop::bool::weighted(0.8), 0i32..2);
    let pool = pool.prop_map(|(selected, ports, is_automatic, priority)| NodePool {
        selected,
        ports,
        is_automatic,
        priority,
    });
    let labels = prop::collection::btree_set(letter, 0..3);
    let machine = (labels, prop::bool::weighted(0.8), any::<bool>());
    let machine =
        machine.prop_map(|(labels, is_ready, has_v6)| Machine { labels, is_ready, has_v6 });
    let wanted_pool = prop_oneof![2 => Just(None), 1 => (0u8..3).prop_map(Some)];
    let endpoints = prop::collection::btree_set(0u8..3, 0..3);
    let service = (ports(), wanted_pool, any::<bool>(), any::<bool>(), endpoints);
    let service = service.prop_map(|(ports, pool, is_local, is_dual, endpoints)| Borrower {
        ports,
        pool,
        is_local,
        is_dual,
        endpoints,
    });
    prop_oneof![
        3 => (0u8..3, pool).prop_map(|(name, pool)| NodeChange::SetPool(name, pool)),
        1 => (0u8..3).prop_map(NodeChange::SetPoolOfAddresses),
        1 => (0u8..3).prop_map(NodeChange::DeletePool),
        4 => (0u8..3, machine).prop_map(|(name, node)| NodeChange::SetNode(name, node)),
        1 => (0u8..3).prop_map(NodeChange::DeleteNode),
        8 => (0u8..5, service).prop_map(|(name, service)| NodeChange::SetService(name, service)),
        3 => (0u8..5).prop_map(NodeChange::DeleteService),
    ]
}

fn pool_manifest(name: u8, pool: &NodePool) -> Value {
    let selector = pool.selected.map(|label| json!({"matchLabels": {(label.to_string()): ""}}));
    json!({
        "metadata": {"name": format!("pool-{name}")},
        "spec": {
            "autoAssign": pool.is_automatic, "priority": pool.priority,
            "nodes": {"addressType": "InternalIP", "selector": selector, "ports": pool.ports}
        }
    })
}

fn node_manifest(name: u8, node: &Machine) -> Value {
    let labels: BTreeMap<String, &str> =
        node.labels.iter().map(|label| (label.to_string(), "")).collect();
    let mut addresses = vec![json!({"type": "InternalIP", "address": format!("10.9.0.{name}")})];
    if node.has_v6 {
        addresses.push(json!({"type": "InternalIP", "address": format!("2001:db8::{name}")}));
    }
    let ready = if node.is_ready { "True" } else { "False" };
    json!({
        "metadata": {"name": format!("node-{name}"), "labels": labels},
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": ready}]}
    })
}

/// A Service with the status that a controller writes for this outcome.
fn service_manifest(name: u8, service: &Borrower, outcome: Option<&AssignmentOutcome>) -> Value {
    let ports: Vec<Value> = service
        .ports
        .iter()
        .map(|port| json!({"name": format!("p{port}"), "port": port}))
        .collect();
    let families = if service.is_dual { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) };
    let annotations =
        service.pool.map(|pool| json!({"millrace.io/address-pool": format!("pool-{pool}")}));
    json!({
        "metadata": {
            "name": format!("service-{name}"), "namespace": NAMESPACE, "annotations": annotations,
            "creationTimestamp": format!("2026-01-01T00:00:{name:02}Z")
        },
        "spec": {
            "type": "LoadBalancer", "ports": ports, "ipFamilies": families,
            "ipFamilyPolicy": if service.is_dual { "PreferDualStack" } else { "SingleStack" },
            "externalTrafficPolicy": if service.is_local { "Local" } else { "Cluster" }
        },
        "status": outcome.map(status_manifest)
    })
}

fn status_manifest(outcome: &AssignmentOutcome) -> Value {
    let condition = |kind: &str, message: String| {
        json!({
            "type": format!("millrace.io/{kind}"), "status": "True", "reason": "Any", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"
        })
    };
    let mut conditions = vec![condition("AddressAssigned", String::new())];
    conditions.extend(outcome.grant.iter().map(|grant| condition("NodePorts", grant.to_string())));
    let ports: Vec<Value> = outcome
        .ports
        .iter()
        .map(|port| json!({"port": port.port, "protocol": port.protocol.name()}))
        .collect();
    let entries: Vec<Value> =
        outcome.addresses.iter().map(|at| json!({"ip": at, "ports": ports})).collect();
    json!({"conditions": conditions, "loadBalancer": {"ingress": entries}})
}

fn slice_manifest(name: u8, service: &Borrower) -> Value {
    let endpoints: Vec<Value> = service
        .endpoints
        .iter()
        .map(|node| json!({"addresses": [format!("10.8.{name}.{node}")], "nodeName": format!("node-{node}")}))
        .collect();
    json!({
        "metadata": {
            "name": format!("service-{name}"), "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": format!("service-{name}")}
        },
        "addressType": "IPv4", "endpoints": endpoints
    })
}

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
struct Cluster {
    pools: BTreeMap<u8, Option<NodePool>>,
    nodes: BTreeMap<u8, Machine>,
    services: BTreeMap<u8, Borrower>,
}

impl Cluster {
    fn make(&mut self, change: &NodeChange, ipam: &mut Ipam) {
        let mut delete = |kind, namespace, name: String| {
            ipam.delete(&ObjectRef::new(kind, namespace, Some(&name)));
        };
        match change {
            NodeChange::SetPool(name, pool) => {
                self.pools.insert(*name, Some(pool.clone()));
                self.apply_pool(*name, ipam);
            }
            NodeChange::SetPoolOfAddresses(name) => {
                self.pools.insert(*name, None);
                self.apply_pool(*name, ipam);
            }
            NodeChange::DeletePool(name) => {
                self.pools.remove(name);
                delete(Kind::AddressPool, None, format!("pool-{name}"));
            }
            NodeChange::SetNode(name, node) => {
                self.nodes.insert(*name, node.clone());
                ipam.apply(&object(Kind::Node, node_manifest(*name, node)));
            }
            NodeChange::DeleteNode(name) => {
                self.nodes.remove(name);
                delete(Kind::Node, None, format!("node-{name}"));
            }
            NodeChange::SetService(name, service) => {
                self.services.insert(*name, service.clone());
                let outcome = ipam.outcome(&service_name(*name)).cloned();
                let manifest = service_manifest(*name, service, outcome.as_ref());
                ipam.apply(&object(Kind::Service, manifest));
                ipam.apply(&object(Kind::EndpointSlice, slice_manifest(*name, service)));
            }
            NodeChange::DeleteService(name) => {
                self.services.remove(name);
                delete(Kind::Service, Some(NAMESPACE), format!("service-{name}"));
                delete(Kind::EndpointSlice, Some(NAMESPACE), format!("service-{name}"));
            }
        }
    }

    fn apply_pool(&self, name: u8, ipam: &mut Ipam) {
        let manifest = match &self.pools[&name] {
            Some(pool) => pool_manifest(name, pool),
            None => json!({
                "metadata": {"name": format!("pool-{name}")},
                "spec": {"addresses": [format!("10.0.{name}.1-10.0.{name}.2")]}
            }),
        };
        ipam.apply(&object(Kind::AddressPool, manifest));
    }

    /// A process that starts when these objects exist, with the statuses that another one has written.
    fn restart(&self, written: &Ipam) -> Ipam {
        let mut ipam = Ipam::new(settings(), Pools::new(&[]));
        self.pools.keys().for_each(|name| self.apply_pool(*name, &mut ipam));
        for (name, service) in self.services.iter().rev() {
            let outcome = written.outcome(&service_name(*name));
            ipam.apply(&object(Kind::Service, service_manifest(*name, service, outcome)));
            ipam.apply(&object(Kind::EndpointSlice, slice_manifest(*name, service)));
        }
        for (name, node) in &self.nodes {
            ipam.apply(&object(Kind::Node, node_manifest(*name, node)));
        }
        ipam.settle();
        ipam
    }

    fn grants<'a>(&self, ipam: &'a Ipam) -> BTreeMap<u8, &'a PortGrant> {
        let grant = |name: &u8| Some((*name, ipam.outcome(&service_name(*name))?.grant.as_ref()?));
        self.services.keys().filter_map(grant).collect()
    }

    /// The nodes of which a Service has ports.
    fn nodes_of(&self, grant: &PortGrant) -> BTreeSet<u8> {
        let named = |(name, _): &(&u8, &Option<NodePool>)| format!("pool-{name}") == grant.pool;
        let Some((_, Some(pool))) = self.pools.iter().find(named) else { return BTreeSet::new() };
        let selects =
            |node: &Machine| pool.selected.is_none_or(|label| node.labels.contains(&label));
        self.nodes.iter().filter(|(_, node)| selects(node)).map(|(name, _)| *name).collect()
    }

    /// A port is lent to a second Service only if both had it already when a label made their pools meet.
    fn check_lent_once(&self, before: &BTreeMap<u8, PortGrant>, ipam: &Ipam) -> Result<(), String> {
        let grants = self.grants(ipam);
        for (name, grant) in &grants {
            for (other, others) in grants.range(name + 1..) {
                let common = self.nodes_of(grant).intersection(&self.nodes_of(others)).count();
                let kept_by = |name: &u8| {
                    let same = before.get(name).filter(|before| before.pool == grants[name].pool);
                    same.map(|before| before.ports.clone()).unwrap_or_default()
                };
                let (kept, kept_by_other) = (kept_by(name), kept_by(other));
                let mut twice = grant.ports.intersection(&others.ports);
                let twice =
                    twice.find(|port| !kept.contains(port) || !kept_by_other.contains(port));
                if let Some(port) = twice.filter(|_| common > 0 || grant.pool == others.pool) {
                    return Err(format!("{port:?} is lent to Services {name} and {other}"));
                }
            }
        }
        Ok(())
    }
}

fn service_name(name: u8) -> ServiceName {
    ServiceName::new(NAMESPACE, &format!("service-{name}"))
}

fn settings() -> IpamSettings {
    IpamSettings { is_alone: true, ..IpamSettings::default() }
}

#[test]
fn no_port_of_a_node_is_lent_twice_and_a_restart_changes_nothing() {
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
    let histories = prop::collection::vec(prop::collection::vec(changes(), 1..4), 1..25);
    let check = |history: Vec<Vec<NodeChange>>| {
        let mut ipam = Ipam::new(settings(), Pools::new(&[]));
        let mut cluster = Cluster::default();
        for changes in history {
            let grants = cluster.grants(&ipam).into_iter();
            let before: BTreeMap<u8, PortGrant> =
                grants.map(|(name, grant)| (name, grant.clone())).collect();
            changes.iter().for_each(|change| cluster.make(change, &mut ipam));
            ipam.settle();
            cluster.check_lent_once(&before, &ipam).map_err(TestCaseError::fail)?;
            prop_assert!(ipam.settle().is_empty(), "settled after {changes:?}");
        }
        let restarted = cluster.restart(&ipam);
        for name in cluster.services.keys() {
            let decided = |ipam: &Ipam| {
                let outcome = ipam.outcome(&service_name(*name))?;
                Some((outcome.addresses.clone(), outcome.grant.clone(), outcome.ports.clone()))
            };
            prop_assert_eq!(decided(&restarted), decided(&ipam), "Service {}", name);
        }
        Ok(())
    };
    runner.run(&histories, check).unwrap();
}
