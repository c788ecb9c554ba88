//! `cargo xtask bench failover`: how long addresses are unavailable, and which connections are lost, when nodes and
//! agents fail. The figures are in docs/design/announcement.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ::tests::worlds::announcers::{Announcers, ConnectionStream, IMPATIENT, OpenConnection};
use ::tests::worlds::topology::Process;
use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const NODES: usize = 5;
/// Nodes that fail. Their pods are no endpoints, so that only the address matters.
const VICTIMS: usize = 3;
const STREAMS: usize = 8;
const SECOND: Duration = Duration::from_secs(1);

/// Measure how long addresses are unavailable when nodes and agents fail, and which connections are lost
#[derive(Debug, Args)]
pub struct FailoverOptions {
    /// Number of Services, and so of addresses
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    services: usize,

    /// Number of times that everything fails
    #[arg(long, value_name = "NUMBER", default_value_t = 6)]
    rounds: usize,

    /// Number of open connections
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    connections: usize,

    /// Path of keepalived, to measure it beside Millrace
    #[arg(long, value_name = "FILE")]
    keepalived: Option<PathBuf>,
}

/// What one scenario did to clients.
struct Row {
    what: &'static str,
    /// The longest time without a new connection, of each stream.
    gaps: Vec<Duration>,
    failed: usize,
    succeeded: usize,
    lost: usize,
}

impl Row {
    fn new(what: &'static str) -> Self {
        Self { what, gaps: Vec::new(), failed: 0, succeeded: 0, lost: 0 }
    }

    fn add(&mut self, streams: Vec<ConnectionStream>) -> Result<()> {
        for stream in streams {
            let outcome = stream.end()?;
            self.gaps.push(outcome.longest_gap);
            self.failed += outcome.failed;
            self.succeeded += outcome.succeeded;
        }
        Ok(())
    }

    fn print(&mut self) {
        self.gaps.sort();
        let at = |share: f64| {
            let index = (self.gaps.len() as f64 * share).ceil() as usize;
            self.gaps.get(index.max(1) - 1).map_or(0, |gap| gap.as_millis())
        };
        println!(
            "| {} | {} | {} ms | {} ms | {} of {} | {} |",
            self.what,
            self.gaps.len(),
            at(0.5),
            at(0.99),
            self.failed,
            self.failed + self.succeeded,
            self.lost
        );
    }
}

struct FailoverBench {
    world: Announcers,
    connections: Vec<OpenConnection>,
}

impl FailoverBench {
    fn settle(&self) -> Result<Vec<usize>> {
        let most = (self.world.addresses().len() * 5).div_ceil(NODES * 4);
        self.world.wait_for_holders("each node has its share", |holders| {
            (0..NODES).all(|node| {
                let load = holders.iter().filter(|holder| **holder == node).count();
                load > 0 && load <= most
            })
        })
    }

    /// Streams of connections to addresses of a node.
    fn streams(&self, holders: &[usize], node: usize) -> Vec<ConnectionStream> {
        let held = self.world.addresses().iter().zip(holders).filter(|(_, held)| **held == node);
        held.take(STREAMS).map(|(address, _)| self.world.stream(address, IMPATIENT)).collect()
    }

    /// How many of the open connections no longer work. They are opened again.
    fn lost(&mut self) -> Result<usize> {
        let mut lost = 0;
        let addresses = self.world.addresses().to_vec();
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let server = connection.server.clone();
            if connection.ask().ok() != Some(server) {
                lost += 1;
                *connection = self.world.connect(&addresses[index % addresses.len()])?;
            }
        }
        Ok(lost)
    }

    fn run(
        &mut self,
        what: &'static str,
        rounds: usize,
        mut fail: impl FnMut(&mut Announcers, usize) -> Result<()>,
        mut repair: impl FnMut(&mut Announcers, usize) -> Result<()>,
    ) -> Result<()> {
        let mut row = Row::new(what);
        for round in 0..rounds {
            let node = round % VICTIMS;
            let holders = self.settle()?;
            let streams = self.streams(&holders, node);
            thread::sleep(SECOND / 2);
            fail(&mut self.world, node)?;
            thread::sleep(SECOND * 2);
            row.add(streams)?;
            row.lost += self.lost()?;
            repair(&mut self.world, node)?;
        }
        row.print();
        Ok(())
    }
}

fn signal(world: &Announcers, node: usize, signal: Signal) -> Result<()> {
    let agent = world.agents[node].as_ref().context("it runs")?;
    Ok(kill(Pid::from_raw(agent.pid() as i32), signal)?)
}

fn wait_until_ready(world: &mut Announcers, node: usize) -> Result<()> {
    let agent = world.agents[node].as_mut().context("it was started")?;
    agent.wait_for_output("ready service_ports=")
}

pub fn run_failover(options: &FailoverOptions) -> Result<()> {
    let FailoverOptions { services, rounds, connections: count, keepalived: ref program } =
        *options;
    let world = Announcers::start_ordinary(NODES, VICTIMS, services)?;
    let mut bench = FailoverBench { world, connections: Vec::new() };
    bench.settle()?;
    let addresses = bench.world.addresses().to_vec();
    for index in 0..count {
        bench.connections.push(bench.world.connect(&addresses[index % addresses.len()])?);
    }
    println!("{NODES} nodes, {} addresses, {count} open connections", addresses.len());
    println!("| what happens | streams | gap p50 | gap p99 | failed attempts | lost connections |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let nothing = |_: &mut Announcers, _: usize| Ok(());
    bench.run("nothing", 1, nothing, nothing)?;
    bench.run("the node loses power", rounds, Announcers::power_off, |world, node| {
        world.power_on(node)?;
        wait_until_ready(world, node)
    })?;
    bench.run(
        "its interface goes down",
        rounds,
        |world, node| world.nodes[node].ip("link set ext0 down").map(drop),
        |world, node| {
            world.nodes[node].ip("link set ext0 up")?;
            world.nodes[node].address("ext0", &format!("2001:db8::{}/32", 11 + node))?;
            world.nodes[node].default_routes(&["192.0.2.2", "2001:db8::2"])
        },
    )?;
    bench.run(
        "its agent is killed and started again",
        rounds,
        |world, node| {
            if let Some(agent) = world.agents[node].take() {
                agent.kill();
            }
            world.launch(node)
        },
        wait_until_ready,
    )?;
    bench.run(
        "its agent is paused for 2 s",
        rounds,
        |world, node| signal(world, node, Signal::SIGSTOP),
        |world, node| signal(world, node, Signal::SIGCONT),
    )?;
    bench.run(
        "it is cordoned",
        rounds,
        |world, node| world.cordon(Some(node)),
        |world, _| world.cordon(None),
    )?;
    for (what, to_it) in [("what it sends is lost", false), ("what is sent to it is lost", true)] {
        bench.run(
            what,
            rounds,
            |world, node| world.lose_frames(node, to_it),
            |world, _| world.lose_nothing(),
        )?;
    }
    bench.run("all agents are replaced, one after the other", rounds, replace_all, nothing)?;
    without_api_server(&mut bench, rounds)?;
    bench.world.arguments = vec!["--cleanup-on-exit".to_owned()];
    for node in 0..VICTIMS {
        replace(&mut bench.world, node)?;
    }
    bench.run(
        "its agent ends and removes its data plane",
        rounds,
        |world, node| world.agents[node].take().context("it runs")?.end().map(drop),
        |world, node| {
            world.launch(node)?;
            wait_until_ready(world, node)
        },
    )?;
    all_at_once(&mut bench, rounds)?;
    if let Some(program) = program {
        for (what, interval) in
            [("keepalived, advert_int 1", "1"), ("keepalived, advert_int 0.1", "0.1")]
        {
            keepalived(&mut bench.world, program, what, (interval, rounds))?.print();
        }
    }
    Ok(())
}

/// Ends an agent, as an upgrade does, and starts the next one.
fn replace(world: &mut Announcers, node: usize) -> Result<()> {
    world.agents[node].take().context("it runs")?.end()?;
    world.launch(node)?;
    wait_until_ready(world, node)
}

fn replace_all(world: &mut Announcers, _: usize) -> Result<()> {
    (0..NODES).try_for_each(|node| replace(world, node))
}

/// The API server is away, alone and while a node loses its power.
fn without_api_server(bench: &mut FailoverBench, rounds: usize) -> Result<()> {
    bench.world.join_cluster()?;
    replace_all(&mut bench.world, 0)?;
    let stop = |world: &mut Announcers, _: usize| {
        world.stop_api_server();
        Ok(())
    };
    bench.run("the API server ends", rounds, stop, |world, _| world.start_api_server())?;
    bench.run(
        "the API server ends, and then the node loses power",
        rounds,
        |world, node| {
            world.stop_api_server();
            thread::sleep(SECOND / 2);
            world.power_off(node)
        },
        |world, node| {
            world.start_api_server()?;
            world.power_on(node)?;
            wait_until_ready(world, node)
        },
    )?;
    bench.world.leave_cluster();
    replace_all(&mut bench.world, 0)
}

/// One node has all addresses when it loses its power.
fn all_at_once(bench: &mut FailoverBench, rounds: usize) -> Result<()> {
    let mut row = Row::new("the only holder of all addresses loses power");
    let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
    for round in 0..rounds {
        let node = round % VICTIMS;
        let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
        bench.world.label(&others, &excluded)?;
        let has_all = |seen: &[usize]| seen.iter().all(|holder| *holder == node);
        let holders = bench.world.wait_for_holders("one node has all addresses", has_all)?;
        // Addresses that will be taken first, last and between.
        let addresses = bench.world.addresses();
        let step = addresses.len().div_ceil(STREAMS);
        let some = addresses.iter().step_by(step);
        let streams = some.map(|address| bench.world.stream(address, IMPATIENT)).collect();
        thread::sleep(SECOND / 2);
        bench.world.power_off(node)?;
        thread::sleep(SECOND * 4);
        row.add(streams)?;
        row.lost += bench.lost()?;
        bench.world.power_on(node)?;
        wait_until_ready(&mut bench.world, node)?;
        bench.world.label(&others, &json!({}))?;
        ensure!(holders.len() == bench.world.addresses().len());
    }
    row.print();
    Ok(())
}

/// An address of keepalived on the same nodes, whose holder loses its power.
fn keepalived(
    world: &mut Announcers,
    program: &Path,
    what: &'static str,
    (interval, rounds): (&str, usize),
) -> Result<Row> {
    const ADDRESS: &str = "192.0.2.200";
    let mut row = Row::new(what);
    for _ in 0..rounds {
        let mut running: Vec<Process> = Vec::new();
        let mut echos = Vec::new();
        for node in 0..NODES {
            let directory = world.directory().join(format!("keepalived-{node}"));
            fs::create_dir_all(&directory)?;
            let file = directory.join("keepalived.conf");
            fs::write(
                &file,
                format!(
                    "global_defs {{\n vrrp_version 3\n}}\nvrrp_instance a {{\n state BACKUP\n \
                     interface ext0\n virtual_router_id 51\n priority {}\n advert_int {interval}\n \
                     virtual_ipaddress {{\n  {ADDRESS}/20\n }}\n}}\n",
                    100 - node
                ),
            )?;
            let mut command = world.nodes[node].command(program);
            command.args(["--dont-fork", "--log-console", "--vrrp", "-f"]).arg(&file);
            for (option, name) in [("-p", "pid"), ("-r", "vrrp.pid"), ("-c", "checkers.pid")] {
                command.arg(option).arg(directory.join(name));
            }
            running.push(world.nodes[node].spawn(&mut command)?);
            echos.push(world.nodes[node].tcp_echo("0.0.0.0:7", &format!("node{node}"))?);
        }
        let mut reached = String::new();
        ::tests::worlds::topology::wait_until("keepalived has an address", SECOND * 60, || {
            let connected = world.connect_within(ADDRESS, SECOND / 5);
            reached = connected.map(|connection| connection.server).unwrap_or_default();
            !reached.is_empty()
        })?;
        // Until the one of the highest priority has taken it.
        thread::sleep(SECOND * 4);
        let server = world.connect(ADDRESS)?.server;
        let node: usize = server.trim_start_matches("node").parse()?;
        ensure!(node < VICTIMS, "{server}");
        let stream = world.stream(ADDRESS, IMPATIENT);
        thread::sleep(SECOND / 2);
        world.switch.ip(&format!("link delete port{}", 11 + node))?;
        thread::sleep(SECOND * 6);
        row.add(vec![stream])?;
        drop((running, echos));
        if let Some(agent) = world.agents[node].take() {
            agent.kill();
        }
        world.power_on(node)?;
        wait_until_ready(world, node)?;
    }
    Ok(row)
}
