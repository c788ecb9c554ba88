//! `cargo xtask bench ingress`: the Ingress proxy compared with others.

mod backend;
mod figure;
mod h2load;
mod measure;
mod pinned;
mod proxy;
mod report;
mod tls;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::figures::Sample;
use crate::machine::{busy_without_us, is_installed};
use ::tests::worlds::topology::Topology;
use anyhow::{Context, Result, ensure};
use clap::Args;

use measure::{IngressEffort, Measurement, ProxySamples};
use proxy::{Proxy, ProxyKind};
use report::IngressResults;

/// Compare the Ingress proxy with nginx, HAProxy and Caddy
///
/// All run in one network namespace, with one worker each on one CPU; clients and backends run on another CPU. Each
/// round measures all proxies in turn. The results are medians, plus or minus half the range. "CPU time" is that of
/// the proxy's process, with the kernel's work for it: it is comparable even if clients and backends limit the
/// number of requests per second.
#[derive(Debug, Args)]
pub struct IngressBenchOptions {
    /// Only proxies whose names contain this text; may be repeated
    ///
    /// The names are millrace, nginx, haproxy and caddy.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// One short round: a check that everything works
    #[arg(long)]
    quick: bool,

    /// Number of rounds
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Time limit in minutes: no round starts that would end later
    #[arg(long, value_name = "NUMBER", default_value_t = 15)]
    minutes: u64,

    /// Output directory for the JSON and the table [default: target/bench]
    #[arg(long, value_name = "DIRECTORY", default_value = crate::output::DIRECTORY, hide_default_value = true)]
    output: PathBuf,
}

const FULL: IngressEffort =
    IngressEffort { requests: 50_000, time: Duration::from_secs(3), messages: 20_000, idle: 9_000 };
const QUICK: IngressEffort =
    IngressEffort { requests: 500, time: Duration::from_millis(300), messages: 100, idle: 100 };

pub fn run_ingress(options: &IngressBenchOptions) -> Result<()> {
    let started = Instant::now();
    let (rounds, effort) = if options.quick { (1, QUICK) } else { (options.rounds, FULL) };
    // Before the servers' threads start.
    pinned::pin_clients()?;
    let topology = Topology::new("ingress-bench")?;
    let host = topology.host("machine")?;
    host.sysctl(&["net.ipv4.ip_local_port_range=10000 65000", "net.ipv4.tcp_tw_reuse=1"])?;
    let directory = topology.directory();
    let certificate = host.certificate(directory, "bench", &[proxy::HOST])?;
    host.address("lo", &format!("{}/32", backend::ADDRESS))?;
    let _web = backend::start_web_server(&host, directory)?;
    backend::start_websocket_server(&host)?;

    let mut lacking = Vec::new();
    let mut proxies = Vec::new();
    for kind in ProxyKind::ALL.into_iter().filter(|kind| is_wanted(*kind, &options.only)) {
        if kind != ProxyKind::Millrace && !is_installed(kind.key()) {
            lacking.push(format!("{}: {} is not installed", kind.name(), kind.key()));
            continue;
        }
        proxies.push((Proxy::start(kind, &host, directory, &certificate)?, ProxySamples::new()));
    }
    ensure!(!proxies.is_empty(), "no proxy can be measured:\n{}", lacking.join("\n"));

    let mut background = Sample::default();
    let until = started + Duration::from_secs(60 * options.minutes);
    let mut run = None;
    for round in 0..rounds as usize {
        if round > 0 && Instant::now() + started.elapsed() / round as u32 > until {
            eprintln!("time limit reached before round {} of {rounds}", round + 1);
            break;
        }
        background.push(busy_without_us()?);
        for turn in 0..proxies.len() {
            let number = (turn + round) % proxies.len();
            let (proxy, samples) = &mut proxies[number];
            eprintln!(
                "{} s: round {}: {}",
                started.elapsed().as_secs(),
                round + 1,
                proxy.kind.name()
            );
            let measurement =
                Measurement { host: &host, proxy, directory, certificate: &certificate, effort };
            if let Err(error) = measurement.run(samples) {
                lacking.push(format!("FAILED: {}: {error:#}", proxy.kind.name()));
            }
        }
        let samples = proxies.iter().map(|(proxy, samples)| (proxy.kind, samples.clone()));
        let so_far = run.insert(IngressResults {
            samples: samples.collect(),
            rounds: round + 1,
            background: background.clone(),
            lacking: lacking.clone(),
        });
        write_ingress_results(so_far, &options.output)?;
    }
    print_ingress_results(&run.context("--rounds is at least 1")?, &options.output)
}

fn is_wanted(kind: ProxyKind, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|part| kind.key().contains(&**part))
}

/// Writes the results as JSON and table; returns the table with remarks, and the paths.
fn write_ingress_results(run: &IngressResults, output: &Path) -> Result<(String, Vec<PathBuf>)> {
    let list =
        |lines: &[String]| lines.iter().map(|line| format!("- {line}\n")).collect::<String>();
    let mut text =
        format!("{}\n{}", report::ingress_table(run), list(&report::ingress_remarks(run)));
    if !run.lacking.is_empty() {
        text += &format!("\nNot measured:\n\n{}", list(&run.lacking));
    }
    let written = report::write_ingress_files(output, run, &text)?;
    Ok((text, written))
}

fn print_ingress_results(run: &IngressResults, output: &Path) -> Result<()> {
    let (text, written) = write_ingress_results(run, output)?;
    println!("{text}");
    let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    println!("Written: {}", names.join(", "));
    let failed = run.lacking.iter().filter(|line| line.starts_with("FAILED")).count();
    ensure!(failed == 0, "{failed} measurements failed, see above");
    Ok(())
}
