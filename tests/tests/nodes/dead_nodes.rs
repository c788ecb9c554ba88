//! Endpoints of a node that has lost power get no new connections.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::programs::agent::Agent;
use tests::worlds::announcers::{Announcers, IMPATIENT};
use tests::worlds::topology::{SOON, wait_until};

const SET_ASIDE: &str = "endpoints of a dead node set aside";

fn watched(world: &Announcers, node: usize, state: &str) -> usize {
    let metrics = world.nodes[node].curl("http://127.0.0.1:10249/metrics").unwrap_or_default();
    let prefix = format!("millrace_watched_nodes{{state=\"{state}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok());
    value.unwrap_or_default()
}

fn log(world: &Announcers, node: usize) -> String {
    world.agents[node].as_ref().map(Agent::log).unwrap_or_default()
}

/// How many TCP connections the kernel of a node has reset.
fn resets(world: &Announcers, node: usize) -> Result<u64> {
    let counters = world.nodes[node].run(["cat", "/proc/net/snmp"])?;
    let mut rows = counters.lines().filter(|line| line.starts_with("Tcp: "));
    let (names, values) = (rows.next().context("names")?, rows.next().context("values")?);
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, value) = counters.find(|(name, _)| *name == "OutRsts").context("OutRsts")?;
    Ok(value.parse()?)
}

/// Waits until a silent node has reset more probes than make one dead that does not answer. No server closes connections
/// meanwhile: each agent sends one to both addresses of the node, and again every second.
fn wait_for_resets(world: &Announcers, node: usize) -> Result<()> {
    let before = resets(world, node)?;
    let has_reset = || resets(world, node).is_ok_and(|now| now >= before + 20);
    wait_until("its kernel resets probes", SOON, has_reset)
}

/// Opens connections until each of these pods has replied.
fn connect_to_all(world: &Announcers, address: &str, pods: &[usize]) -> Result<()> {
    for pod in pods {
        let name = format!("pod{pod}");
        let is_reached =
            || world.connect(address).is_ok_and(|connection| connection.server == name);
        wait_until(&format!("{name} replies"), SOON, is_reached)?;
    }
    Ok(())
}

#[test]
fn new_connections_avoid_a_dead_node_within_a_second() -> Result<()> {
    let mut world = Announcers::start(3, 0, 1)?;
    let holders = world
        .wait_for_holders("two nodes have an address each", |holders| holders[0] != holders[1])?;
    // An address stays at its node; another node dies.
    let (holder, other) = (holders[0], holders[1]);
    let victim = 3 - holder - other;
    let address = world.addresses()[0].clone();
    let has_watched = || watched(&world, holder, "alive") == 2;
    wait_until("both other nodes have answered a probe", SOON, has_watched)?;
    connect_to_all(&world, &address, &[0, 1, 2])?;

    // An agent that stands still, or crashes, kills no node.
    let agent = world.agents[other].take().context("it runs")?;
    kill(Pid::from_raw(agent.pid() as i32), Signal::SIGSTOP)?;
    wait_until("its silence is noticed", SOON, || log(&world, holder).contains("peer silent"))?;
    wait_for_resets(&world, other)?;
    agent.kill();
    wait_for_resets(&world, other)?;
    connect_to_all(&world, &address, &[0, 1, 2])?;
    ensure!(!log(&world, holder).contains(SET_ASIDE) && watched(&world, holder, "dead") == 0);
    // From now on this one sets none aside.
    world.arguments = vec!["--allow-dead-nodes".to_owned()];
    world.launch(other)?;
    let agent = world.agents[other].as_mut().context("it was started")?;
    agent.wait_for_output("ready service_ports=")?;
    world.wait_for_holders("its successor takes part", |seen| seen == holders)?;
    wait_until("it has answered a probe", SOON, || watched(&world, holder, "alive") == 2)?;

    let mut open = world.connect(&address)?;
    while open.server != format!("pod{victim}") {
        open = world.connect(&address)?;
    }
    let stream = world.stream(&address, IMPATIENT);
    let begun = Instant::now();
    world.power_off(victim)?;
    wait_until("it is set aside", SOON, || watched(&world, holder, "dead") == 1)?;
    let lasted = begun.elapsed();
    // All that are opened from now on: two of three would reach an endpoint that lives.
    for number in 0..100 {
        let connection = world.connect(&address).with_context(|| format!("{number}"))?;
        ensure!(connection.server != format!("pod{victim}"));
    }
    println!("set aside within {lasted:?}; meanwhile {:?}", stream.end()?);
    let count = || log(&world, holder).matches(SET_ASIDE).count();
    wait_until("it is logged", SOON, || count() > 0)?;
    ensure!(count() == 1, "{}", log(&world, holder));
    let has_noticed = || log(&world, other).contains("peer silent");
    wait_until("the other node has noticed it, too", SOON, has_noticed)?;
    ensure!(!log(&world, other).contains(SET_ASIDE), "{}", log(&world, other));

    world.power_on(victim)?;
    wait_until("it is given back", SOON, || watched(&world, holder, "dead") == 0)?;
    connect_to_all(&world, &address, &[0, 1, 2])?;
    let is_logged = || log(&world, holder).contains("endpoints of a node given back");
    wait_until("it is logged", SOON, is_logged)?;
    // What was open before goes on.
    open.ask().context("the connection to the node that was dead")?;
    Ok(())
}
