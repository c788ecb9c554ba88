//! Whatever happens to the network and the processes, the routes arrive once it is over.

use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;

use super::script::seconds;
use super::world::{ROUTER, SPEAKER, World};
use crate::session::BgpInput;

#[derive(Clone, Copy, Debug)]
enum Action {
    Announce(u8, u32),
    Withdraw(u8),
    Disconnect,
    Partition(bool),
    Stall(bool),
    Restart { side: usize, killed: bool },
    Drain(bool),
    BfdDown,
}

fn actions() -> impl Strategy<Value = Vec<(Action, Duration)>> {
    let action = prop_oneof![
        4 => (0..20_u8, 0..3_u32).prop_map(|(which, community)| Action::Announce(which, community)),
        2 => (0..20_u8).prop_map(Action::Withdraw),
        1 => Just(Action::Disconnect),
        1 => any::<bool>().prop_map(Action::Partition),
        1 => any::<bool>().prop_map(Action::Stall),
        1 => (0..2_usize, any::<bool>()).prop_map(|(side, killed)| Action::Restart { side, killed }),
        1 => any::<bool>().prop_map(Action::Drain),
        1 => Just(Action::BfdDown),
    ];
    // Milliseconds, in which messages are on the way, up to more than the hold time.
    let wait = prop_oneof![0..50_u64, 0..20_000_u64].prop_map(Duration::from_millis);
    prop::collection::vec((action, wait), 0..60)
}

fn prefix(which: u8) -> IpNet {
    match which % 2 {
        0 => format!("203.0.113.{which}/32"),
        _ => format!("2001:db8::{which:x}/128"),
    }
    .parse()
    .unwrap()
}

fn act(world: &mut World, action: Action) {
    match action {
        Action::Announce(which, community) => world.want(prefix(which), Some(community)),
        Action::Withdraw(which) => world.want(prefix(which), None),
        Action::Disconnect => world.disconnect(),
        Action::Partition(partitioned) => world.partitioned = partitioned,
        Action::Stall(true) => world.stalled = true,
        Action::Stall(false) => world.resume(),
        Action::Restart { side, killed } => world.restart(side, killed),
        Action::Drain(drained) => world.input(SPEAKER, BgpInput::Drain(drained)),
        Action::BfdDown => world.input(SPEAKER, BgpInput::BfdDown),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn routes_arrive_in_the_end(actions in actions(), seed in 0..u64::MAX / 2) {
        let mut world = World::new(seed);
        for (action, wait) in actions {
            act(&mut world, action);
            world.run(wait);
        }
        world.partitioned = false;
        world.resume();
        // The longest backoff, and some attempts that collide.
        world.run(seconds(180));
        world.check_converged();
    }
}

/// Without faults, one session is established within a second, whichever side connects first.
#[test]
fn both_sides_connect_at_the_same_time() {
    let mut late = 0;
    for seed in 0..500 {
        let mut world = World::new(seed);
        world.want(prefix(0), Some(1));
        world.run(seconds(1));
        late += u32::from(world.routes.len() != 1);
        world.run(seconds(5));
        world.check_converged();
        let before = world.established;
        world.run(seconds(120));
        assert_eq!(world.established, before, "seed {seed}: the session did not last");
    }
    assert_eq!(late, 0, "of 500 needed another attempt");
}

#[test]
fn a_replaced_process_withdraws_nothing() {
    for killed in [false, true] {
        for seed in 0..50 {
            let mut world = World::new(seed);
            (0..20).for_each(|which| world.want(prefix(which), Some(1)));
            world.run(seconds(10));
            world.check_converged();
            world.restart(SPEAKER, killed);
            for _ in 0..500 {
                world.run(Duration::from_millis(10));
                assert_eq!(world.routes.len(), 20, "seed {seed}, killed: {killed}");
            }
            world.run(seconds(30));
            world.check_converged();
        }
    }
}

/// What was withdrawn while no process ran is gone after the End-of-RIB.
#[test]
fn a_replaced_process_leaves_no_stale_routes() {
    let mut world = World::new(1);
    (0..4).for_each(|which| world.want(prefix(which), Some(1)));
    world.run(seconds(10));
    world.wanted.remove(&prefix(0));
    world.restart(SPEAKER, true);
    world.run(seconds(10));
    assert_eq!(world.routes.len(), 3);
    world.check_converged();
}

#[test]
fn a_router_that_restarts_gets_all_routes_again() {
    let mut world = World::new(1);
    (0..4).for_each(|which| world.want(prefix(which), Some(1)));
    world.run(seconds(10));
    world.restart(ROUTER, true);
    world.run(seconds(10));
    world.check_converged();
}
