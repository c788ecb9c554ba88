//! The cost of a change of one Service does not depend on how many there are.

use std::time::{Duration, Instant};

use lb_rules::ipam::{Ipam, IpamSettings, Pools, Range};
use lb_rules::model::{Kind, Object, ObjectRef};
use serde_json::json;

use super::object;

fn service(number: usize) -> Object {
    object(
        Kind::Service,
        json!({
            "metadata": {"name": format!("service-{number:06}")},
            "spec": {
                "type": "LoadBalancer", "ports": [{"port": 80}],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"
            }
        }),
    )
}

/// The median cost of deleting and creating one Service.
fn cost(services: usize) -> Duration {
    let ranges = ["10.0.0.0/16", "2001:db8::/64"].map(|text| Range::parse(text).unwrap());
    let mut ipam =
        Ipam::new(IpamSettings { is_alone: true, ..IpamSettings::default() }, Pools::new(&ranges));
    let objects: Vec<Object> = (0..services).map(service).collect();
    objects.iter().for_each(|object| ipam.apply(object));
    assert_eq!(ipam.settle().len(), services);
    let mut times: Vec<Duration> = (0..201)
        .map(|round| {
            let number = (round * 7919) % services;
            let name = format!("service-{number:06}");
            let began = Instant::now();
            ipam.delete(&ObjectRef::new(Kind::Service, Some("default"), Some(&name)));
            assert_eq!(ipam.settle().len(), 1);
            ipam.apply(&objects[number]);
            assert_eq!(ipam.settle().len(), 1);
            began.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn a_change_costs_the_same_among_many_services() {
    let (few, many) = (cost(100), cost(10_000));
    println!("one Service deleted and created: {few:?} among 100, {many:?} among 10,000");
    // A pass over all would take a hundred times as long.
    assert!(many < few * 20, "{few:?} among 100, {many:?} among 10,000");
}
