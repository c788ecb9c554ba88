//! Connections through four nodes behind a router that spreads packets over them, FRR or BIRD, while nodes, backends,
//! agents and the router come and go. The figures of docs/design/slot-history.md:
//!
//! `cargo test --release -p tests --test peers ecmp:: -- --ignored --nocapture`
//!
//! `ECMP_CONNECTIONS`, `ECMP_BACKENDS`, `ECMP_REPLACED` and `ECMP_ATTEMPTS` (per second) set the sizes,
//! `ECMP_ROUTERS=frr,bird` and `ECMP_HISTORY=86400,0` what is measured; with `ECMP_JOINS=0`
//! no node loses power, and so none is added.

use std::env;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lb_common::layout::FlowKind;
use tests::load::crowd::{Crowd, Loss};
use tests::load::figures::size;
use tests::worlds::rack::{Backend, Kind, Rack, Sizes};

const NODES: usize = 4;
const SECOND: Duration = Duration::from_secs(1);
/// The node that loses its power, and the one that is drained.
const VICTIMS: [usize; 2] = [3, 1];

/// The parts of a variable.
fn list(name: &str, otherwise: &str) -> Vec<String> {
    let text = env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    text.split(',').map(str::to_owned).collect()
}

struct Bench {
    rack: Rack,
    crowd: Crowd,
    /// Connections that were lost although their backend lives.
    lost: usize,
}

impl Bench {
    fn start(
        kind: Kind,
        sizes: Sizes,
        (connections, longest_pause): (usize, Duration),
        history: u32,
    ) -> Result<Self> {
        let rack = Rack::start(kind, sizes, history)?;
        let crowd = Crowd::start(&rack.client, rack.target()?, connections, longest_pause)?;
        Ok(Self { rack, crowd, lost: 0 })
    }

    /// Replaces a backend by another one on the node with the fewest.
    fn replace_backend(&mut self, index: usize) -> Result<()> {
        let old = self.rack.remove_backend(index);
        if let Some(node) = self.rack.emptiest() {
            self.rack.add_backend(node)?;
        }
        self.crowd.expect_end([old.address]);
        self.rack.write()?;
        // It serves until all nodes know that it ends.
        thread::sleep(SECOND / 2);
        self.rack.end_backend(old);
        Ok(())
    }

    /// Replaces backends that have been there for the longest time, one after the other.
    fn replace_backends(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            // Old ones, and not the same again: a new backend is the last.
            self.replace_backend(0)?;
            thread::sleep(SECOND / 2);
        }
        Ok(())
    }

    /// A node loses its power. Later its backends are removed, and others are started elsewhere.
    fn power_off(&mut self, node: usize) -> Result<()> {
        let gone = self.rack.power_off(node)?;
        self.crowd.expect_end(gone.iter().map(|backend| backend.address));
        self.rack.wait_for_nodes(self.rack.nodes.len() - 1)?;
        thread::sleep(SECOND * 3);
        for _ in &gone {
            if let Some(node) = self.rack.emptiest() {
                self.rack.add_backend(node)?;
            }
        }
        self.rack.write()
    }

    /// A node without any state joins, and gets backends.
    fn power_on(&mut self, node: usize) -> Result<()> {
        self.rack.power_on(node)?;
        self.rack.wait_for_agents()?;
        self.rack.wait_for_nodes(self.rack.nodes.len())?;
        for _ in 0..3 {
            self.rack.add_backend(node)?;
            self.rack.write()?;
            thread::sleep(SECOND / 2);
        }
        Ok(())
    }

    /// A node is drained: the router avoids it, then its backends move.
    fn drain(&mut self, node: usize) -> Result<()> {
        self.rack.cordon(Some(node))?;
        self.rack.wait_for_nodes(self.rack.nodes.len() - 1)?;
        self.crowd.settle()?;
        for _ in 0..2 {
            let index = self.rack.backends().iter().position(|backend| backend.node == node);
            index.map_or(Ok(()), |index| self.replace_backend(index))?;
        }
        self.rack.cordon(None)?;
        self.rack.wait_for_nodes(self.rack.nodes.len())
    }

    fn restart_agents(&mut self) -> Result<()> {
        self.rack.restart_agents()?;
        self.rack.wait_for_agents()
    }

    fn restart_router(&mut self) -> Result<()> {
        self.rack.end_router()?;
        self.rack.start_router()?;
        self.rack.wait_for_nodes(self.rack.nodes.len())
    }

    /// Whether the connection began so many owners of its slot ago that its node was not asked.
    fn is_too_long_ago(&self, loss: &Loss) -> Result<bool> {
        let SocketAddr::V4(client) = loss.client else { bail!("an IPv4 address") };
        let owners = self.rack.owners(client)?;
        let current = owners.first().context("no table")?;
        let mut nodes = vec![current.node];
        for owner in owners.iter().filter(|owner| self.rack.backends().contains(owner)) {
            if !nodes.contains(&owner.node) {
                nodes.push(owner.node);
            }
        }
        nodes.truncate(1 + usize::from(FlowKind::MOST_ASKED));
        let server = owners.iter().find(|owner| owner.address == loss.server);
        Ok(server.is_none_or(|server| !nodes.contains(&server.node)))
    }

    /// Prints what something did to clients.
    fn run(&mut self, what: &str, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.crowd.take();
        thread::sleep(SECOND);
        act(self)?;
        thread::sleep(SECOND);
        self.crowd.settle()?;
        let seen = self.crowd.take();
        self.lost += seen.lost.len();
        let mut too_long_ago = 0;
        for loss in &seen.lost {
            too_long_ago += usize::from(self.is_too_long_ago(loss)?);
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
        for loss in seen.lost.iter().take(size("ECMP_SHOWN", 0)) {
            println!("  {loss:?}");
            if let SocketAddr::V4(client) = loss.client {
                let is_alive = |owner: &Backend| self.rack.backends().contains(owner);
                for owner in self.rack.owners(client)? {
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

fn table(kind: Kind, history: u32) -> Result<usize> {
    let sizes = Sizes { nodes: NODES, backends: size("ECMP_BACKENDS", 50) };
    let connections = size("ECMP_CONNECTIONS", 2_000);
    let attempts = size("ECMP_ATTEMPTS", 100) as u32;
    let replaced = size("ECMP_REPLACED", 10);
    let mut bench = Bench::start(kind, sizes, (connections, SECOND * 4), history)?;
    bench.crowd.attempt_every(SECOND / attempts);
    println!(
        "\n{kind:?}, slot history {history} s; {NODES} nodes, {} backends, {connections} connections",
        sizes.backends
    );
    println!(
        "| what happens | lost, backend lives | of these, too many owners ago | lost with its backend | failed new | failing for | longest wait |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    bench.run("nothing", |_| Ok(()))?;
    bench.run(&format!("{replaced} backends are replaced"), |bench| {
        bench.replace_backends(replaced)
    })?;
    let [off, drained] = VICTIMS;
    if size("ECMP_JOINS", 1) > 0 {
        bench.run("a node loses power", |bench| bench.power_off(off))?;
        bench.run("a node is added", |bench| bench.power_on(off))?;
    }
    bench
        .run(&format!("{replaced} more are replaced"), |bench| bench.replace_backends(replaced))?;
    bench.run("a node is drained and used again", |bench| bench.drain(drained))?;
    bench.run("all agents restart", Bench::restart_agents)?;
    bench.run("the router restarts", Bench::restart_router)?;
    if size("ECMP_SHOWN", 0) > 0 {
        println!("{}", bench.rack.counters());
    }
    Ok(bench.lost)
}

/// Without nodes that join, whose histories are short.
#[test]
fn only_connections_of_ended_backends_are_lost() -> Result<()> {
    let sizes = Sizes { nodes: 3, backends: 9 };
    let mut bench = Bench::start(Kind::Frr, sizes, (60, SECOND / 2), 86_400)?;
    bench.replace_backends(2)?;
    bench.drain(1)?;
    bench.restart_agents()?;
    bench.crowd.settle()?;
    let seen = bench.crowd.take();
    ensure!(seen.lost.is_empty(), "{:#?}\n{}", seen.lost, bench.rack.counters());
    // The replaced ones had some.
    ensure!(seen.ended > 0);
    Ok(())
}

#[test]
#[ignore = "a measurement of several minutes"]
fn table_of_lost_connections() -> Result<()> {
    let mut lost = Vec::new();
    for router in list("ECMP_ROUTERS", "frr,bird") {
        let kind = if router == "bird" { Kind::Bird } else { Kind::Frr };
        for history in list("ECMP_HISTORY", "86400,0") {
            let history = history.parse()?;
            lost.push((kind, history, table(kind, history)?));
        }
    }
    for (kind, history, lost) in lost {
        ensure!(history == 0 || lost == 0, "{lost} connections lost behind {kind:?}");
    }
    Ok(())
}
