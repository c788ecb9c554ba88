//! Three nodes announce the addresses of load balancers on one link, to a real client.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::announcers::{Announcers, Connection, IMPATIENT};
use tests::topology::SOON;

/// Six Services, each with an address of both families.
const SERVICES: usize = 6;

fn ask_all(connections: &mut [Connection], but: Option<&str>) -> Result<()> {
    for connection in connections.iter_mut().filter(|c| Some(c.server.as_str()) != but) {
        let server = connection.ask().context("an open connection broke")?;
        ensure!(server == connection.server, "{server} replied instead of {}", connection.server);
    }
    Ok(())
}

fn signal(world: &Announcers, node: usize, signal: Signal) -> Result<()> {
    let agent = world.agents[node].as_ref().context("it runs")?;
    Ok(kill(Pid::from_raw(agent.pid() as i32), signal)?)
}

/// One world for all steps, which would take most of the time of each.
#[test]
fn addresses_have_one_holder_whatever_happens_to_nodes() -> Result<()> {
    let mut world = Announcers::start(3, SERVICES)?;

    // Every address has a holder, which is the same to all. The first node to start takes all, and
    // gives up what is more than its share when the others have been there for a while.
    let load = |holders: &[usize], node| holders.iter().filter(|holder| **holder == node).count();
    let holders = world.wait_for_holders("each node has its share", |holders| {
        (0..3).all(|node| load(holders, node) <= 5)
    })?;
    let mut connections = world
        .addresses()
        .iter()
        .map(|address| world.connect(address).with_context(|| address.clone()))
        .collect::<Result<Vec<_>>>()?;

    // A killed agent: its kernel still answers, and the next agent continues.
    let victim = holders[0];
    let stream = world.stream(&world.addresses()[0], SOON);
    if let Some(agent) = world.agents[victim].take() {
        agent.kill();
    }
    let others = world.wait_for_holders("silence is noticed", |seen| seen == holders)?;
    ensure!(others == holders);
    // Asked for again, by ARP and neighbour discovery.
    world.client.ip("neighbour flush all")?;
    thread::sleep(Duration::from_secs(1));
    world.launch(victim)?;
    let agent = world.agents[victim].as_mut().context("it was started")?;
    agent.wait_for_output("ready service_ports=")?;
    let after = world.wait_for_holders("the new agent continues", |seen| seen == holders)?;
    ensure!(after == holders);
    // A paused agent.
    signal(&world, victim, Signal::SIGSTOP)?;
    thread::sleep(Duration::from_millis(1_500));
    signal(&world, victim, Signal::SIGCONT)?;
    world.wait_for_holders("the paused agent continues", |seen| seen == holders)?;
    let outcome = stream.end()?;
    ensure!(outcome.failed == 0 && outcome.succeeded > 10, "{outcome:?}");
    ask_all(&mut connections, None)?;

    // A cordoned node: all of its addresses move, and no connection is lost.
    let stream = world.stream(&world.addresses()[0], SOON);
    world.cordon(Some(victim))?;
    let moved = world.wait_for_holders("addresses move", |seen| load(seen, victim) == 0)?;
    for (before, after) in holders.iter().zip(&moved) {
        ensure!(before == after || *before == victim, "{holders:?} {moved:?}");
    }
    ask_all(&mut connections, None)?;
    let outcome = stream.end()?;
    ensure!(outcome.failed == 0 && outcome.succeeded > 10, "{outcome:?}");
    // The address is where the client believes it is.
    let holder = world.nodes[moved[0]].ip("-o link show dev ext0")?;
    let neighbour = world.client.ip(&format!("neighbour show {}", world.addresses()[0]))?;
    let link_address = neighbour.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
    ensure!(link_address.is_some_and(|own| holder.contains(own)), "{neighbour} {holder}");

    // A node without power: the others take its addresses.
    let lost = moved[0];
    let stream = world.stream(&world.addresses()[0], IMPATIENT);
    thread::sleep(Duration::from_millis(300));
    world.power_off(lost)?;
    let rest = world.wait_for_holders("others take over", |seen| load(seen, lost) == 0)?;
    for (before, after) in moved.iter().zip(&rest) {
        ensure!(before == after || *before == lost, "{moved:?} {rest:?}");
    }
    ask_all(&mut connections, Some(&format!("pod{lost}")))?;
    let outcome = stream.end()?;
    ensure!(outcome.succeeded > 10, "{outcome:?}");
    println!("without power: {outcome:?}");
    Ok(())
}
