//! SideEntryMaps: what is looked up beside frontends, pools and backends.

use lb_common::layout::Forwarding;

use super::*;

/// A Service with session affinity and one source range.
fn particular(endpoints: &[&str]) -> ServicePort {
    let mut port = service_port("10.96.0.1", endpoints);
    port.affinity = Some(std::time::Duration::from_secs(60));
    port.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    port
}

#[test]
fn details_are_written_before_the_frontend_and_removed_with_it() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let wanted = particular(&["10.244.0.1", "10.244.0.2"]);
    let plan = planner.plan(change([(key("web"), Some(wanted))]));
    let of =
        |found: fn(&Step) -> bool| plan.steps().enumerate().filter(move |(_, step)| found(step));
    let last_detail = of(|step| matches!(step, Step::SetSideEntry(_))).map(|(at, _)| at).max();
    let frontend = of(|step| matches!(step, Step::SetFrontend { .. })).map(|(at, _)| at).min();
    assert!(last_detail < frontend, "{last_detail:?}, {frontend:?}");
    memory.carry_out(&plan);
    assert_eq!(
        memory.side_entries.len(),
        4,
        "two members, a range, a name: {:?}",
        memory.side_entries
    );

    memory.carry_out(&planner.plan(change([(key("web"), Some(particular(&["10.244.0.2"])))])));
    assert_eq!(memory.looked_up().len(), 2, "{:?}", memory.side_entries);
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(memory.side_entries, BTreeSet::new());
}

#[test]
fn adopted_details_are_kept_or_removed_with_their_service_port() {
    let mut memory = Memory::default();
    let before = change([
        (key("web"), Some(particular(&["10.244.0.1"]))),
        (
            key("gone"),
            Some(ServicePort { frontends: BTreeSet::new(), ..particular(&["10.244.0.2"]) }),
        ),
    ]);
    memory.carry_out(&Planner::new().plan(before));
    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    memory.carry_out(&planner.plan(change([(key("web"), Some(particular(&["10.244.0.1"])))])));
    assert_eq!(memory.looked_up().len(), 2, "{:?}", memory.side_entries);
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(memory.side_entries, BTreeSet::new());
}

#[test]
fn a_name_exists_as_long_as_its_service_port() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let port = || Some(service_port("10.96.0.1", &["10.244.0.1"]));
    let named = |memory: &Memory| memory.owners().into_iter().map(|(_, n)| n).collect::<Vec<_>>();
    memory.carry_out(&planner.plan(change([(key("web"), port())])));
    assert_eq!(named(&memory), ["default/web:http (protocol 6, IPv4)"]);
    // The frontend moves to another service port; the index and its name do not.
    memory.carry_out(&planner.plan(change([(key("web"), None), (key("new"), port())])));
    assert_eq!(named(&memory), ["default/new:http (protocol 6, IPv4)"]);
    memory.carry_out(&planner.plan(change([(key("new"), None)])));
    assert_eq!(memory.side_entries, BTreeSet::new());
}

/// Maps of an agent that wrote no names, or of another Service at the same address.
#[test]
fn missing_and_wrong_names_are_fixed_by_the_first_plan() {
    let port = |address: &str| Some(service_port(address, &["10.244.0.1"]));
    let mut memory = Memory::default();
    let before = [(key("web"), port("10.96.0.1")), (key("old"), port("10.96.0.2"))];
    memory.carry_out(&Planner::new().plan(change(before)));
    let mut without_names = memory.clone();
    without_names.side_entries.clear();
    // For an index without any other entry.
    let stray = names::side_entry(77, &key("stray"));
    memory.side_entries.insert(stray);

    for mut memory in [memory, without_names] {
        let mut planner = Planner::adopting(memory.snapshot(), Room::default());
        let wanted = [(key("web"), port("10.96.0.1")), (key("new"), port("10.96.0.2"))];
        for step in planner.plan(change(wanted)).steps() {
            memory.apply(step);
        }
        let names: Vec<String> = memory.owners().into_iter().map(|(_, name)| name).collect();
        let of = |name| format!("default/{name}:http (protocol 6, IPv4)");
        assert_eq!(names, [of("web"), of("new")]);
        assert!(memory.owners().iter().all(|(frontend, _)| frontend.is_some()));
    }
}

#[test]
fn tunnel_targets_are_the_local_backends_of_tunnelled_services() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut port = service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2"]);
    let node = Some("10.7.0.2".parse().unwrap());
    port.cluster.insert(Backend {
        address: "10.244.9.9".parse().unwrap(),
        port: 8080,
        local: false,
        node,
        weight: DEFAULT_WEIGHT,
    });
    for (forwarding, targets) in
        [(Forwarding::Gue, 2), (Forwarding::Masquerade, 0), (Forwarding::Ipip, 2)]
    {
        let wanted = ServicePort { forwarding, ..port.clone() };
        memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
        // Targets of the port, without the entry of the address itself.
        let frontends = memory.targets().into_iter().filter(|(key, ..)| key.port == 80);
        assert_eq!(frontends.count(), targets, "{forwarding:?}");
        let web = memory.frontends.iter().find(|(key, _)| key.port == 80);
        assert_eq!(web.unwrap().1.forwarding, forwarding as u8);
    }
    let (_, _, elsewhere) = memory.find("10.244.9.9").unwrap();
    assert_eq!(elsewhere.node, node);
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(memory.side_entries, BTreeSet::new());
}

#[test]
fn frontends_of_lent_ports_use_no_tunnels() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut port = ServicePort { forwarding: Forwarding::Auto, ..tunnelled() };
    let node_address = "192.0.2.1".parse().unwrap();
    let of_the_node = |kind| lb_rules::model::Frontend { address: node_address, port: 80, kind };
    port.frontends.insert(of_the_node(lb_common::layout::FrontendKind::LoadBalancer));
    // Lent, a virtual address that happens to be equal, and lent again.
    for (lent, forwarding) in [
        (Some(node_address), Forwarding::Masquerade),
        (None, Forwarding::Auto),
        (Some(node_address), Forwarding::Masquerade),
    ] {
        port.lent = lent.into_iter().collect();
        memory.carry_out(&planner.plan(change([(key("web"), Some(port.clone()))])));
        let forwarding_at = |address: &str| {
            let address = address.parse::<std::net::IpAddr>().unwrap();
            let found =
                memory.frontends.iter().find(|(key, _)| key.address == address && key.port == 80);
            found.unwrap().1.forwarding
        };
        assert_eq!(forwarding_at("192.0.2.1"), forwarding as u8);
        assert_eq!(forwarding_at("10.96.0.1"), Forwarding::Auto as u8);
    }
}

fn peers(addresses: &[&str]) -> Change {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Change { peers: Some(addresses), ..Change::default() }
}

fn tunnelled() -> ServicePort {
    ServicePort { forwarding: Forwarding::Ipip, ..service_port("10.96.0.1", &["10.244.0.1"]) }
}

fn held_peers(memory: &Memory) -> Vec<String> {
    let peers =
        memory.side_entries.iter().filter(|side_entry| matches!(side_entry, SideEntry::Peer(_)));
    peers.map(|side_entry| format!("{side_entry:?}")).collect()
}

/// A node's address may change while connections continue.
#[test]
fn peers_are_those_of_the_last_change_also_after_a_restart() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    memory.carry_out(&planner.plan(change([(key("web"), Some(tunnelled()))])));
    memory.carry_out(&planner.plan(peers(&["10.7.0.1", "fd07::1"])));
    memory.carry_out(&planner.plan(peers(&["10.7.0.1", "10.7.0.2"])));
    assert_eq!(held_peers(&memory), ["Peer(10.7.0.1)", "Peer(10.7.0.2)"]);
    assert!(planner.plan(peers(&["10.7.0.1", "10.7.0.2"])).is_empty());
    // A change without nodes leaves them as they are.
    memory.carry_out(&planner.plan(change([])));
    assert_eq!(held_peers(&memory).len(), 2);

    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    let again = Change {
        peers: peers(&["10.7.0.2", "10.7.0.3"]).peers,
        ..change([(key("web"), Some(tunnelled()))])
    };
    memory.carry_out(&planner.plan(again));
    assert_eq!(held_peers(&memory), ["Peer(10.7.0.2)", "Peer(10.7.0.3)"]);
}

#[test]
fn peers_are_accepted_only_while_a_service_uses_tunnels() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    memory.carry_out(&planner.plan(peers(&["10.7.0.1"])));
    let plain = || service_port("10.96.0.1", &["10.244.0.1"]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(plain()))])));
    assert!(held_peers(&memory).is_empty(), "no Service uses tunnels");
    memory.carry_out(&planner.plan(change([(key("web"), Some(tunnelled()))])));
    assert_eq!(held_peers(&memory), ["Peer(10.7.0.1)"]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(plain()))])));
    assert!(held_peers(&memory).is_empty(), "it does no more");
    memory.carry_out(&planner.plan(change([(key("web"), Some(tunnelled()))])));
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert!(held_peers(&memory).is_empty(), "it is gone");
}
