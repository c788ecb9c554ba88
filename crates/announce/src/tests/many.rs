//! More nodes than can take part.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::*;
use super::world::{MS, World, address};

const SECOND: Duration = Duration::from_secs(1);
const ADDRESSES: usize = 8;
const NODES: usize = 132;
/// How many take part.
const PARTICIPANTS: usize = 128;

/// The nodes in the order of their ids.
fn in_order() -> Vec<usize> {
    let mut nodes: Vec<usize> = (0..NODES).collect();
    nodes.sort_by_key(|node| ParticipantId::of_interface(&format!("node-{node}"), "eth0"));
    nodes
}

fn holders(world: &World) -> Vec<Vec<usize>> {
    (0..ADDRESSES).map(|number| world.answering(address(number))).collect()
}

/// There is no key, because authentication would take most of the test's time.
fn settled() -> World {
    let mut world = World::new(0, ADDRESSES, 1);
    world.keys = SealKeys::default();
    for node in 0..NODES {
        world.add(ADDRESSES);
        world.start(node);
    }
    world.run(SECOND * 6);
    world
}

fn takes_part(world: &World, node: usize) -> bool {
    let view = world.nodes[node].link.as_ref().expect("it runs").link_view(world.now);
    let is_one_too_many = |why: &String| why.starts_with("as many other nodes");
    !view.addresses.iter().any(|row| row.why_not_here.as_ref().is_some_and(is_one_too_many))
}

#[test]
#[ignore = "takes minutes"]
fn of_too_many_nodes_the_same_take_part_and_each_address_has_one_holder() {
    let order = in_order();
    let mut world = settled();
    let others: BTreeSet<usize> = order[PARTICIPANTS..].iter().copied().collect();
    let before = holders(&world);
    for of_address in &before {
        assert_eq!(of_address.len(), 1, "{before:?}");
        assert!(!others.contains(&of_address[0]), "{before:?} {others:?}");
    }
    let id = |node: &usize| ParticipantId::of_interface(&format!("node-{node}"), "eth0");
    let expected: Vec<ParticipantId> = order[..PARTICIPANTS].iter().map(id).collect();
    for node in 0..NODES {
        assert_eq!(takes_part(&world, node), !others.contains(&node), "{node}");
        let view = world.nodes[node].link.as_ref().expect("it runs").link_view(world.now);
        let followed =
            view.peers.iter().map(|peer| ParticipantId::of_interface(&peer.node, &peer.interface));
        let mut known: Vec<ParticipantId> = followed.chain([id(&node)]).collect();
        known.sort_unstable();
        assert_eq!(known[..PARTICIPANTS], expected, "{node}");
    }
    // A participant that holds an address loses power. One of the others takes its place.
    world.disturb();
    world.forget_observations();
    world.power_off(before[0][0]);
    world.run(SECOND * 4);
    assert!(world.longest_none() <= MS * 500, "{:?}", world.longest_none());
    let after = holders(&world);
    assert!(after.iter().all(|of_address| of_address.len() == 1), "{after:?}");
    assert!(takes_part(&world, order[PARTICIPANTS]));
}
