//! Senders without the key, and with it but wrong.

use std::time::Duration;

use super::super::*;
use super::world::{MS, Random, World, link_address};

const SECOND: Duration = Duration::from_secs(1);

fn settled() -> World {
    let mut world = World::new(3, 12, 3);
    world.run(SECOND * 15);
    world.forget_observations();
    world
}

/// What a node sends.
fn overheard(world: &mut World, node: usize) -> Vec<u8> {
    world.run(MS * 150);
    world.sent[&node].clone()
}

fn random(random: &mut Random) -> Vec<u8> {
    let length = random.below(2_000);
    (0..length).map(|_| random.below(256) as u8).collect()
}

#[test]
fn random_and_changed_messages_change_nothing() {
    let mut world = settled();
    let before = world.loads();
    let genuine = overheard(&mut world, 1);
    let mut numbers = Random(9);
    for round in 0..3_000 {
        let octets = if round % 2 == 0 {
            random(&mut numbers)
        } else {
            let mut changed = genuine.clone();
            let at = numbers.below(changed.len() as u64) as usize;
            changed[at] ^= 1 << numbers.below(8);
            changed
        };
        world.give(0, Input::Received(&octets));
    }
    let link = world.nodes[0].link.as_ref().expect("it runs");
    assert!(link.counts().refused >= 2_900, "{:?}", link.counts());
    world.run(SECOND);
    assert_eq!(world.loads(), before);
    assert_eq!(world.news, []);
}

/// A recording of a node that has lost its power does not keep it alive.
#[test]
fn recorded_messages_are_worthless() {
    let mut world = settled();
    let recorded: Vec<Vec<u8>> = (0..5).map(|_| overheard(&mut world, 1)).collect();
    recorded.iter().for_each(|octets| world.give(0, Input::Received(octets)));
    world.power_off(1);
    for _ in 0..100 {
        for node in [0, 2] {
            recorded.iter().for_each(|octets| world.give(node, Input::Received(octets)));
        }
        world.run(MS * 100);
    }
    assert_eq!(world.loads()[1], 0);
    assert_eq!(world.loads().iter().sum::<usize>(), 12);
    // Nor after it was forgotten, or under a new process.
    world.run(SECOND * 30);
    world.forget_observations();
    for node in [0, 2] {
        recorded.iter().for_each(|octets| world.give(node, Input::Received(octets)));
    }
    world.run(SECOND);
    assert_eq!(world.news, []);
    world.power_on(1);
    world.run(SECOND * 2);
    world.forget_observations();
    for node in [0, 2] {
        recorded.iter().for_each(|octets| world.give(node, Input::Received(octets)));
        world.run(SECOND);
    }
    assert_eq!(world.news, []);
}

/// Without keys anyone may take part, but nobody takes more than bounded memory.
#[test]
fn participants_without_a_key_are_bounded() {
    let mut world = World::new(1, 4, 5);
    world.keys = Keys::default();
    world.start(0);
    world.run(SECOND * 2);
    let mut liars: Vec<(Link, Time)> = Vec::new();
    for number in 0..300 {
        let identity = Identity {
            node: format!("liar-{number}"),
            interface: "eth0".to_owned(),
            incarnation: number,
        };
        let mut link = Link::new(identity, world.timing, Keys::default(), &[], world.now);
        let usable = Input::Interface { usable: true, link_address: link_address(9) };
        link.handle(usable, world.now);
        link.handle(Input::Wanted(world.nodes[0].wanted.clone()), world.now);
        liars.push((link, world.now));
    }
    for _ in 0..20 {
        world.run(MS * 100);
        let now = world.now;
        let heartbeat = overheard(&mut world, 0);
        for (liar, _) in &mut liars {
            liar.handle(Input::Received(&heartbeat), now);
            for effect in liar.handle(Input::Timer, now) {
                if let Effect::Send(octets) = effect {
                    world.give(0, Input::Received(&octets));
                }
            }
        }
    }
    let view = world.nodes[0].link.as_ref().expect("it runs").view(world.now);
    assert!(view.peers.len() <= 128, "{}", view.peers.len());
}
