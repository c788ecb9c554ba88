//! An agent starts on in-memory tables that an earlier one left.

use std::thread;

use lb_common::layout::Forwarding;
use lb_common::maglev::Weight;

use super::*;

fn shared(ports: &BTreeMap<ServicePortKey, Arc<ServicePort>>) -> Change {
    let service_ports = ports.iter().map(|(key, port)| (key.clone(), Some(Arc::clone(port))));
    Change { service_ports: service_ports.collect(), ..Change::default() }
}

/// What an agent with this room leaves after planning all these. Does not check every step.
fn left_by(room: Room, ports: &BTreeMap<ServicePortKey, Arc<ServicePort>>) -> Memory {
    let mut memory = Memory::default();
    let plan = Planner::with_room(room).plan(shared(ports));
    assert_eq!(plan.problems, []);
    plan.steps().for_each(|step| memory.apply(step));
    memory
}

/// Restarts without changes.
fn restart(
    room: Room,
    replicas: impl IntoIterator<Item = u32>,
) -> (Memory, BTreeMap<ServicePortKey, Arc<ServicePort>>) {
    let ports: BTreeMap<_, _> =
        services(replicas).map(|(key, port)| (key, Arc::new(port))).collect();
    let memory = left_by(room, &ports);
    let mut planner = Planner::adopting(memory.snapshot(), room);
    let tables = planner.adopted_tables().unwrap();
    let plan = thread::scope(|scope| {
        scope.spawn(|| tables.compare_all());
        planner.plan(shared(&ports))
    });
    assert_eq!(plan.steps().count(), 0, "{:?}", plan.steps().next());
    assert_eq!(plan.problems, []);
    (memory, ports)
}

#[test]
fn a_restart_with_10_000_services_of_10_costs_no_step_and_one_endpoint_few() {
    let room = Room::default();
    let (memory, mut ports) = restart(room, (0..10_000).map(|_| 10));
    let changed = ports.values_mut().next_back().unwrap();
    Arc::make_mut(changed).cluster.pop_first();
    let mut planner = Planner::adopting(memory.snapshot(), room);
    let plan = planner.plan(shared(&ports));
    let tables = plan.steps().filter(|step| matches!(step, Step::WriteTable { .. })).count();
    assert!(tables == 1 && plan.steps().count() < 8, "{:?}", plan.steps().collect::<Vec<_>>());
}

#[test]
fn a_restart_with_20_000_services_of_3_costs_no_step() {
    restart(Room::default(), (0..20_000).map(|_| 3));
}

/// Room for these values of `--max-service-ports` and `--max-endpoints`.
fn room(service_ports: u32, endpoints: u32) -> Room {
    let pool_slots = endpoints * lb_common::layout::capacity::SLOTS_PER_BACKEND;
    Room { service_ports, backends: endpoints, pool_slots, ..Room::default() }
}

#[test]
fn a_restart_with_100_000_services_of_3_costs_no_step() {
    restart(room(110_000, 330_000), (0..100_000).map(|_| 3));
}

/// All replica counts from 1 to 1,000, repeated until no endpoints remain.
#[test]
fn a_restart_with_all_endpoints_in_use_costs_no_step() {
    let mut left = Room::default().backends - 1;
    let replicas = (1..=1_000).cycle().map_while(|replicas| {
        let replicas = left.min(replicas);
        left -= replicas;
        (replicas > 0).then_some(replicas)
    });
    restart(Room::default(), replicas);
}

/// With three endpoints, a pool takes the most slots for each endpoint.
#[test]
fn a_restart_with_all_service_ports_in_use_costs_no_step() {
    let Room { service_ports, backends, .. } = Room::default();
    let replicas = backends / service_ports;
    restart(Room::default(), (1..service_ports).map(|_| replicas));
}

/// All kinds of Services.
fn various() -> Change {
    let udp = |name| ServicePortKey { protocol: Protocol::Udp, ..key(name) };
    let pods = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let mut web = with_draining("10.96.0.1", &pods[..2], &pods[2..]);
    web.affinity = Some(std::time::Duration::from_secs(60));
    web.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    web.local = web.cluster.clone();
    web.external_policy = lb_rules::model::TrafficPolicy::Local;
    web.forwarding = Forwarding::Gue;
    web.frontends.insert(lb_rules::model::Frontend {
        address: "0.0.0.0".parse().unwrap(),
        port: 30_080,
        kind: FrontendKind::NodePort,
    });
    let mut elsewhere = service_port("10.96.0.3", &[]);
    // The node's address is of the other family, so this family's entries cannot contain it.
    for (address, node, weight) in [("10.244.1.1", "10.7.0.2", 100), ("10.244.1.2", "fd07::2", 50)]
    {
        elsewhere.cluster.insert(Backend {
            address: address.parse().unwrap(),
            port: 8080,
            local: false,
            node: Some(node.parse().unwrap()),
            weight: Weight::new(weight).unwrap(),
        });
    }
    let ports = [
        (key("web"), Some(web)),
        (udp("dns"), Some(service_port("10.96.0.1", &pods))),
        (key("elsewhere"), Some(elsewhere)),
        (key("nobody"), Some(service_port("10.96.0.4", &[]))),
    ];
    let addresses = |all: &[&str]| Some(all.iter().map(|a| a.parse().unwrap()).collect());
    Change {
        node_addresses: addresses(&["192.0.2.1", "2001:db8::1"]),
        snat_addresses: addresses(&["192.0.2.1", "198.51.100.1"]),
        peers: addresses(&["10.7.0.2", "fd07::2"]),
        ..change(ports)
    }
}

/// Two plans: the first has all pods of `web`, in the second one of them drains.
fn left_by_various() -> Memory {
    let mut memory = Memory::default();
    let mut planner = Planner::new();
    let all = service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2", "10.244.0.3"]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(all))])));
    memory.carry_out(&planner.plan(various()));
    memory
}

#[test]
fn a_restart_with_every_kind_of_service_costs_no_step() {
    let memory = left_by_various();
    assert_eq!(memory.draining().count(), 1);
    let plan = Planner::adopting(memory.snapshot(), Room::default()).plan(various());
    assert_eq!(plan.steps().collect::<Vec<_>>(), Vec::<&Step>::new());
}

#[test]
fn after_a_restart_only_datagram_flows_that_may_not_stay_end() {
    let mut memory = left_by_various();
    let dns = memory.named().find(|(_, name)| name.contains("dns")).unwrap().0;
    let (member, other) = (memory.index_udp("10.244.0.1"), memory.index_udp("10.244.1.1"));
    let flow = |backend, frontend| datagrams(dns, backend, frontend);
    let stays = flow(member.unwrap(), "10.96.0.1:80");
    memory.datagrams.insert(stays);
    let plan = Planner::adopting(memory.snapshot(), Room::default()).plan(various());
    assert!(plan.is_empty(), "{plan:?}");

    assert_eq!(other, None);
    memory.datagrams.insert(flow(77, "10.96.0.1:80"));
    memory.datagrams.insert(flow(member.unwrap(), "10.96.0.9:80"));
    let plan = Planner::adopting(memory.snapshot(), Room::default()).plan(various());
    memory.carry_out(&plan);
    assert_eq!(plan.steps().count(), 1, "{plan:?}");
    assert_eq!(memory.datagrams, BTreeSet::from([stays]));
}

/// Flows may begin between the snapshot and the plan.
#[test]
fn the_datagram_flows_of_a_service_that_is_gone_end() {
    let memory = left_by_various();
    let mut wanted = various();
    wanted.service_ports.retain(|key, _| key.protocol != Protocol::Udp);
    let plan = Planner::adopting(memory.snapshot(), Room::default()).plan(wanted);
    let dns = memory.named().find(|(_, name)| name.contains("dns")).unwrap().0;
    let Some(Step::SweepFlows(sweep)) = plan.steps().last() else { panic!("{plan:?}") };
    let flow = datagrams(dns, memory.index_udp("10.244.0.1").unwrap(), "10.96.0.1:80");
    assert!(!sweep.datagrams.may_stay(&flow));
    assert_eq!(sweep.families, BTreeSet::from([AddressFamily::V4]));
}

type Harm = (&'static str, fn(&mut Memory));

#[test]
fn unfinished_changes_of_an_earlier_agent_are_repaired() {
    let whole = left_by_various();
    let harms: [Harm; 7] = [
        ("a slot", |memory| {
            // It names another member: it looks valid, but connections go to another backend.
            let pool = memory.pools.values().find(|pool| pool.size > 1).unwrap();
            let region = pool.offset as usize..(pool.offset + pool.size) as usize;
            let slots = &mut memory.slots[region];
            slots[0] = *slots.iter().find(|other| **other != slots[0]).unwrap();
        }),
        ("a second entry of a backend", |memory| {
            let unused = memory.backends.keys().next_back().unwrap() + 1;
            let member = memory.index_of("10.244.0.1").0;
            memory.backends.insert(unused, memory.backends[&member]);
        }),
        ("a size that no table has", |memory| {
            memory.pools.values_mut().find(|pool| pool.size > 1).unwrap().size -= 1;
        }),
        ("a frontend", |memory| {
            memory.frontends.pop_last();
        }),
        ("a policy", |memory| {
            memory.frontends.values_mut().for_each(|frontend| frontend.populated ^= 1);
        }),
        ("a bit", |memory| memory.destinations.clear()),
        ("a name", |memory| {
            memory.side_entries.retain(|side_entry| !matches!(side_entry, SideEntry::Name { .. }))
        }),
    ];
    for ((what, harm), is_compared) in
        harms.into_iter().flat_map(|harm| [(harm, false), (harm, true)])
    {
        let mut memory = whole.clone();
        harm(&mut memory);
        let mut planner = Planner::adopting(memory.snapshot(), Room::default());
        if is_compared {
            planner.adopted_tables().unwrap().compare_all();
        }
        let plan = planner.plan(various());
        assert!(!plan.is_empty(), "{what}");
        plan.steps().for_each(|step| memory.apply(step));
        assert_eq!(memory.visible(), whole.visible(), "{what}");
        assert_eq!(memory.destinations, whole.destinations, "{what}");
        assert_eq!(memory.owners(), whole.owners(), "{what}");
    }
}

/// There is room for the existing tables, but not for a second copy.
#[test]
fn a_pool_that_cannot_be_rebuilt_yet_serves_its_members_until_it_can() {
    let members = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let web = service_port("10.96.0.1", &members[..2]);
    let slots = lb_common::maglev::fitted_size(2);
    let room = Room { pool_slots: slots, ..Room::default() };
    let mut memory = Memory::default();
    memory.carry_out(&Planner::with_room(room).plan(change([(key("web"), Some(web))])));
    let before = memory.index_of("10.244.0.1");

    // Other Services come first, and need all the room.
    let mut planner = Planner::adopting(memory.snapshot(), room);
    let wanted = [
        (key("a"), Some(service_port("10.96.0.2", &["10.244.0.9", "10.244.0.8"]))),
        (key("web"), Some(service_port("10.96.0.1", &members[..2]))),
    ];
    let plan = planner.plan(change(wanted));
    memory.carry_out(&plan);
    assert_eq!(plan.lacking, BTreeSet::from([key("a")]));
    assert_eq!(memory.index_of("10.244.0.1"), before);
    assert_eq!(memory.members_at("10.96.0.1").len(), 2, "{plan:?}");
}
