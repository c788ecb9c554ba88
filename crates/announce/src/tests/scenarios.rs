//! Single events, and exactly what follows from each.

use std::time::Duration;

use super::super::*;
use super::world::{MS, World, address, link_address};

const SECOND: Duration = Duration::from_secs(1);

/// All addresses have one holder.
pub(crate) fn settled_world(nodes: usize, addresses: usize) -> World {
    let mut world = World::new(nodes, addresses, 1);
    world.run(SECOND * 15);
    for number in 0..addresses {
        let answering = world.answering(address(number));
        assert_eq!(answering.len(), 1, "{}: {answering:?}", address(number));
    }
    world.disturb();
    world.forget_observations();
    world
}

pub fn holder(world: &World, number: usize) -> usize {
    let answering = world.answering(address(number));
    assert_eq!(answering.len(), 1, "{answering:?}");
    answering[0]
}

#[test]
fn a_node_alone_takes_all_addresses_after_it_has_listened() {
    let mut world = World::new(1, 10, 1);
    world.run(ElectionTiming::default().listening_time(1));
    assert_eq!(world.loads(), [0]);
    world.run(MS * 100);
    assert_eq!(world.loads(), [10]);
}

#[test]
fn a_new_address_is_announced_within_50_ms_by_the_node_that_keeps_it() {
    let mut world = settled_world(3, 4);
    for node in 0..3 {
        world.want(node, address(9), Some(CandidateRank::Candidate));
        world.run(MS);
    }
    world.run(MS * 47);
    let first = holder(&world, 9);
    world.run(SECOND * 30);
    assert_eq!(holder(&world, 9), first);
    assert!(!world.watch.longest_several.contains_key(&address(9)));
}

#[test]
fn when_a_node_loses_power_others_take_its_addresses_within_half_a_second() {
    let mut world = settled_world(5, 100);
    let before: Vec<usize> = (0..100).map(|number| holder(&world, number)).collect();
    world.power_off(0);
    world.run(SECOND * 5);
    assert!(world.longest_none() <= MS * 500, "{:?}", world.longest_none());
    assert!(world.longest_none() >= MS * 200, "{:?}", world.longest_none());
    assert_eq!(world.longest_several(), Duration::ZERO);
    for (number, before) in before.iter().enumerate() {
        assert!(*before == 0 || holder(&world, number) == *before);
    }
    let bound = limit_share(100, 4);
    assert!(world.loads().iter().all(|load| *load <= bound), "{:?}", world.loads());
}

#[test]
fn an_agent_that_crashes_or_stops_and_comes_back_moves_nothing() {
    let mut world = settled_world(3, 30);
    let before: Vec<usize> = (0..30).map(|number| holder(&world, number)).collect();
    world.kill(0);
    world.run(SECOND * 10);
    world.start(0);
    world.run(SECOND * 20);
    world.nodes[1].paused = true;
    world.run(SECOND * 20);
    world.resume(1);
    world.run(SECOND * 20);
    let after: Vec<usize> = (0..30).map(|number| holder(&world, number)).collect();
    assert_eq!(before, after);
    assert_eq!(world.longest_none(), Duration::ZERO);
    assert_eq!(world.longest_several(), Duration::ZERO);
}

#[test]
fn the_addresses_of_a_dead_agent_move_when_the_deadline_passes() {
    let mut world = settled_world(3, 30);
    world.kill(0);
    world.run(SECOND * 40);
    assert!(world.longest_none() <= MS * 1_200, "{:?}", world.longest_none());
    assert_eq!(world.loads()[0], 0);
    // The agent starts again, and gets its share back.
    world.start(0);
    world.run(SECOND * 20);
    assert!(world.loads()[0] > 0);
    assert!(world.longest_several() <= MS * 5, "{:?}", world.longest_several());
}

#[test]
fn a_process_that_was_paused_beyond_the_deadline_gives_up_what_others_took() {
    let mut world = settled_world(2, 10);
    world.nodes[0].paused = true;
    world.run(SECOND * 40);
    assert_eq!(world.loads(), [0, 10]);
    world.forget_observations();
    world.resume(0);
    world.run(SECOND * 30);
    assert!(world.longest_several() <= MS * 5, "{:?}", world.longest_several());
    assert!(world.loads()[0] >= 4, "{:?}", world.loads());
}

#[test]
fn a_better_node_that_joins_takes_over_before_the_other_stops() {
    let mut world = settled_world(3, 60);
    world.power_off(2);
    world.run(SECOND * 30);
    world.forget_observations();
    world.power_on(2);
    world.run(SECOND * 5);
    assert_eq!(world.loads()[2], 0);
    world.run(SECOND * 15);
    assert!(world.loads()[2] > 10, "{:?}", world.loads());
    assert_eq!(world.longest_none(), Duration::ZERO);
    assert!(world.longest_several() <= MS * 5, "{:?}", world.longest_several());
    assert!(world.loads().iter().all(|load| *load <= limit_share(60, 3)), "{:?}", world.loads());
}

#[test]
fn a_node_that_is_excluded_or_leaves_hands_over_without_a_gap() {
    let mut world = settled_world(3, 30);
    for number in 0..30 {
        world.nodes[0].wanted.insert(address(number), CandidateRank::LastResort);
    }
    world.want(0, address(0), Some(CandidateRank::LastResort));
    world.run(SECOND);
    assert_eq!(world.loads()[0], 0);
    world.give(1, LinkInput::Leave);
    world.run(SECOND);
    assert_eq!(world.loads(), [0, 0, 30]);
    assert!(world.news.iter().any(|(_, node, news)| *node == 1 && *news == ElectionEvent::Left));
    assert_eq!(world.longest_none(), Duration::ZERO);
    assert!(world.longest_several() <= MS * 5, "{:?}", world.longest_several());
    // Without another candidate, node 0 holds all addresses as the last resort.
    world.power_off(2);
    world.run(SECOND * 3);
    assert_eq!(world.loads(), [30, 0, 0]);
}

#[test]
fn an_address_follows_its_candidates() {
    let mut world = settled_world(3, 1);
    let first = holder(&world, 0);
    let other = (first + 1) % 3;
    for node in 0..3 {
        let rank = if node == other { CandidateRank::Candidate } else { CandidateRank::None };
        world.want(node, address(0), Some(rank));
    }
    world.run(SECOND * 3);
    assert_eq!(holder(&world, 0), other);
    assert_eq!(world.longest_none(), Duration::ZERO);
    // Without any candidate, no node announces it.
    world.want(other, address(0), Some(CandidateRank::None));
    world.run(SECOND * 3);
    assert!(world.answering(address(0)).is_empty());
    (0..3).for_each(|node| world.want(node, address(0), None));
    world.run(SECOND * 20);
    assert_eq!(world.news.len(), 3, "{:?}", world.news);
}

#[test]
fn a_withdrawn_service_is_given_up_at_once() {
    let mut world = settled_world(3, 2);
    (0..3).for_each(|node| world.want(node, address(1), None));
    assert!(world.answering(address(1)).is_empty());
    assert_eq!(world.answering(address(0)).len(), 1);
}

#[test]
fn both_sides_of_a_partition_have_a_holder_and_one_remains_when_it_heals() {
    let mut world = settled_world(3, 30);
    for other in [1, 2] {
        world.cut.insert((0, other));
        world.cut.insert((other, 0));
    }
    world.run(SECOND * 20);
    assert_eq!(world.loads()[0], 30);
    assert_eq!(world.loads()[1] + world.loads()[2], 30);
    world.cut.clear();
    world.disturb();
    world.forget_observations();
    world.run(SECOND * 30);
    assert!(world.longest_several() <= MS * 500, "{:?}", world.longest_several());
    assert_eq!(world.longest_none(), Duration::ZERO);
    assert_eq!(world.loads().iter().sum::<usize>(), 30);
}

/// A provider that moves an address to the node that took it last would otherwise leave it with the loser.
#[test]
fn when_a_partition_heals_the_remaining_holder_says_so_last() {
    for separated in 0..3 {
        let mut world = settled_world(3, 0);
        for other in (0..3).filter(|other| *other != separated) {
            world.cut.extend([(separated, other), (other, separated)]);
        }
        world.run(SECOND * 5);
        for node in 0..3 {
            (0..30).for_each(|one| world.want(node, address(one), Some(CandidateRank::Candidate)));
            world.run(SECOND * 5);
        }
        world.cut.clear();
        world.run(SECOND * 30);
        let wrong = (0..30).filter(|one| world.last_taker[&address(*one)] != holder(&world, *one));
        assert_eq!(wrong.collect::<Vec<_>>(), [0; 0]);
    }
}

#[test]
fn an_address_that_another_machine_uses_is_not_announced() {
    const OTHER: LinkAddress = [6, 6, 6, 6, 6, 6];
    let mut world = settled_world(2, 1);
    world.others.insert(address(5), OTHER);
    (0..2).for_each(|node| world.want(node, address(5), Some(CandidateRank::Candidate)));
    world.run(SECOND * 10);
    assert!(world.answering(address(5)).is_empty());
    let in_use = ElectionEvent::InUse { address: address(5), by: OTHER };
    assert!(world.news.iter().any(|(_, _, news)| *news == in_use));
    // It is announced once the other machine no longer uses it.
    world.others.clear();
    world.run(SECOND * 3);
    let holder = holder(&world, 5);
    // A machine that uses it later does not get it: the holder announces the address again.
    world.run(SECOND * 10);
    world.forget_observations();
    for _ in 0..50 {
        world.give(holder, LinkInput::Claim { address: address(5), by: OTHER });
        world.run(MS * 100);
    }
    assert_eq!(world.answering(address(5)), [holder]);
    let disputed = ElectionEvent::Disputed { address: address(5), by: OTHER };
    assert_eq!(world.news, [(world.news[0].0, holder, disputed)]);
    assert!(world.announcements.len() <= 3, "{:?}", world.announcements);
}

/// A pool contains the address of a node's interface.
#[test]
fn an_address_that_another_node_uses_itself_is_not_announced() {
    let mut world = settled_world(3, 1);
    world.others.insert(address(5), link_address(1));
    [0, 2]
        .into_iter()
        .for_each(|node| world.want(node, address(5), Some(CandidateRank::Candidate)));
    for _ in 0..300 {
        world.run(MS * 100);
        assert!(world.answering(address(5)).is_empty());
    }
}

#[test]
fn an_interface_that_is_down_is_given_up_and_taken_again() {
    let mut world = settled_world(2, 10);
    let down = LinkInput::Interface { usable: false, link_address: link_address(0) };
    world.give(0, down);
    world.cut.insert((0, 1));
    world.cut.insert((1, 0));
    world.run(SECOND);
    assert_eq!(world.loads(), [0, 10]);
    world.cut.clear();
    world.give(0, LinkInput::Interface { usable: true, link_address: link_address(0) });
    world.run(SECOND * 20);
    assert!(world.loads()[0] >= 3, "{:?}", world.loads());
    assert!(world.longest_several() <= MS * 5, "{:?}", world.longest_several());
}

#[test]
fn without_the_list_of_services_an_agent_keeps_what_it_had() {
    let mut world = settled_world(2, 10);
    world.kill(0);
    let identity = ParticipantIdentity {
        node: "node-0".to_owned(),
        interface: "eth0".to_owned(),
        incarnation: 77,
    };
    let held: Vec<AdoptedAddress> = world.nodes[0]
        .kernel
        .iter()
        .map(|(address, (_, epoch))| AdoptedAddress { address: *address, epoch: *epoch })
        .collect();
    let link = LinkElection::new(identity, world.timing, world.keys.clone(), &held, world.now);
    world.nodes[0].link = Some(link);
    world.give(0, LinkInput::Interface { usable: true, link_address: link_address(0) });
    let before = world.loads();
    world.run(SECOND * 120);
    assert_eq!(world.loads(), before);
    assert_eq!(world.longest_none(), Duration::ZERO);
}

#[test]
fn what_the_kernel_refuses_goes_to_another_node() {
    let mut world = settled_world(2, 1);
    let first = holder(&world, 0);
    world.give(first, LinkInput::Failed(address(0)));
    world.run(MS * 300);
    assert_eq!(holder(&world, 0), 1 - first);
}

#[test]
fn keys_are_replaced_without_moving_an_address() {
    let mut world = settled_world(3, 9);
    let (old, new) = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210");
    for keys in [vec![old, new], vec![new, old], vec![new]] {
        for node in 0..3 {
            world.give(node, LinkInput::Keys(SealKeys::derive(&keys)));
            world.run(SECOND);
        }
    }
    assert_eq!(world.news, []);
}

#[test]
fn of_more_addresses_than_a_link_can_have_the_same_are_left_out_everywhere() {
    const ADDRESSES: usize = 45;
    const MOST: usize = 30;
    let mut world = World::new(0, ADDRESSES, 3);
    world.most_addresses = MOST;
    for node in 0..3 {
        world.add(ADDRESSES);
        world.start(node);
    }
    let holders = |world: &World, count: usize| -> Vec<usize> {
        (0..count).map(|number| world.answering(address(number)).len()).collect()
    };
    world.run(SECOND * 6);
    let mut expected = vec![1; MOST];
    expected.resize(ADDRESSES, 0);
    assert_eq!(holders(&world, ADDRESSES), expected);
    let beyond = |world: &World, node: usize| {
        world.nodes[node].link.as_ref().expect("it runs").link_view(world.now).beyond
    };
    assert!((0..3).all(|node| beyond(&world, node) == ADDRESSES - MOST));
    // Addresses that others make room for are taken, by one node each.
    for number in 0..ADDRESSES - MOST {
        (0..3).for_each(|node| world.want(node, address(number), None));
    }
    world.run(SECOND * 6);
    let mut expected = vec![0; ADDRESSES - MOST];
    expected.resize(ADDRESSES, 1);
    assert_eq!(holders(&world, ADDRESSES), expected);
    assert!((0..3).all(|node| beyond(&world, node) == 0));
}

/// Two machines of one name both announce: neither sees the other one as a candidate. An operator has to know.
#[test]
fn machines_of_one_name_report_each_other_until_one_gets_another_name() {
    let mut world = settled_world(3, 4);
    let same_name = |world: &World, node: usize| {
        world.nodes[node].link.as_ref().expect("it runs").link_view(world.now).same_name
    };
    assert!((0..3).all(|node| same_name(&world, node).is_none()));
    // A restart is no other machine.
    world.start(2);
    world.run(SECOND * 6);
    assert_eq!(same_name(&world, 2), None);
    world.nodes[2].name = world.nodes[1].name.clone();
    world.start(2);
    world.run(SECOND * 6);
    let found: Vec<_> = (0..3).map(|node| same_name(&world, node)).collect();
    assert_eq!(found, [None, Some(link_address(2)), Some(link_address(1))]);
    let reports =
        world.news.iter().filter(|(_, _, news)| matches!(news, ElectionEvent::SameName { .. }));
    assert_eq!(reports.count(), 2, "each once");
    world.nodes[2].name = "node-2".to_owned();
    world.start(2);
    world.run(SECOND * 70);
    assert!((0..3).all(|node| same_name(&world, node).is_none()));
}
