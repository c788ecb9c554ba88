//! Random faults, one after the other and at the same time.

use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::world::{MS, World, address};

/// The longest time without a holder while a candidate runs and nothing else happens. A node that
/// has just started or was paused listens first, and an address whose probe was answered is probed
/// again only later.
const NONE: Duration = Duration::from_millis(4_500);

/// The longest time in which several nodes answer for an address, while they hear each other.
const SEVERAL: Duration = Duration::from_millis(1_000);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(usize),
    PowerOff(usize),
    Start(usize),
    Pause(usize),
    Resume(usize),
    Cut(usize, usize),
    CutBoth(usize, usize),
    Isolate(usize),
    /// The node receives nothing.
    Deafen(usize),
    Heal,
    Loss(u64),
    Rank(usize, usize, CandidateRank),
    Remove(usize),
    Add(usize),
}

fn faults() -> impl Strategy<Value = (Fault, u64)> {
    let node = 0_usize..7;
    let rank = prop_oneof![
        Just(CandidateRank::None),
        Just(CandidateRank::LastResort),
        Just(CandidateRank::Candidate)
    ];
    let fault = prop_oneof![
        2 => node.clone().prop_map(Fault::Kill),
        2 => node.clone().prop_map(Fault::PowerOff),
        4 => node.clone().prop_map(Fault::Start),
        2 => node.clone().prop_map(Fault::Pause),
        2 => node.clone().prop_map(Fault::Resume),
        1 => (node.clone(), node.clone()).prop_map(|(a, b)| Fault::Cut(a, b)),
        1 => (node.clone(), node.clone()).prop_map(|(a, b)| Fault::CutBoth(a, b)),
        1 => node.clone().prop_map(Fault::Isolate),
        1 => node.clone().prop_map(Fault::Deafen),
        3 => Just(Fault::Heal),
        1 => (0_u64..200).prop_map(Fault::Loss),
        2 => (node, 0_usize..12, rank).prop_map(|(node, number, rank)| Fault::Rank(node, number, rank)),
        1 => (0_usize..12).prop_map(Fault::Remove),
        1 => (0_usize..12).prop_map(Fault::Add),
    ];
    let wait = prop_oneof![3 => 0_u64..200, 3 => 200_u64..2_000, 2 => 2_000_u64..45_000];
    (fault, wait)
}

fn inflict(world: &mut World, fault: Fault) {
    let nodes = world.nodes.len();
    match fault {
        Fault::Kill(node) => world.kill(node % nodes),
        Fault::PowerOff(node) => world.power_off(node % nodes),
        Fault::Start(node) => {
            let node = node % nodes;
            if !world.nodes[node].powered {
                world.power_on(node);
            } else if world.nodes[node].link.is_none() {
                world.start(node);
            }
        }
        Fault::Pause(node) => world.nodes[node % nodes].paused = true,
        Fault::Resume(node) => {
            if world.nodes[node % nodes].paused {
                world.resume(node % nodes);
            }
        }
        Fault::Cut(a, b) => drop(world.cut.insert((a % nodes, b % nodes))),
        Fault::CutBoth(a, b) => {
            world.cut.insert((a % nodes, b % nodes));
            world.cut.insert((b % nodes, a % nodes));
        }
        Fault::Isolate(node) => {
            for other in 0..nodes {
                world.cut.insert((node % nodes, other));
                world.cut.insert((other, node % nodes));
            }
        }
        Fault::Deafen(node) => world.cut.extend((0..nodes).map(|other| (other, node % nodes))),
        Fault::Heal => world.cut.clear(),
        Fault::Loss(loss) => world.loss = loss,
        Fault::Rank(node, number, rank) => {
            let address = address(number);
            if world.nodes[node % nodes].wanted.contains_key(&address) {
                world.want(node % nodes, address, Some(rank));
            }
        }
        Fault::Remove(number) => {
            (0..nodes).for_each(|node| world.want(node, address(number), None));
        }
        Fault::Add(number) => {
            (0..nodes)
                .for_each(|node| world.want(node, address(number), Some(CandidateRank::Candidate)));
        }
    }
}

fn cases() -> u32 {
    let cases = std::env::var("MILLRACE_TESTS_CASES").ok().and_then(|cases| cases.parse().ok());
    cases.unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_addresses_have_one_holder(
        nodes in 2_usize..8,
        addresses in 1_usize..12,
        seed in any::<u64>(),
        delay in 1_u64..20,
        faults in prop::collection::vec(faults(), 1..12),
    ) {
        let mut world = World::new(nodes, addresses, seed);
        world.delay = MS * delay as u32;
        world.run(MS * 3_000);
        for (fault, wait) in faults {
            inflict(&mut world, fault);
            world.disturb();
            world.run(MS * wait as u32);
            // Two nodes that do not hear each other may both hold an address.
            if world.cut.is_empty() {
                prop_assert!(world.longest_several() <= SEVERAL, "{:?}", world.watch.longest_several);
                prop_assert!(world.longest_none() <= NONE, "{:?}", world.watch.longest_none);
            }
            let limit = world.timing.hold + MS * 200;
            if world.cut.is_empty() {
                prop_assert!(world.watch.longest_several_without_process <= limit);
            }
            world.watch.longest_several.clear();
            world.watch.longest_none.clear();
        }
        // Without faults, each address gets one holder, and the load stays within the bound.
        world.cut.clear();
        world.loss = 0;
        for node in 0..nodes {
            if world.nodes[node].paused {
                world.resume(node);
            }
            if !world.nodes[node].powered {
                world.power_on(node);
            } else if world.nodes[node].link.is_none() {
                world.start(node);
            }
            for number in 0..addresses {
                world.want(node, address(number), Some(CandidateRank::Candidate));
            }
        }
        world.disturb();
        world.run(MS * 30_000);
        for number in 0..addresses {
            prop_assert_eq!(world.answering(address(number)).len(), 1, "{}", number);
        }
        let present = world.nodes[0].wanted.len();
        let bound = limit_share(present, nodes);
        prop_assert!(world.loads().iter().all(|load| *load <= bound), "{:?} {}", world.loads(), bound);
        // After that, nothing changes.
        world.forget_observations();
        world.run(MS * 5_000);
        prop_assert_eq!(&world.news, &[]);
    }
}
