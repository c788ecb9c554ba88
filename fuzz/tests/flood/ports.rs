//! New flows with SNAT while all ports to the backends are in use, or have been.

use std::collections::HashMap;

use lb_common::header::protocol::TCP;

use crate::world::{BACKENDS, Fate, Path, SECOND, Service, World};
use fuzz::wire::{End, Packet, SYN};

const SERVICE: Service = Service { path: Path::Snat, protocol: TCP };
const BUCKETS: u32 = 2_048;

/// Opens the flow of this number by a SYN; returns its SNAT port and backend.
fn open(world: &mut World, number: u32) -> (u16, End) {
    let [_, b, c, d] = number.to_be_bytes();
    let syn = Packet::tcp(End::new([11, b, c, d], 40_000), SERVICE.frontend(), SYN, number);
    let Fate::Delivered(sent) = world.request(&syn) else { panic!("flow {number} is refused") };
    (sent.source.port, sent.destination)
}

/// A range of so few ports is examined as a whole in each round.
#[test]
fn of_all_ports_in_use_the_one_that_is_idle_for_longest_is_taken_over() {
    const PORTS: u16 = 7;
    let mut world = World::new(BUCKETS, PORTS);
    let mut used_by: HashMap<(End, u16), u32> = HashMap::new();
    let mut taken_over = 0;
    for number in 0..250 {
        world.advance(SECOND / 5);
        let (port, backend) = open(&mut world, number);
        let of_backend = || used_by.iter().filter(|((end, _), _)| *end == backend);
        if of_backend().count() == usize::from(PORTS) {
            let oldest = of_backend().min_by_key(|(_, number)| **number);
            let oldest = oldest.expect("it has flows").0;
            assert_eq!((backend, port), *oldest, "flow {number}");
            taken_over += 1;
        } else {
            assert!(!used_by.contains_key(&(backend, port)), "flow {number} takes a port in use");
        }
        used_by.insert((backend, port), number);
    }
    assert!(taken_over > 100, "{taken_over}");
}

/// The entries of expired flows stay in the reply index.
#[test]
fn ports_of_expired_flows_are_as_good_as_unused_ones() {
    const PORTS: u16 = 251;
    let all = u32::from(PORTS) * BACKENDS as u32;
    let mut world = World::new(BUCKETS, PORTS);
    open(&mut world, 0);
    let stages = world.stages;
    for number in 1..4 * all {
        open(&mut world, number);
    }
    world.advance(61 * SECOND);
    for number in 4 * all..4 * all + all / 2 {
        open(&mut world, number);
        assert_eq!(world.stages, stages, "flow {number}");
    }
}
