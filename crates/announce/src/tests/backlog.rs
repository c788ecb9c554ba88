//! A process that reads more slowly than datagrams arrive: it gets too little CPU time, or is
//! flooded.

use std::time::Duration;

use super::super::wire;
use super::super::*;
use super::world::{MS, World};

const SECOND: Duration = Duration::from_secs(1);

fn settled() -> World {
    let mut world = World::new(3, 30, 1);
    world.run(SECOND * 15);
    world.disturb();
    world.forget_observations();
    world
}

/// Takes the datagrams of `sender` out of the queue of a paused node.
fn unread_of(world: &mut World, node: usize, sender: &str) -> Vec<Vec<u8>> {
    let keys = world.keys.clone();
    let is_its = |octets: &Vec<u8>| {
        keys.open_sealed(octets)
            .and_then(wire::parse_heartbeat)
            .is_some_and(|message| message.node == sender)
    };
    let (its, others) = world.nodes[node].inbox.drain(..).partition(is_its);
    world.nodes[node].inbox = others;
    its.into()
}

/// Node 0 has reported no participant as silent, and has taken no address.
fn nobody_is_taken_for_dead(world: &World) {
    let is_wrong = |news: &ElectionEvent| {
        matches!(news, ElectionEvent::Silent(_) | ElectionEvent::Taken { .. })
    };
    let by_it = world.news.iter().filter(|(_, node, news)| *node == 0 && is_wrong(news));
    assert_eq!(by_it.count(), 0, "{:?}", world.news);
}

/// Node 0 reads the datagrams of node 1, while those of node 2 wait in its queue.
#[test]
fn nobody_is_judged_before_the_queue_is_empty() {
    let mut world = settled();
    let before = world.loads();
    world.nodes[0].paused = true;
    world.run(MS * 500);
    let unread = unread_of(&mut world, 0, "node-1");
    assert_eq!(unread.len(), 5);
    for octets in unread {
        world.give(0, LinkInput::Received(&octets));
        nobody_is_taken_for_dead(&world);
    }
    for _ in 0..10 {
        world.run(MS * 120);
        for octets in unread_of(&mut world, 0, "node-1") {
            world.give(0, LinkInput::Received(&octets));
            world.give(0, LinkInput::Backlog);
        }
    }
    assert!(world.nodes[0].inbox.len() > 10, "{}", world.nodes[0].inbox.len());
    nobody_is_taken_for_dead(&world);
    world.resume(0);
    world.run(SECOND * 20);
    nobody_is_taken_for_dead(&world);
    assert_eq!(world.loads(), before);
    assert_eq!(world.longest_none(), Duration::ZERO);
    assert_eq!(world.longest_several(), Duration::ZERO);
}

/// The pause is too short to be noticed as one, but node 0 last read a message of node 2 longer ago
/// than the limit of silence.
#[test]
fn what_arrived_before_a_late_timer_is_read_before_it() {
    let mut world = settled();
    world.cut.insert((2, 0));
    world.run(MS * 105);
    world.nodes[0].paused = true;
    world.cut.clear();
    world.run(MS * 280);
    for sender in ["node-1", "node-2"] {
        for octets in unread_of(&mut world, 0, sender) {
            world.give(0, LinkInput::Received(&octets));
        }
    }
    world.nodes[0].paused = false;
    world.run(SECOND * 2);
    let is_pause = |news: &ElectionEvent| matches!(news, ElectionEvent::Paused(_));
    assert!(!world.news.iter().any(|(_, _, news)| is_pause(news)), "{:?}", world.news);
    nobody_is_taken_for_dead(&world);
}

/// Node 0 is flooded and loses most datagrams. It still sends its heartbeats on time, and notices
/// only after the flood that node 2 has lost power.
#[test]
fn a_flood_stops_judgements_and_no_heartbeats() {
    let mut world = settled();
    let before = world.loads();
    world.nodes[0].paused = true;
    for round in 0..500 {
        if round == 300 {
            world.power_off(2);
        }
        world.run(MS * 10);
        if round % 50 == 0 {
            for octets in unread_of(&mut world, 0, "node-1") {
                world.give(0, LinkInput::Received(&octets));
            }
        }
        world.nodes[0].inbox.clear();
        world.give(0, LinkInput::Backlog);
    }
    // Node 1 heard node 0 throughout, and has noticed that node 2 lost power.
    assert_eq!(world.loads()[0], before[0]);
    let by_the_first = world.news.iter().filter(|(_, node, _)| *node == 0);
    assert_eq!(by_the_first.count(), 0, "{:?}", world.news);
    let silent = world.news.iter().filter(|(_, _, news)| matches!(news, ElectionEvent::Silent(_)));
    assert_eq!(silent.count(), 1, "{:?}", world.news);
    world.nodes[0].paused = false;
    world.run(MS * 600);
    assert_eq!(world.loads().iter().sum::<usize>(), 30);
}
