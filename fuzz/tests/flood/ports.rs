//! New flows with SNAT while all ports to the backends are in use, or have been.

use std::collections::HashMap;

use lb_common::header::protocol::TCP;

use crate::world::{BACKENDS, FloodFate, Path, SECOND, Service, World};
use fuzz::wire::{Ipv4End, Packet, SYN};

const SERVICE: Service = Service { path: Path::Snat, protocol: TCP };
const BUCKETS: u32 = 2_048;

/// A port, and the backend to which it is used.
type Port = (u16, Ipv4End);

fn client(number: u32) -> Ipv4End {
    let [_, b, c, d] = number.to_be_bytes();
    Ipv4End::new([11, b, c, d], 40_000)
}

/// Opens the flow of this number by a SYN.
fn open(world: &mut World, number: u32) -> Port {
    let syn = Packet::tcp(client(number), SERVICE.frontend(), SYN, number);
    let FloodFate::Delivered(sent) = world.request(&syn) else {
        panic!("flow {number} is refused")
    };
    (sent.source.port, sent.destination)
}

/// Asserts that a reply to the port is translated for the client of this flow.
fn check_reply(world: &mut World, (port, backend): Port, number: u32) {
    let source = Ipv4End { port, ..World::own_end() };
    let reply = Packet::tcp(backend, source, SYN, !number).acknowledging(number + 1);
    let fate = world.reply(SERVICE, &reply, client(number));
    let FloodFate::Delivered(reply) = fate else { panic!("the reply to {number}: {fate:?}") };
    assert_eq!((reply.source, reply.destination), (SERVICE.frontend(), client(number)));
}

/// Three rounds examine all ports of such a range.
#[test]
fn no_flow_loses_its_port_while_there_is_another() {
    const PORTS: u16 = 23;
    let mut world = World::new(BUCKETS, PORTS);
    let mut used: HashMap<Port, u32> = HashMap::new();
    let mut of_backend: HashMap<Ipv4End, u16> = HashMap::new();
    for number in 0.. {
        let port = open(&mut world, number);
        let before = of_backend.entry(port.1).or_default();
        if *before == PORTS {
            break;
        }
        *before += 1;
        assert_eq!(used.insert(port, number), None, "flow {number} takes a port in use");
    }
    assert!(used.len() > usize::from(PORTS) * 2, "{} ports were in use", used.len());
}

/// One round examines all ports of such a range.
#[test]
fn of_all_ports_in_use_the_one_that_is_idle_for_longest_is_taken_over() {
    const PORTS: u16 = 7;
    let mut world = World::new(BUCKETS, PORTS);
    let mut used_by: HashMap<Port, u32> = HashMap::new();
    open(&mut world, 0);
    let (stages, mut taken_over) = (world.stages, 0);
    for number in 1..250 {
        world.advance(SECOND / 5);
        let port = open(&mut world, number);
        assert_eq!(world.stages, stages, "flow {number}");
        let of_backend = || used_by.iter().filter(|((_, backend), _)| *backend == port.1);
        if of_backend().count() == usize::from(PORTS) {
            let oldest = of_backend().min_by_key(|(_, number)| **number);
            assert_eq!(Some(port), oldest.map(|(port, _)| *port), "flow {number}");
            taken_over += 1;
        }
        used_by.insert(port, number);
        check_reply(&mut world, port, number);
    }
    assert!(taken_over > 100, "{taken_over}");
}

/// The entries of expired flows stay in the reply index.
#[test]
fn ports_of_expired_flows_are_as_good_as_unused_ones() {
    const PORTS: u16 = 251;
    let all = u32::from(PORTS) * BACKENDS as u32;
    let (mut used, mut unused) = (World::new(BUCKETS, PORTS), World::new(BUCKETS, PORTS));
    for number in 0..4 * all {
        open(&mut used, number);
    }
    used.advance(61 * SECOND);
    for number in 4 * all..4 * all + all / 2 {
        assert_eq!(open(&mut used, number), open(&mut unused, number), "flow {number}");
        assert_eq!(used.stages, unused.stages, "flow {number}");
    }
}
