//! Nodes that do not hear others, or are not heard.

use std::time::Duration;

use super::super::*;
use super::scenarios::{holder, settled_world};
use super::world::{MS, World, address};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn who_is_not_heard_gives_way() {
    let mut world = settled_world(3, 30);
    // What node 0 sends arrives nowhere; it hears all others.
    world.cut.insert((0, 1));
    world.cut.insert((0, 2));
    world.run(SECOND * 60);
    assert_eq!(world.loads()[0], 0);
    assert!(world.longest_several() <= MS * 5, "{:?}", world.longest_several());
    world.want(1, address(40), Some(CandidateRank::Candidate));
    world.want(2, address(40), Some(CandidateRank::Candidate));
    world.want(0, address(40), Some(CandidateRank::Candidate));
    world.run(SECOND * 2);
    assert_ne!(holder(&world, 40), 0);
}

/// What node 0 sends arrives, but it receives nothing, so clients can't use the addresses that it
/// claims.
#[test]
fn a_node_that_receives_nothing_is_replaced_and_its_claims_are_ignored() {
    for nodes in [2, 3, 5] {
        let mut world = settled_world(nodes, 30);
        let before: Vec<usize> = (0..30).map(|number| holder(&world, number)).collect();
        world.cut.extend((1..nodes).map(|other| (other, 0)));
        let serving = |world: &World, number| {
            let mut answering = world.answering(address(number));
            answering.retain(|node| *node != 0);
            answering
        };
        // The other nodes keep their addresses throughout, although node 0 claims them.
        let mut without = Duration::ZERO;
        for _ in 0..100 {
            world.run(MS * 10);
            let is_missing = (0..30).any(|number| serving(&world, number).is_empty());
            without += if is_missing { MS * 10 } else { Duration::ZERO };
            for number in (0..30).filter(|number| before[*number] != 0) {
                assert_eq!(serving(&world, number), [before[number]], "{:?}", world.now);
            }
        }
        assert_eq!(world.loads()[0], 30, "it takes all others for dead");
        assert!(without > MS * 150 && without <= MS * 400, "{without:?}");
        let after: Vec<Vec<usize>> = (0..30).map(|number| serving(&world, number)).collect();
        assert!(after.iter().all(|serving| serving.len() == 1), "{after:?}");
        // The last announcement of each address comes from the right node.
        world.run(SECOND * 60);
        for (number, after) in after.iter().enumerate() {
            assert_eq!(serving(&world, number), *after);
            let of_this = world.announcements.iter().rfind(|(_, _, of)| *of == address(number));
            assert_eq!(of_this.map(|(_, node, _)| *node), Some(after[0]), "{number}");
        }
        world.cut.clear();
        world.disturb();
        world.run(SECOND * 30);
        assert_eq!(world.loads().iter().sum::<usize>(), 30);
        assert!(world.longest_none() == Duration::ZERO, "{:?}", world.longest_none());
    }
}

#[test]
fn a_node_that_receives_nothing_for_the_time_of_one_heartbeat_keeps_its_addresses() {
    for nodes in [2, 3, 5] {
        let mut world = settled_world(nodes, 30);
        for round in 0..100 {
            world.cut.extend((1..nodes).map(|other| (other, 0)));
            world.run(MS * 100);
            world.cut.clear();
            world.run(MS * (500 + round * 7));
        }
        assert_eq!(world.news, []);
    }
}

/// Node 0 takes an address from silent node 1, but fails to announce it, and node 1 returns. Node 1
/// does not repeat its claim, because participants send only changes, so node 0 must restore it.
#[test]
fn a_holder_from_whom_an_address_was_taken_in_vain_is_known_again() {
    let mut world = settled_world(3, 60);
    let of_one: Vec<usize> = (0..60).filter(|number| holder(&world, *number) == 1).collect();
    world.cut.extend([(0, 1), (1, 0)]);
    world.run(MS * 550);
    let taken = of_one.into_iter().find(|number| world.answering(address(*number)).contains(&0));
    let taken = address(taken.expect("node 0 takes some of node 1's"));
    // Node 0 gives the address up before node 1 can hear of its claim.
    world.give(0, LinkInput::Failed(taken));
    world.cut.clear();
    world.run(SECOND * 10);
    for node in &world.nodes {
        let link = node.link.as_ref().expect("it runs");
        let view = link.link_view(world.now);
        let row = view.addresses.iter().find(|row| row.address == taken).expect("it is wanted");
        assert_eq!(row.holder.as_deref(), Some("node-1"));
    }
}

#[test]
fn a_node_that_receives_nothing_takes_no_addresses_from_the_kernel_of_a_crashed_agent() {
    let mut world = settled_world(3, 30);
    let before: Vec<usize> = (0..30).map(|number| holder(&world, number)).collect();
    world.kill(1);
    world.run(SECOND);
    world.cut.extend([(1, 0), (2, 0)]);
    for _ in 0..30 {
        world.run(MS * 100);
        for number in (0..30).filter(|number| before[*number] == 1) {
            let answering = world.answering(address(number));
            assert!(!answering.contains(&2), "{number}: {answering:?}");
        }
    }
}

/// A firewall drops heartbeats to node 0, but clients reach it.
#[test]
fn a_node_that_misses_heartbeats_only_keeps_its_addresses() {
    let mut world = settled_world(3, 30);
    let before = world.loads();
    world.firewalled.insert(0);
    world.run(SECOND * 60);
    assert_eq!(world.loads(), before);
    assert_eq!(world.longest_several(), Duration::ZERO);
    assert_eq!(world.longest_none(), Duration::ZERO);
}

/// Node 0's kernel is probed for an address that node 0 then gives up, at different times between
/// two heartbeats.
#[test]
fn a_node_that_misses_heartbeats_is_not_asked_for_what_it_no_longer_holds() {
    for milliseconds in [0, 30] {
        gives_up_an_address_without_hearing_others(MS * milliseconds);
    }
}

fn gives_up_an_address_without_hearing_others(after_a_heartbeat: Duration) {
    let mut world = settled_world(3, 30);
    world.firewalled.insert(0);
    world.run(SECOND * 5 + after_a_heartbeat);
    let its: Vec<usize> = (0..30).filter(|number| holder(&world, *number) == 0).collect();
    (0..3).for_each(|node| world.want(node, address(its[0]), None));
    world.run(SECOND * 20);
    for number in &its[1..] {
        assert_eq!(world.answering(address(*number)), [0], "{number}: {:?}", world.news);
    }
    assert_eq!(world.longest_several(), Duration::ZERO);
    assert_eq!(world.longest_none(), Duration::ZERO);
}

/// Node 1 never hears node 0, and node 0 hears node 1 only now and then.
#[test]
fn a_node_that_returns_from_silence_again_and_again_is_known_to_be_deaf() {
    let mut world = settled_world(3, 30);
    world.cut.insert((0, 1));
    for round in 0..20 {
        world.cut.insert((1, 0));
        world.run(MS * 350);
        world.cut.remove(&(1, 0));
        world.run(MS * 150);
        let view = world.nodes[0].link.as_ref().expect("it runs").link_view(world.now);
        let peer = view.peers.iter().find(|peer| peer.node == "node-1").expect("it was heard");
        assert!(!peer.silent);
        assert!(peer.deaf || round < 3, "{round}");
    }
}
