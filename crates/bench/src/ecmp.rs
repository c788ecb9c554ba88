//! `cargo xtask bench ecmp`: connections through four nodes behind a router that spreads packets over them, FRR or BIRD,
//! while nodes, backends, agents and the router come and go. The figures are in docs/design/slot-history.md.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use ::tests::worlds::rack::{CrowdedRack, RackBackend, RouterKind, Sizes};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

const NODES: usize = 4;
const SECOND: Duration = Duration::from_secs(1);
/// The node that loses its power, and the one that is drained.
const VICTIMS: [usize; 2] = [3, 1];

/// Measure which connections are lost behind a router that spreads packets over four nodes, while these change
#[derive(Debug, Args)]
pub struct EcmpOptions {
    /// Routers in front of the nodes
    #[arg(long, value_name = "ROUTER", value_delimiter = ',', default_value = "frr,bird")]
    routers: Vec<Router>,

    /// Seconds for which nodes remember earlier owners of slots; 0 is without that
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', default_value = "86400,0")]
    history: Vec<u32>,

    /// Number of open connections
    #[arg(long, value_name = "NUMBER", default_value_t = 2_000)]
    connections: usize,

    /// Number of backends
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    backends: usize,

    /// Number of backends that are replaced at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    replaced: usize,

    /// Number of new connections per second
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,

    /// Let no node lose power, and so none join
    #[arg(long)]
    no_joins: bool,

    /// Number of lost connections to describe after each change
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    shown: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Router {
    Frr,
    Bird,
}

struct EcmpBench {
    world: CrowdedRack,
    /// Connections that were lost although their backend lives.
    lost: usize,
    shown: usize,
}

impl EcmpBench {
    /// Prints what something did to clients.
    fn run(&mut self, what: &str, act: impl FnOnce(&mut CrowdedRack) -> Result<()>) -> Result<()> {
        self.world.crowd.take();
        thread::sleep(SECOND);
        act(&mut self.world)?;
        thread::sleep(SECOND);
        self.world.crowd.settle()?;
        let seen = self.world.crowd.take();
        self.lost += seen.lost.len();
        let mut too_long_ago = 0;
        for loss in &seen.lost {
            too_long_ago += usize::from(self.world.is_too_long_ago(loss)?);
        }
        println!(
            "| {what} | {} | {too_long_ago} | {} | {} of {} | {} ms | {} ms |",
            seen.lost.len(),
            seen.ended,
            seen.failed,
            seen.attempts,
            seen.failing.as_millis(),
            seen.longest_wait.as_millis(),
        );
        for loss in seen.lost.iter().take(self.shown) {
            println!("  {loss:?}");
            if let SocketAddr::V4(client) = loss.client {
                let is_alive = |owner: &RackBackend| self.world.rack.backends().contains(owner);
                for owner in self.world.rack.slot_owners(client)? {
                    println!(
                        "    {} on {}, alive: {}",
                        owner.address,
                        owner.node,
                        is_alive(&owner)
                    );
                }
            }
        }
        Ok(())
    }
}

/// Prints what happens to connections behind a router; returns how many were lost although their backend lives.
fn print_losses(options: &EcmpOptions, kind: RouterKind, history: u32) -> Result<usize> {
    let EcmpOptions { backends, connections, attempts, replaced, .. } = *options;
    let sizes = Sizes { nodes: NODES, backends };
    let world = CrowdedRack::start(kind, sizes, (connections, SECOND * 4), history)?;
    let mut bench = EcmpBench { world, lost: 0, shown: options.shown };
    bench.world.crowd.attempt_every(SECOND / attempts);
    println!(
        "\n{kind:?}, slot history {history} s; {NODES} nodes, {} backends, {connections} connections",
        sizes.backends
    );
    println!(
        "| what happens | lost, backend lives | of these, too many owners ago | lost with its backend | failed new | failing for | longest wait |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    bench.run("nothing", |_| Ok(()))?;
    bench.run(&format!("{replaced} backends are replaced"), |world| {
        world.replace_backends(replaced)
    })?;
    let [off, drained] = VICTIMS;
    if !options.no_joins {
        bench.run("a node loses power", |world| world.power_off(off))?;
        bench.run("a node is added", |world| world.power_on(off))?;
    }
    bench
        .run(&format!("{replaced} more are replaced"), |world| world.replace_backends(replaced))?;
    bench.run("a node is drained and used again", |world| world.drain(drained))?;
    bench.run("all agents restart", CrowdedRack::restart_agents)?;
    bench.run("the router restarts", CrowdedRack::restart_router)?;
    if options.shown > 0 {
        println!("{}", bench.world.rack.counters());
    }
    Ok(bench.lost)
}

pub fn run_ecmp(options: &EcmpOptions) -> Result<()> {
    let mut lost = Vec::new();
    for router in &options.routers {
        let kind = match router {
            Router::Frr => RouterKind::Frr,
            Router::Bird => RouterKind::Bird,
        };
        for &history in &options.history {
            lost.push((kind, history, print_losses(options, kind, history)?));
        }
    }
    for (kind, history, lost) in lost {
        ensure!(history == 0 || lost == 0, "{lost} connections lost behind {kind:?}");
    }
    Ok(())
}
