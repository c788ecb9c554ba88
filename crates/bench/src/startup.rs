//! `cargo xtask bench startup`: how long an agent takes from its start until it is ready, among many Services of a
//! cluster, and what that costs.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::figures::Sample;
use ::tests::programs::agent::{Agent, Source};
use ::tests::programs::api_server::ApiServer;
use ::tests::worlds::one_node::{DEVICE, OneNode};
use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::unistd::{SysconfVar, sysconf};
use serde_json::{Value, json};

/// Measure the start of an agent among many Services: time until it is ready, CPU time and memory
#[derive(Debug, Args)]
pub struct Options {
    /// Number of Services
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    services: usize,

    /// Number of endpoints of each Service
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: usize,

    /// Number of starts of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,
}

fn address(first: [u8; 4], number: usize) -> String {
    Ipv4Addr::from(u32::from(Ipv4Addr::from(first)) + number as u32).to_string()
}

fn objects(services: usize, endpoints: usize) -> Vec<Value> {
    let of_service = |number: usize| {
        let endpoint = |which: usize| {
            json!({
                "addresses": [address([10, 128, 0, 1], number * endpoints + which)],
                "conditions": {"ready": true}, "nodeName": format!("node-{which}")
            })
        };
        let name = format!("service-{number}");
        [
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {
                    "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}
                },
                "ports": [{"port": 8080, "protocol": "TCP"}],
                "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>()
            }),
        ]
    };
    (0..services).flat_map(of_service).collect()
}

/// The CPU time of a process so far, in its own code and in the kernel.
fn processor_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may contain spaces.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>()?;
    let a_second = sysconf(SysconfVar::CLK_TCK)?.context("no length of ticks")? as f64;
    Ok(Duration::from_secs_f64(ticks as f64 / a_second))
}

/// Anonymous memory, in MiB.
fn memory(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

/// The greatest anonymous memory of a process until the measurement ends.
fn follow_memory(pid: u32, ends: &AtomicBool) -> f64 {
    let mut peak = 0.0;
    while !ends.load(Ordering::Relaxed) {
        peak = memory(pid).unwrap_or_default().max(peak);
        thread::sleep(Duration::from_millis(10));
    }
    peak
}

/// What one start took.
struct Start {
    /// From the start of the process until all objects had arrived.
    listed: Duration,
    /// From then until packets of all Services were translated.
    programmed: Duration,
    processor: Duration,
    peak: f64,
}

fn start(network: &OneNode, server: &ApiServer, flags: &[&str]) -> Result<(Start, Agent)> {
    let began = Instant::now();
    let source = Source::Cluster(server.kubeconfig());
    let mut agent = Agent::launch(&network.node, &network.pin_path(), source, DEVICE, flags)?;
    let (pid, ends) = (agent.pid(), AtomicBool::new(false));
    let (waited, peak) = thread::scope(|scope| {
        let peak = scope.spawn(|| follow_memory(pid, &ends));
        let waited = agent
            .wait_for_output("endpoints and nodes listed")
            .map(|()| began.elapsed())
            .and_then(|listed| agent.wait_for_output("ready service_ports=").map(|()| listed));
        let waited = waited.map(|listed| (listed, began.elapsed(), processor_time(pid)));
        ends.store(true, Ordering::Relaxed);
        (waited, peak.join().unwrap_or_default())
    });
    let (listed, ready, processor) = waited?;
    Ok((Start { listed, programmed: ready - listed, processor: processor?, peak }, agent))
}

pub fn run(options: &Options) -> Result<()> {
    let Options { services, endpoints, rounds } = *options;
    let network = OneNode::with_pods(0)?;
    let data = network.kubeconfig().parent().context("it is in a directory")?.to_owned();
    let server = ApiServer::start(&network.node, data, "127.0.0.1:0".parse()?)?;
    server.create(&network.node, objects(services, endpoints))?;

    println!("{services} Services of {endpoints} endpoints");
    println!("| start | lists ms | then until ready ms | CPU ms | peak MiB |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let [room, backends] = [services * 2, services * endpoints * 2].map(|room| room.to_string());
    let flags = ["--max-service-ports", &room, "--max-endpoints", &backends];
    let mut rows: [(&str, [Sample; 4]); 2] = [
        ("no maps and programs before", Default::default()),
        ("both unchanged", Default::default()),
    ];
    for _ in 0..rounds {
        for (what, samples) in &mut rows {
            let (figures, agent) = start(&network, &server, &flags)?;
            let programmed = format!("services={services}");
            ensure!(agent.log().contains(&programmed), "{what}: {}", agent.log());
            agent.end()?;
            let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
            let figures = [
                milliseconds(figures.listed),
                milliseconds(figures.programmed),
                milliseconds(figures.processor),
                figures.peak,
            ];
            samples.iter_mut().zip(figures).for_each(|(sample, figure)| sample.push(figure));
        }
        network.cleanup()?;
    }
    for (what, samples) in &rows {
        let cells = samples.each_ref().map(|sample| {
            let [median, least, most] = sample.summary().map(Option::unwrap_or_default);
            format!("{median:.0} ({least:.0}..{most:.0})")
        });
        println!("| {what} | {} |", cells.join(" | "));
    }
    Ok(())
}
