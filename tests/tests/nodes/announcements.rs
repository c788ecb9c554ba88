//! Three nodes announce the addresses of load balancers on one link, to a real client.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tests::programs::agent::Agent;
use tests::worlds::announcers::{Announcers, ConnectionStream, IMPATIENT, OpenConnection};
use tests::worlds::topology::{SOON, wait_until};

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// In a pool that one rack announces.
const OF_RACK: &str = "192.0.2.97";

/// Six Services, each with an address of both families.
const SERVICES: usize = 6;

fn ask_all(connections: &mut [OpenConnection], but: Option<&str>) -> Result<()> {
    for connection in connections.iter_mut().filter(|c| Some(c.server.as_str()) != but) {
        let server = connection.ask().context("an open connection broke")?;
        ensure!(server == connection.server, "{server} replied instead of {}", connection.server);
    }
    Ok(())
}

/// Ends a stream of connections, of which none may have failed, until now and in the next ones.
fn ensure_none_failed(stream: ConnectionStream) -> Result<()> {
    stream.wait_for_more(10)?;
    let outcome = stream.end()?;
    ensure!(outcome.failed == 0, "{outcome:?}");
    Ok(())
}

fn signal(world: &Announcers, node: usize, signal: Signal) -> Result<()> {
    let agent = world.agents[node].as_ref().context("it runs")?;
    Ok(kill(Pid::from_raw(agent.pid() as i32), signal)?)
}

/// One world for all steps, which would take most of the time of each.
#[test]
fn addresses_have_one_holder_whatever_happens_to_nodes() -> Result<()> {
    // The pod of the first node is no endpoint, so that nothing is lost when this node leaves.
    let mut world = Announcers::start(3, 1, SERVICES)?;

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
    let victim = 0;
    let its = holders.iter().position(|holder| *holder == victim).context("it has its share")?;
    let its = world.addresses()[its].clone();
    let stream = world.stream(&its, SOON);
    if let Some(agent) = world.agents[victim].take() {
        agent.kill();
    }
    let others = world.wait_for_holders("silence is noticed", |seen| seen == holders)?;
    ensure!(others == holders);
    // Asked for again, by ARP and neighbour discovery.
    world.client.ip("neighbour flush all")?;
    thread::sleep(Duration::from_secs(1));
    world.arguments = vec!["--cleanup-on-exit".to_owned()];
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
    // A flood: thousands of datagrams between two heartbeats. A slow machine loses some, and heartbeats with them.
    let judged = |world: &Announcers| -> Vec<usize> {
        let logs = world.agents.iter().flatten().map(Agent::log);
        logs.map(|log| ["peer silent", "address taken"].map(|it| log.matches(it).count()))
            .map(|counts| counts.iter().sum())
            .collect()
    };
    let before = judged(&world);
    let sent = world.flood(Duration::from_secs(3))?;
    let after = world.wait_for_holders("the flood has passed", |seen| seen == holders)?;
    ensure!(
        after == holders && judged(&world) == before,
        "{sent}: {before:?} {:?}",
        judged(&world)
    );
    ensure_none_failed(stream)?;
    ask_all(&mut connections, None)?;

    // A cordoned node: all of its addresses move, and no connection is lost.
    let stream = world.stream(&its, SOON);
    world.cordon(Some(victim))?;
    let moved = world.wait_for_holders("addresses move", |seen| load(seen, victim) == 0)?;
    for (before, after) in holders.iter().zip(&moved) {
        ensure!(before == after || *before == victim, "{holders:?} {moved:?}");
    }
    ask_all(&mut connections, None)?;
    ensure_none_failed(stream)?;
    // The address is where the client believes it is.
    let holder = world.nodes[moved[0]].ip("-o link show dev ext0")?;
    let mut neighbour = String::new();
    wait_until("the client's entry has moved", SOON, || {
        let show = format!("neighbour show {}", world.addresses()[0]);
        neighbour = world.client.ip(&show).unwrap_or_default();
        let link_address = neighbour.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
        link_address.is_some_and(|own| holder.contains(own))
    })
    .with_context(|| format!("{neighbour} {holder}"))?;

    // The exclude label does the same, and is ignored when all nodes have it.
    let excluded = moved[0];
    let stream = world.stream(&world.addresses()[0], SOON);
    world.cordon(None)?;
    world.label(&[excluded], &json!({EXCLUDED: ""}))?;
    world.wait_for_holders("addresses move", |seen| load(seen, excluded) == 0)?;
    world.label(&[0, 1, 2], &json!({EXCLUDED: ""}))?;
    thread::sleep(Duration::from_secs(1));
    let moved = world.wait_for_holders("all are excluded", |seen| load(seen, victim) > 0)?;
    ask_all(&mut connections, None)?;
    ensure_none_failed(stream)?;

    // Nodes that a pool selects, as their labels change.
    let pool = json!({
        "apiVersion": "millrace.io/v1alpha1", "kind": "AddressPool",
        "metadata": {"name": "of-rack"},
        "spec": {
            "addresses": ["192.0.2.96/28"],
            "announcements": [{"nodeSelector": {"matchLabels": {"rack": "a"}}}]
        }
    });
    let service = world.service("of-rack", &["10.96.200.1"], &[OF_RACK]);
    let objects = [pool].into_iter().chain(service.documents());
    world.add(objects.collect())?;
    world.wait_for_holder(OF_RACK, None)?;
    for node in [2, 1] {
        world.label(&[0, 1, 2], &json!({}))?;
        world.label(&[node], &json!({"rack": "a"}))?;
        world.wait_for_holder(OF_RACK, Some(node))?;
        world.connect(OF_RACK)?;
    }

    // An agent that removes its data plane when it ends hands over first.
    ensure!(load(&moved, victim) > 0, "{moved:?}");
    let its = moved.iter().position(|holder| *holder == victim).context("it holds some")?;
    let stream = world.stream(&world.addresses()[its], SOON);
    stream.wait_for_more(10)?;
    let agent = world.agents[victim].take().context("it runs")?;
    let log = agent.end()?;
    ensure!(log.contains("all addresses handed over"), "{log}");
    let moved = world.wait_for_holders("it has left", |seen| load(seen, victim) == 0)?;
    ask_all(&mut connections, None)?;
    ensure_none_failed(stream)?;

    // A node without power: the other one takes its addresses.
    let lost = moved[0];
    let stream = world.stream(&world.addresses()[0], IMPATIENT);
    stream.wait_for_more(10)?;
    world.power_off(lost)?;
    let rest = world.wait_for_holders("others take over", |seen| load(seen, lost) == 0)?;
    for (before, after) in moved.iter().zip(&rest) {
        ensure!(before == after || *before == lost, "{moved:?} {rest:?}");
    }
    ask_all(&mut connections, Some(&format!("pod{lost}")))?;
    println!("without power: {:?}", stream.end()?);
    Ok(())
}
