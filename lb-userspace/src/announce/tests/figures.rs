//! A thousand addresses, and what that costs.

use std::time::{Duration, Instant};

use super::super::*;
use super::world::{MS, World, address};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_thousand_addresses_are_taken_over_at_once() {
    let mut world = World::new(3, 1_000, 1);
    world.run(SECOND * 3);
    let sum: usize = world.loads().iter().sum();
    assert_eq!(sum, 1_000, "{:?}", world.loads());
    assert!(world.loads().iter().all(|load| *load <= capacity(1_000, 3)), "{:?}", world.loads());
    world.disturb();
    world.forget_observations();
    world.power_off(0);
    world.run(SECOND);
    assert!(world.longest_none() <= MS * 500, "{:?}", world.longest_none());
    assert_eq!(world.loads().iter().sum::<usize>(), 1_000);
    // Frames are limited to what switches let through.
    assert!(world.announcements.len() < 1_500, "{}", world.announcements.len());
}

/// Prints the octets that a link carries, by the number of nodes.
#[test]
#[ignore = "a measurement"]
fn traffic_of_many_nodes() {
    for nodes in [5, 25] {
        let mut world = World::new(nodes, 100, 1);
        world.run(SECOND * 2);
        world.forget_observations();
        let begun = Instant::now();
        world.run(SECOND);
        let (octets, elapsed) = (world.octets, begun.elapsed());
        println!("{nodes} nodes: {octets} octets of payload a second, simulated in {elapsed:?}");
    }
}

/// Prints what docs/design/announcement.md quotes. Run in release mode:
/// `cargo test --release -p lb-userspace --lib announce::tests::figures -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_heartbeats() {
    let mut world = World::new(5, 1_000, 1);
    world.run(SECOND * 20);
    world.forget_observations();
    let seconds = 20;
    world.run(SECOND * seconds);
    let octets = world.octets / seconds as usize;
    println!("{octets} octets of payload a second, sent by 5 nodes with 1,000 addresses");
    let now = world.now + MS * 100;
    let mut sent = Vec::new();
    for effect in world.nodes[1].link.as_mut().expect("it runs").handle(Input::Timer, now) {
        if let Effect::Send(octets) = effect {
            sent.push(octets);
        }
    }
    println!("{} octets in a heartbeat", sent[0].len());
    let rounds = 20_000_u32;
    let link = world.nodes[0].link.as_mut().expect("it runs");
    let begun = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(link.handle(Input::Received(&sent[0]), world.now));
    }
    println!("{:?} for each heartbeat that is received", begun.elapsed() / rounds);
    let begun = Instant::now();
    world.run(SECOND * 20);
    println!("{:?} of simulation for a second, all nodes together", begun.elapsed() / 20);
    world.want(0, address(2_000), Some(Rank::Candidate));
    let begun = Instant::now();
    for number in 0..200 {
        world.want(0, address(2_000 + number), Some(Rank::Candidate));
    }
    println!("{:?} for each change of a candidacy", begun.elapsed() / 200);
}
