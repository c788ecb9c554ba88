//! Frames that arrive, but late: a queue of a switch or of a virtual machine, in one direction or in all.

use std::time::Duration;

use super::scenarios::settled_world;
use super::world::{MS, World, address};

const ADDRESSES: usize = 12;
const SECOND: Duration = Duration::from_secs(1);

/// Whether frames from a node to a node are late.
type IsLate = fn(usize, usize) -> bool;

/// How long a frame takes.
const LATE: Duration = Duration::from_millis(700);

/// Checks that each address has one holder, which stays the same.
fn assert_settled(world: &mut World, what: &str) {
    world.disturb();
    world.forget_observations();
    world.run(SECOND * 30);
    for number in 0..ADDRESSES {
        let answering = world.answering(address(number));
        assert_eq!(answering.len(), 1, "{what}: {}: {answering:?}", address(number));
    }
    assert_eq!(world.longest_several(), Duration::ZERO, "{what}");
    assert_eq!(world.longest_none(), Duration::ZERO, "{what}");
    assert_eq!(world.news, [], "{what}");
}

#[test]
fn late_frames_leave_each_address_one_holder() {
    for nodes in [2, 3, 5] {
        let directions: [(&str, IsLate); 4] = [
            ("from one to another", |from, to| (from, to) == (0, 1)),
            ("from one", |from, _| from == 0),
            ("to one", |_, to| to == 0),
            ("all", |_, _| true),
        ];
        for (name, is_late) in directions {
            let what = format!("{nodes} nodes, {name}");
            let mut world = settled_world(nodes, ADDRESSES);
            let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
            world.late =
                pairs.filter(|(from, to)| is_late(*from, *to)).map(|it| (it, LATE)).collect();
            world.run(SECOND * 30);
            // At first, nodes that hear others late take them for silent. Until each has heard what the others hold, several
            // answer; later, while an address moves to another node.
            let longest = world.longest_several();
            assert!(longest <= LATE * 2 + SECOND, "{what}: {longest:?}");
            assert!(world.longest_none() <= MS * 10, "{what}: {:?}", world.longest_none());
            assert_settled(&mut world, &what);
            world.late.clear();
            world.run(SECOND * 30);
            assert_settled(&mut world, &format!("{what}, after"));
        }
    }
}
