//! Changes of this machine's network.

use super::*;

fn device(name: &str) -> lb_network::Device {
    lb_network::Device { name: name.to_owned(), ..lb_network::Device::default() }
}

#[test]
fn a_failed_write_of_an_interface_is_retried_and_delays_nothing() {
    let mut case = Case::new();
    case.memory.0.lock().unwrap().broken_devices.insert(2);
    let came = ["eth0", "eth1", "eth2"].map(|name| Some(device(name)));
    case.agent.take_in_network(lb_network::NetworkEvent::Devices((1..).zip(came).collect()));
    let written = || case.memory.0.lock().unwrap().devices.clone();
    assert_eq!(written().into_keys().collect::<Vec<_>>(), [1, 3]);
    assert!(case.reporter.report().network.is_some_and(|why| why.contains("os error 7")));
    assert_eq!(case.reporter.report().waiting, None);

    let mut case = case;
    case.service("web", "10.96.0.1");
    assert!(case.memory.led_to().contains_key("10.96.0.1"), "Services do not wait");
    assert!(case.is_healthy());
    case.agent.retry();
    assert!(case.agent.retry_at().is_some(), "still broken");

    // Only the last of several changes matters.
    let renamed = BTreeMap::from([(2, Some(device("uplink")))]);
    case.agent.take_in_network(lb_network::NetworkEvent::Devices(renamed));
    let epoch = {
        let mut held = case.memory.0.lock().unwrap();
        held.broken_devices.clear();
        held.epoch
    };
    case.agent.retry();
    assert_eq!(case.agent.retry_at(), None);
    assert_eq!(case.reporter.report().network, None);
    let held = case.memory.0.lock().unwrap();
    assert_eq!(held.devices[&2], "uplink");
    assert!(held.epoch > epoch, "next hops resolved without the interface are invalid");
}

#[test]
fn failed_writes_of_node_addresses_are_retried() {
    let mut case = Case::new();
    case.memory.0.lock().unwrap().broken_addresses = true;
    let addresses = BTreeSet::from([IpAddr::from([192, 0, 2, 1])]);
    case.agent.take_in_network(lb_network::NetworkEvent::NodeAddresses(addresses.clone()));
    case.service("web", "10.96.0.1");
    assert!(case.is_healthy());
    assert!(case.reporter.report().network.is_some());
    case.memory.0.lock().unwrap().broken_addresses = false;
    case.agent.retry();
    assert_eq!(case.memory.0.lock().unwrap().addresses, addresses);
    assert_eq!((case.agent.retry_at(), case.reporter.report().network), (None, None));
}

/// Packets from a link that name a loopback address must match nothing: only sockets of processes do.
#[test]
fn loopback_addresses_with_node_ports_are_in_no_map_that_packets_use() {
    let mut case = Case::new();
    case.service("web", "10.96.0.1");
    let mut writes_of = |addresses: &[[u8; 4]]| {
        let before = case.memory.writes();
        let addresses: BTreeSet<IpAddr> = addresses.iter().copied().map(IpAddr::from).collect();
        case.agent.take_in_network(lb_network::NetworkEvent::NodeAddresses(addresses.clone()));
        assert_eq!(case.memory.0.lock().unwrap().addresses, addresses, "for sockets");
        case.memory.writes() - before
    };
    assert!(writes_of(&[[192, 0, 2, 1]]) > 0);
    assert_eq!(writes_of(&[[127, 0, 0, 1], [192, 0, 2, 1]]), 0);
    assert_eq!(writes_of(&[[192, 0, 2, 1]]), 0);
}

#[test]
fn a_cluster_ip_of_an_interface_is_left_to_the_node_while_it_is_there() {
    let mut case = Case::new();
    case.service("dns", "10.96.0.10");
    case.service("web", "10.96.0.1");
    let both = ["10.96.0.1", "10.96.0.10"];
    let led_to = |case: &Case| case.memory.led_to().into_keys().collect::<Vec<_>>();
    assert_eq!(led_to(&case), both);
    let own = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| address.parse().expect("an address"));
        lb_network::NetworkEvent::OwnAddresses(addresses.collect())
    };
    case.agent.take_in_network(own(&["192.0.2.1", "10.96.0.10", "169.254.20.10"]));
    assert_eq!(led_to(&case), ["10.96.0.1"]);
    // What is read of nodes anew changes nothing.
    case.node(json!({}));
    case.service("dns", "10.96.0.10");
    assert_eq!(led_to(&case), ["10.96.0.1"]);
    case.agent.take_in_network(own(&["192.0.2.1"]));
    assert_eq!(led_to(&case), both);
}

#[test]
fn before_all_services_are_known_a_change_is_written_and_nothing_planned() {
    let mut case = Case::new();
    case.agent.store_event(applied(service("web", "10.96.0.1")));
    let epoch = case.memory.0.lock().unwrap().epoch;
    let addresses = BTreeSet::from([IpAddr::from([192, 0, 2, 1])]);
    case.agent.note_network(lb_network::NetworkEvent::Devices(BTreeMap::from([(
        1,
        Some(device("eth0")),
    )])));
    case.agent.note_network(lb_network::NetworkEvent::NodeAddresses(addresses.clone()));
    case.agent.note_network(lb_network::NetworkEvent::Epoch);
    assert!(case.memory.led_to().is_empty());
    let held = case.memory.0.lock().unwrap();
    assert_eq!(held.devices[&1], "eth0");
    assert_eq!(held.addresses, addresses);
    assert!(held.epoch > epoch);
}

#[test]
fn a_new_address_of_this_node_writes_only_the_backends_there() {
    let mut case = Case::new();
    case.service("web", "10.96.0.1");
    case.endpoints("web", &["10.7.0.1", "10.244.0.1"]);
    let mut writes_of = |addresses: &[[u8; 4]]| {
        let before = case.memory.writes();
        let addresses = addresses.iter().copied().map(IpAddr::from).collect();
        case.agent.take_in_network(lb_network::NetworkEvent::OwnAddresses(addresses));
        case.memory.writes() - before
    };
    assert_eq!(writes_of(&[[192, 0, 2, 1]]), 0);
    assert_eq!(writes_of(&[[192, 0, 2, 1], [10, 7, 0, 1]]), 1);
    assert_eq!(writes_of(&[[10, 7, 0, 1]]), 0);
    assert_eq!(writes_of(&[]), 1);
}
