//! Views of tables that a plan has made, without a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::header::protocol;
use lb_common::layout::{FlowKind, FlowState, Forwarding, FrontendKind, Ticks};
use lb_common::maglev::{DEFAULT_WEIGHT, Weight};
use lb_plan::{Change, FoundBackend, Planner, Snapshot, Step};
use lb_rules::model::{
    self, AddressFamily, Protocol, ServiceName, ServicePort, ServicePortKey, TrafficPolicy,
};

use super::*;

fn key(namespace: &str, name: &str, port: &str) -> ServicePortKey {
    ServicePortKey {
        service: ServiceName::new(namespace, name),
        port: port.to_owned(),
        protocol: Protocol::Tcp,
        family: AddressFamily::V4,
    }
}

fn frontend(end: &str, kind: FrontendKind) -> model::Frontend {
    let end: SocketAddr = end.parse().unwrap();
    model::Frontend { address: end.ip(), port: end.port(), kind }
}

fn endpoints(addresses: &[&str]) -> BTreeSet<model::Backend> {
    let backend = |address: &&str| {
        let address: IpAddr = address.parse().unwrap();
        let local = address.to_string().starts_with("10.244.1.");
        let node = (!local).then(|| "10.7.0.2".parse().unwrap());
        model::Backend { address, port: 8080, local, node, weight: DEFAULT_WEIGHT }
    };
    addresses.iter().map(backend).collect()
}

/// `shop/web` with two kinds of frontends and one endpoint on this node; `default/dns`, which
/// has no backend.
fn wanted() -> BTreeMap<ServicePortKey, Option<ServicePort>> {
    let web = ServicePort {
        frontends: BTreeSet::from([
            frontend("10.96.0.1:80", FrontendKind::ClusterIp),
            frontend("203.0.113.10:80", FrontendKind::LoadBalancer),
            frontend("0.0.0.0:30080", FrontendKind::NodePort),
        ]),
        cluster: endpoints(&["10.244.1.10", "10.244.2.10", "10.244.2.11"]),
        local: endpoints(&["10.244.1.10"]),
        populated: true,
        external_policy: TrafficPolicy::Local,
        affinity: Some(Duration::from_secs(60)),
        source_ranges: vec!["192.0.2.0/24".parse().unwrap()],
        ..ServicePort::default()
    };
    let dns = ServicePort {
        frontends: BTreeSet::from([frontend("10.96.0.2:53", FrontendKind::ClusterIp)]),
        ..ServicePort::default()
    };
    let ports = [(key("shop", "web", "http"), web), (key("default", "dns", ""), dns)];
    ports.into_iter().map(|(key, port)| (key, Some(port))).collect()
}

/// What the kernel would hold after a plan of all this.
fn read(service_ports: BTreeMap<ServicePortKey, Option<ServicePort>>) -> Reading {
    let shared = |(key, port): (_, Option<ServicePort>)| (key, port.map(Into::into));
    let service_ports = service_ports.into_iter().map(shared).collect();
    let plan = Planner::new().plan(Change { service_ports, ..Change::default() });
    let (mut snapshot, mut slots, mut pools) =
        (Snapshot::default(), BTreeMap::new(), BTreeMap::new());
    for step in plan.steps() {
        match step.clone() {
            Step::SetFrontend { key, value } => snapshot.frontends.push((key, value)),
            Step::SetSideEntry(entry) => snapshot.side_entries.push(entry),
            Step::SetBackend { index, backend, state, generation } => {
                let backend = Some((backend, state));
                snapshot.backends.push(FoundBackend { index, generation, backend });
            }
            Step::WriteTable { offset, table } => slots.extend((offset..).zip(table.slots())),
            Step::SwapPool { index, pool } => {
                let region = pool.offset..pool.offset + pool.size;
                pools.insert(index, region.map(|slot| slots[&slot]).collect());
            }
            _ => {}
        }
    }
    Reading::of_snapshot(&snapshot, pools)
}

fn reading() -> Reading {
    read(wanted())
}

fn everything() -> Selector {
    Selector::default()
}

#[test]
fn a_service_is_shown_with_its_frontends_policies_and_pools() {
    let all = list_services(&reading(), &everything());
    let names: Vec<String> = all.iter().map(|s| format!("{}/{}", s.namespace, s.name)).collect();
    assert_eq!(names, ["default/dns", "shop/web"]);

    let web = &all[1].ports[0];
    assert_eq!((web.name.as_str(), web.protocol, web.family), ("http", "TCP", "IPv4"));
    let destination: Vec<String> = web.frontends.iter().map(Destination::end).collect();
    assert_eq!(destination, ["*:30080", "10.96.0.1:80", "203.0.113.10:80"]);
    let policies = (web.internal_traffic_policy, web.external_traffic_policy);
    assert_eq!(policies, ("Cluster", "Local"));
    assert_eq!(web.session_affinity_seconds, Some(60));
    assert_eq!(web.source_ranges, ["192.0.2.0/24"]);
    assert_eq!(web.local_pool.backends.len(), 1);
    assert_eq!(web.cluster_pool.backends.len(), 3);
    let slots: u32 = web.cluster_pool.backends.iter().map(|member| member.slots).sum();
    assert_eq!(slots as usize, web.cluster_pool.slots);
    assert_eq!(web.backends().count(), 3, "each once");
    assert_eq!(all[0].ports[0].cluster_pool, ListedPool::default());
}

#[test]
fn a_service_that_uses_tunnels_where_it_can_is_shown_with_the_nodes_that_they_lead_to() {
    let mut wanted = wanted();
    for (key, port) in &mut wanted {
        let auto = key.service.name == "web";
        port.as_mut().unwrap().forwarding =
            if auto { Forwarding::Auto } else { Forwarding::Masquerade };
    }
    let mut reading = read(wanted);
    let tunnel_nodes = |reading: &Reading| {
        let all = list_services(reading, &everything());
        assert_eq!(all[0].ports[0].tunnel_nodes, None, "masqueraded to all");
        all[1].ports[0].tunnel_nodes.unwrap()
    };
    assert_eq!(tunnel_nodes(&reading), TunnelNodes { decapsulating: 0, all: 0 });
    let nodes = ["10.7.0.2", "10.7.0.3", "2001:db8::2"].map(|node| node.parse().unwrap());
    reading.count_tunnel_nodes(nodes.into_iter(), &BTreeSet::from([nodes[1], nodes[2]]));
    assert_eq!(tunnel_nodes(&reading), TunnelNodes { decapsulating: 1, all: 2 });
}

#[test]
fn services_are_chosen_by_namespace_name_and_port() {
    let count = |text: &str| list_services(&reading(), &text.parse().unwrap()).len();
    assert_eq!((count("web"), count("shop/web"), count("default/web")), (1, 1, 0));
    assert_eq!(
        (count("web:http"), count("web:80"), count("web:30080"), count("web:81")),
        (1, 1, 1, 0)
    );
    let within = everything().within(Some("default"));
    assert_eq!(list_services(&reading(), &within)[0].name, "dns");
}

#[test]
fn the_names_in_json_are_camel_case() {
    let json = serde_json::to_value(list_services(&reading(), &everything())).unwrap();
    let port = &json[1]["ports"][0];
    assert_eq!(port["externalTrafficPolicy"], "Local");
    assert_eq!(port["sessionAffinitySeconds"], 60);
    assert_eq!(port["localPool"]["backends"][0]["address"], "10.244.1.10:8080");
    assert_eq!(port["traffic"]["forwardPackets"], 0);
    assert_eq!(port["frontends"][0]["address"], serde_json::Value::Null);
}

#[test]
fn a_frontend_shows_the_backends_of_internal_clients() {
    let all = list_frontends(&reading(), &everything());
    let shown = |address: &str| {
        let found = all.iter().find(|frontend| frontend.address == address).unwrap();
        (found.service.as_str(), found.kind, found.backends.len())
    };
    assert_eq!(shown("10.96.0.1:80"), ("web", "ClusterIP", 3), "policy Cluster");
    assert_eq!(shown("203.0.113.10:80"), ("web", "LoadBalancer", 1), "policy Local");
    assert_eq!(shown("*:30080"), ("web", "NodePort", 1));
    assert_eq!(shown("10.96.0.2:53"), ("dns", "ClusterIP", 0));
    assert_eq!(all[0].service, "dns", "by namespace and name");
    assert_eq!(list_frontends(&reading(), &"shop/web".parse().unwrap()).len(), 3);
}

#[test]
fn a_backend_shows_its_node_and_its_services() {
    let all = list_backends(&reading(), &everything());
    let addresses: Vec<&str> = all.iter().map(|backend| backend.address.as_str()).collect();
    assert_eq!(addresses, ["10.244.1.10:8080", "10.244.2.10:8080", "10.244.2.11:8080"]);
    let [here, there, _] = &all[..] else { panic!("three") };
    assert!(here.local && here.node.is_none() && here.state == "serving");
    let scopes: Vec<_> = here.serves.iter().map(|s| (s.service.as_str(), s.scope)).collect();
    assert_eq!(scopes, [("web", "cluster"), ("web", "local")]);
    assert_eq!(here.serves[1].slots as usize, here.serves[1].of_slots);
    assert_eq!(there.node, Some("10.7.0.2".parse().unwrap()));
    assert_eq!(there.serves.len(), 1);
}

#[test]
fn a_draining_backend_is_shown_unless_one_service_is_asked_for() {
    let mut reading = reading();
    let index = *reading.backends.keys().next().unwrap();
    reading.backends.get_mut(&index).unwrap().state.draining = true;
    for slots in reading.pools.values_mut() {
        slots.retain(|slot| *slot != index);
    }
    let all = list_backends(&reading, &everything());
    let draining: Vec<_> = all.iter().filter(|backend| backend.state == "draining").collect();
    assert_eq!(draining.len(), 1);
    assert!(draining[0].serves.is_empty());
    assert_eq!(list_backends(&reading, &"shop/web".parse().unwrap()).len(), 2);
}

#[test]
fn without_names_service_ports_go_by_their_index() {
    let mut nameless = reading();
    let indexes: Vec<u32> = nameless.service_ports.keys().copied().collect();
    nameless.service_ports.clear();
    nameless.name_the_nameless();
    assert_eq!(nameless.service_ports.keys().copied().collect::<Vec<_>>(), indexes);
    let all = list_services(&nameless, &everything());
    assert!(all.iter().all(|service| service.namespace == "?"));
    assert_eq!(all[0].name, indexes[0].to_string());
}

fn record(
    client: &str,
    frontend: &str,
    backend: &str,
    state: FlowPhase,
    service_port: u32,
) -> FlowRecord {
    let end = |text: &str| text.parse().unwrap();
    FlowRecord {
        state,
        seen: Ticks::from_nanoseconds(5_000_000_000),
        protocol: protocol::TCP,
        client: end(client),
        frontend: end(frontend),
        backend: end(backend),
        snat: end(client),
        kind: FlowKind::default(),
        service_port,
    }
}

/// Two through `shop/web`, one through a Service that is gone whose index `shop/web` has now.
fn records(reading: &Reading) -> Vec<FlowRecord> {
    let web = reading.frontends.values().find(|frontend| frontend.restricted == 1).unwrap();
    let web = web.service_port;
    let (one, other) = ("10.244.1.10:8080", "10.244.2.10:8080");
    let mut forwarded =
        record("198.51.100.1:2000", "192.0.2.1:30080", other, FlowPhase::Established, web);
    forwarded.kind = FlowKind::FORWARDED.and(FlowKind::SNAT);
    forwarded.snat = "10.0.0.1:1024".parse().unwrap();
    vec![
        forwarded,
        record("192.0.2.7:1000", "203.0.113.10:80", one, FlowPhase::Nascent, web),
        record("192.0.2.8:1000", "203.0.113.99:80", one, FlowPhase::Established, web),
    ]
}

fn meant(filter: &Filter) -> Vec<ListedFlow> {
    let reading = reading();
    let now = Ticks::from_nanoseconds(7_000_000_000);
    list_flows(records(&reading).into_iter(), filter, &FlowOwners::of(&reading), now)
}

#[test]
fn flows_are_in_the_order_of_clients_and_named_as_far_as_they_can_be() {
    let all = meant(&Filter::default());
    let seen: Vec<_> = all.iter().map(|f| (f.client.as_str(), f.service.as_str())).collect();
    let expected =
        [("192.0.2.7:1000", "web"), ("192.0.2.8:1000", ""), ("198.51.100.1:2000", "web")];
    assert_eq!(seen, expected, "the index of a Service that is gone is another one's");
    assert!((all[0].idle_seconds - 2.0).abs() < 0.1, "{}", all[0].idle_seconds);
    assert_eq!((all[0].path, all[0].snat.as_deref()), ("stack", None));
    assert_eq!((all[2].path, all[2].snat.as_deref()), ("forwarded", Some("10.0.0.1:1024")));
}

#[test]
fn flows_are_chosen_by_client_service_backend_and_state() {
    let clients = |filter: Filter| -> Vec<String> {
        let found = meant(&filter);
        let counted = count_of(&filter);
        assert_eq!(counted.total, found.len() as u64, "they are counted as they are shown");
        found.into_iter().map(|flow| flow.client).collect()
    };
    let (seven, eight, far) = ("192.0.2.7:1000", "192.0.2.8:1000", "198.51.100.1:2000");
    let filter = Filter::default;
    let network = Some("192.0.2.0/24".parse().unwrap());
    assert_eq!(clients(Filter { client: network, ..filter() }), [seven, eight]);
    let v6 = Some("2001:db8::/32".parse().unwrap());
    assert_eq!(clients(Filter { client: v6, ..filter() }), [""; 0]);
    let backend = |text: &str| Some(text.parse().unwrap());
    assert_eq!(clients(Filter { backend: backend("10.244.2.10"), ..filter() }), [far]);
    assert_eq!(
        clients(Filter { backend: backend("10.244.1.10:8080"), ..filter() }),
        [seven, eight]
    );
    assert_eq!(clients(Filter { backend: backend("10.244.1.10:80"), ..filter() }), [""; 0]);
    let established = Some(FlowPhase::Established);
    assert_eq!(clients(Filter { state: established, ..filter() }), [eight, far]);
    let service = |text: &str| text.parse().unwrap();
    assert_eq!(clients(Filter { service: service("shop/web"), ..filter() }), [seven, far]);
    assert_eq!(clients(Filter { service: service("web:30080"), ..filter() }), [far]);
    let both = Filter { service: service("shop/web"), state: established, ..filter() };
    assert_eq!(clients(both), [far]);
}

fn count_of(filter: &Filter) -> FlowCounts {
    let reading = reading();
    count_flows(records(&reading).into_iter(), filter, &FlowOwners::of(&reading))
}

#[test]
fn states_are_counted_without_their_records() {
    let states = [
        FlowState::Free,
        FlowState::Claimed,
        FlowState::SynSent,
        FlowState::Established,
        FlowState::FinFromClient,
        FlowState::FinFromBackend,
    ];
    let all = FlowCounts::of_states(states.into_iter(), &Filter::default());
    assert_eq!(
        (all.total, all.by_state[&FlowPhase::Closing], all.by_state[&FlowPhase::Closed]),
        (4, 2, 0)
    );
    let closing = Filter { state: Some(FlowPhase::Closing), ..Filter::default() };
    assert!(!closing.needs_records());
    assert_eq!(FlowCounts::of_states(states.into_iter(), &closing).total, 2);
    let json = serde_json::to_value(&all).unwrap();
    assert_eq!((&json["total"], &json["byState"]["closing"]), (&4.into(), &2.into()));
}

#[test]
fn ends_may_lack_their_port() {
    let end = |text: &str| text.parse::<FlowEnd>().map(|end| (end.address.to_string(), end.port));
    assert_eq!(end("10.244.1.10"), Ok(("10.244.1.10".to_owned(), None)));
    assert_eq!(end("[fd00::1]:80"), Ok(("fd00::1".to_owned(), Some(80))));
    assert_eq!(end("[fd00::1]"), Ok(("fd00::1".to_owned(), None)));
    assert_eq!(end("fd00::1"), Ok(("fd00::1".to_owned(), None)));
    assert!(end("web").is_err() && end("10.244.1.10:x").is_err());
}

#[test]
fn a_table_is_what_its_backends_make_and_a_departure_moves_its_own_share_at_least() {
    let all = list_spreads(&reading(), &"shop/web".parse().unwrap());
    let [cluster, local] = &all[..] else { panic!("two pools: {all:?}") };
    assert_eq!((cluster.scope, local.scope), ("cluster", "local"));
    assert!(cluster.as_computed && local.as_computed);
    let slots: u32 = cluster.backends.iter().map(|share| share.slots).sum();
    assert_eq!(slots as usize, cluster.slots);
    let Evenness { min_slots, max_slots, deviation_percent, .. } = cluster.evenness;
    assert!(max_slots - min_slots <= 4 && deviation_percent < 2.0, "{:?}", cluster.evenness);
    for share in &cluster.backends {
        let moved = share.if_it_left.moved_percent;
        assert!(moved > share.percent - 0.01 && moved <= 100.0, "{share:?}");
    }
    assert_eq!(local.backends[0].if_it_left.moved_percent, 100.0, "no backend is left");
    assert_eq!(local.backends[0].if_it_left.slots, 0);
    assert!(list_spreads(&reading(), &"default/dns".parse().unwrap()).is_empty());
}

/// Where the size of the table stays, few connections move that were not the leaver's.
#[test]
fn a_departure_disturbs_few_others_where_the_table_keeps_its_size() {
    let addresses: Vec<String> = (0..60).map(|n| format!("10.244.2.{n}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let mut ports = wanted();
    ports.values_mut().flatten().for_each(|port| port.cluster = endpoints(&addresses));
    let all = list_spreads(&read(ports), &"shop/web".parse().unwrap());
    for share in &all[0].backends {
        assert_eq!(share.if_it_left.slots as usize, all[0].slots);
        assert!(share.if_it_left.of_others_percent < 4.0, "{share:?}");
    }
}

#[test]
fn a_table_that_its_backends_do_not_make_is_noticed() {
    let mut damaged = reading();
    for slots in damaged.pools.values_mut().filter(|slots| slots.len() > 1) {
        slots.rotate_left(1);
    }
    let all = list_spreads(&damaged, &"shop/web".parse().unwrap());
    assert!(!all[0].as_computed && all[1].as_computed);
}

#[test]
fn weights_are_shown_with_the_shares_that_they_give() {
    let mut ports = wanted();
    let weight = |backend: model::Backend| {
        let heavy = backend.address.to_string() == "10.244.2.11";
        model::Backend {
            weight: if heavy { Weight::new(800).unwrap() } else { backend.weight },
            ..backend
        }
    };
    for port in ports.values_mut().flatten() {
        port.cluster = std::mem::take(&mut port.cluster).into_iter().map(weight).collect();
    }
    let weighted = read(ports);
    let all = list_spreads(&weighted, &"shop/web".parse().unwrap());
    assert!(all[0].as_computed);
    let shares = all[0].backends.iter().map(|share| (share.weight.get(), share.slots > 200));
    assert_eq!(shares.collect::<Vec<_>>(), [(100, false), (100, false), (800, true)]);

    let members =
        |reading: &Reading| list_services(reading, &everything())[1].ports[0].cluster_pool.clone();
    let (with, without) = (members(&weighted), members(&reading()));
    assert_eq!(with.backends[2].weight.get(), 800);
    assert_ne!(with.checksum, without.checksum);
    let serves = list_backends(&weighted, &"shop/web".parse().unwrap());
    let serves = serves.iter().flat_map(|backend| &backend.serves);
    assert_eq!(serves.filter(|serves| serves.weight.get() == 800).count(), 1);
}
