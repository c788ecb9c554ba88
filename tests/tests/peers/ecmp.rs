//! Connections through nodes behind a router that spreads packets over them, while nodes, backends and agents come and
//! go. `cargo xtask bench ecmp` measures it with more, and behind BIRD, too.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::worlds::rack::{CrowdedRack, RouterKind, Sizes};

const SECOND: Duration = Duration::from_secs(1);

/// Without nodes that join, whose histories are short.
#[test]
fn only_connections_of_ended_backends_are_lost() -> Result<()> {
    let sizes = Sizes { nodes: 3, backends: 9 };
    let mut world = CrowdedRack::start(RouterKind::Frr, sizes, (60, SECOND / 2), 86_400)?;
    world.replace_backends(2)?;
    world.drain(1)?;
    world.restart_agents()?;
    world.crowd.settle()?;
    let seen = world.crowd.take();
    ensure!(seen.lost.is_empty(), "{:#?}\n{}", seen.lost, world.rack.counters());
    // The replaced ones had some.
    ensure!(seen.ended > 0);
    Ok(())
}
