//! The entries of addresses that Millrace assigned.

use lb_common::layout::{Frontend, Silence};
use lb_rules::model::TrafficPolicy;

use super::*;

const ADDRESS: &str = "192.0.2.10";

/// A port of a load balancer at the assigned address.
fn balanced(port: u16) -> ServicePort {
    let address: IpAddr = ADDRESS.parse().unwrap();
    let kind = FrontendKind::LoadBalancer;
    ServicePort {
        frontends: BTreeSet::from([lb_rules::model::Frontend { address, port, kind }]),
        assigned: BTreeSet::from([address]),
        ..service_port(ADDRESS, &["10.244.0.1"])
    }
}

fn restricted(port: u16, range: &str) -> ServicePort {
    ServicePort { source_ranges: vec![range.parse().unwrap()], ..balanced(port) }
}

fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A planner and its tables.
struct Node(Planner, Memory);

impl Node {
    fn new() -> Self {
        Self(Planner::new(), Memory::default())
    }

    /// Carries out a change. Returns the entry of the address itself.
    fn carry_out(&mut self, change: Change) -> Option<Frontend> {
        let Self(planner, memory) = self;
        memory.carry_out(&planner.plan(change));
        memory.frontends.get(&FrontendKey::of_address(ADDRESS.parse().unwrap())).copied()
    }

    fn set(&mut self, name: &str, wanted: Option<ServicePort>) -> Option<Frontend> {
        self.carry_out(change([(key(name), wanted)]))
    }
}

fn silence_of(entry: Option<Frontend>) -> u8 {
    let entry = entry.expect("the address has an entry");
    assert_eq!(entry.kind, FrontendKind::LoadBalancer as u8);
    entry.silence
}

#[test]
fn an_assigned_address_has_an_entry_as_long_as_a_service_port_has_it() {
    let mut node = Node::new();
    let others = ServicePort { assigned: BTreeSet::new(), ..balanced(82) };
    assert_eq!(node.set("others", Some(others)), None, "another controller assigned it");
    assert_eq!(silence_of(node.set("web", Some(balanced(80)))), Silence::Never as u8);
    assert_eq!(silence_of(node.set("api", Some(balanced(81)))), Silence::Never as u8);
    assert_eq!(silence_of(node.set("web", None)), Silence::Never as u8);
    let moved = ServicePort { assigned: BTreeSet::new(), ..balanced(81) };
    assert_eq!(node.set("api", Some(moved)), None);
    assert_eq!(node.0.frontends(), 2, "two frontends, no address");
}

#[test]
fn an_address_of_a_node_has_no_entry_of_a_load_balancer() {
    let mut node = Node::new();
    node.set("web", Some(balanced(80)));
    let own = |texts| Change { own_addresses: Some(addresses(texts)), ..Change::default() };
    let peers = |texts| Change { peers: Some(addresses(texts)), ..Change::default() };
    let node_ports = |texts| Change { node_addresses: Some(addresses(texts)), ..Change::default() };
    assert_eq!(node.carry_out(own(&[ADDRESS])), None);
    assert_eq!(node.carry_out(peers(&[ADDRESS])), None);
    assert_eq!(node.carry_out(own(&[])), None, "it is still another node's");
    assert_eq!(silence_of(node.carry_out(peers(&[]))), Silence::Never as u8);
    let entry = node.carry_out(node_ports(&[ADDRESS])).expect("NodePorts are open there");
    assert_eq!(entry.kind, FrontendKind::NodeAddress as u8);
    assert_eq!(silence_of(node.carry_out(node_ports(&[]))), Silence::Never as u8);
}

#[test]
fn clients_outside_get_no_answer_where_no_service_port_is_served() {
    let mut node = Node::new();
    let local = |port| ServicePort { external_policy: TrafficPolicy::Local, ..balanced(port) };
    let with_endpoint = |port| ServicePort { local: local(port).cluster, ..local(port) };
    assert_eq!(silence_of(node.set("web", Some(local(80)))), Silence::Outside as u8);
    assert_eq!(silence_of(node.set("api", Some(with_endpoint(81)))), Silence::Never as u8);
    assert_eq!(silence_of(node.set("api", Some(local(81)))), Silence::Outside as u8);
    assert_eq!(silence_of(node.set("web", Some(with_endpoint(80)))), Silence::Never as u8);
}

#[test]
fn ranges_apply_to_an_address_if_all_its_service_ports_have_the_same() {
    let mut node = Node::new();
    let ranges_of = |node: &Node, entry: Option<Frontend>| {
        let entry = entry.expect("the address has an entry");
        assert_eq!(entry.silence, Silence::Never as u8);
        let of_entry = |(index, key): (u32, &ServicePortKey)| {
            (index == entry.service_port).then(|| key.service.name.to_string())
        };
        let by_index = node.0.by_index();
        (entry.restricted != 0).then(|| by_index.into_iter().find_map(of_entry).expect("a Service"))
    };
    let entry = node.set("web", Some(restricted(80, "198.51.100.0/24")));
    assert_eq!(ranges_of(&node, entry).as_deref(), Some("web"));
    let entry = node.set("api", Some(restricted(81, "198.51.100.0/24")));
    assert_eq!(ranges_of(&node, entry).as_deref(), Some("web"));
    let entry = node.set("web", None);
    assert_eq!(ranges_of(&node, entry).as_deref(), Some("api"));
    let entry = node.set("web", Some(restricted(80, "203.0.113.0/24")));
    assert_eq!(silence_of(entry), Silence::Always as u8);
    let entry = node.set("web", Some(balanced(80)));
    assert_eq!(ranges_of(&node, entry), None, "anyone may use a port of it");
    let entry = node.set("web", None);
    assert_eq!(ranges_of(&node, entry).as_deref(), Some("api"));
    assert_eq!(node.set("api", None), None);
}

#[test]
fn by_setting_an_assigned_address_answers_nobody_or_is_left_to_the_stack() {
    let node = |policy| Node(Planner::new().with_unserved(policy), Memory::default());
    let entry = node(UnservedPolicy::Drop).set("web", Some(balanced(80)));
    assert_eq!(silence_of(entry), Silence::Always as u8);
    assert_eq!(node(UnservedPolicy::Pass).set("web", Some(balanced(80))), None);
}

/// A new agent writes only what differs.
#[test]
fn the_entry_of_an_assigned_address_is_adopted() {
    let mut node = Node::new();
    node.set("web", Some(balanced(80)));
    let Node(_, memory) = node;
    let wanted = || change([(key("web"), Some(balanced(80)))]);
    let plan = Planner::adopting(memory.snapshot(), Room::default()).plan(wanted());
    assert!(plan.is_empty(), "{:?}", plan.steps().collect::<Vec<_>>());
    let mut other = Planner::adopting(memory.snapshot(), Room::default());
    other = other.with_unserved(UnservedPolicy::Drop);
    let mut node = Node(Planner::new(), memory);
    node.1.carry_out(&other.plan(wanted()));
    std::mem::swap(&mut node.0, &mut other);
    assert_eq!(silence_of(node.carry_out(Change::default())), Silence::Always as u8);
    let mut node = Node(Planner::adopting(node.1.snapshot(), Room::default()), node.1);
    assert_eq!(node.carry_out(change([])), None);
}

/// Node and Service change in one plan: no entry is removed that was just written.
#[test]
fn an_address_may_change_its_roles_twice_in_one_plan() {
    let mut node = Node::new();
    node.carry_out(Change { node_addresses: Some(addresses(&[ADDRESS])), ..Change::default() });
    let together = Change {
        node_addresses: Some(BTreeSet::new()),
        ..change([(key("web"), Some(balanced(80)))])
    };
    assert_eq!(silence_of(node.carry_out(together)), Silence::Never as u8);
    let back =
        Change { node_addresses: Some(addresses(&[ADDRESS])), ..change([(key("web"), None)]) };
    let entry = node.carry_out(back).expect("the node's");
    assert_eq!(entry.kind, FrontendKind::NodeAddress as u8);
}
