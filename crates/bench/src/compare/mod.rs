//! `cargo xtask bench compare`: Millrace compared with alternatives, end to end.

mod balancer;
mod figure;
mod frames;
mod iptables;
mod nftables;
mod pinned;
mod plot;
mod processor;
mod report;
mod services;
mod world;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::figures::Sample;
use crate::machine::{busy_without_us, is_installed};
use crate::progress::Progress;
use anyhow::{Result, bail, ensure};
use clap::Args;

use balancer::BalancerKind;
use report::ComparisonResults;
use world::{ComparisonEffort, Phase, World};

/// Compare Millrace with kube-proxy's nftables and iptables rules, HAProxy, and direct connections
///
/// Each contender has its own network with the same client and the same backends. Each round measures all contenders
/// in turn. The results are medians, plus or minus half the range. Counters of each load balancer verify that it
/// handled every connection, and every reply names its backend.
///
/// Times are measured at the client. Where the client waits for each reply, client, load balancer and server run on
/// one CPU, so that the scheduler's choices do not affect the result. CPU time includes clients, servers and the
/// kernel between them. "Mpackets/s" counts datagrams of 1,024 open flows that arrived at the backend's interface.
/// They are generated with live frames on the CPU that forwards them; lost packets do not count.
#[derive(Debug, Args)]
pub struct ComparisonOptions {
    /// Number of Services; with several numbers, each is measured
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    #[arg(default_value = "1,1000,10000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    services: Vec<u32>,

    /// Only contenders whose names contain this text; may be repeated
    ///
    /// The names are none, millrace-xdp, millrace-tc, nftables, iptables and haproxy.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// One short round with one Service: a check that everything works
    #[arg(long)]
    quick: bool,

    /// Maximum number of rounds
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: u32,

    /// Time limit, in minutes: no round starts that would end later
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    minutes: u64,

    /// Output directory for the JSON, the table and the plot [default: target/bench]
    #[arg(long, value_name = "DIRECTORY", default_value = crate::output::DIRECTORY, hide_default_value = true)]
    output: PathBuf,
}

const FULL: ComparisonEffort = ComparisonEffort {
    connections: Duration::from_millis(1_000),
    one_at_a_time: Duration::from_millis(600),
    stream_seconds: 1,
    datagrams: 2_000,
    frames: 1_000_000,
};
const QUICK: ComparisonEffort = ComparisonEffort {
    connections: Duration::from_millis(200),
    one_at_a_time: Duration::from_millis(100),
    stream_seconds: 1,
    datagrams: 100,
    frames: 100_000,
};

/// What is not measured on any machine, and why.
const NEVER: [&str; 3] = [
    "kube-proxy in IPVS mode: needs a kernel with IPVS, and rules that this does not write",
    "Cilium, Katran: they come with agents and images of their own; docs/comparison.md says what \
     is known of them",
    "cards and wires: all links are veth pairs on one machine, so nothing here is limited by \
     interrupts, PCIe or a line's rate, and clients, node and backends share the processors",
];

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub fn run_comparison(options: &ComparisonOptions) -> Result<()> {
    // A handler instead of the default: Ctrl-C must not skip the clean-up.
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))?;
    let started = Instant::now();
    let (rounds, effort) = if options.quick { (1, QUICK) } else { (options.rounds, FULL) };

    let mut lacking = Vec::new();
    let mut worlds = Vec::new();
    for (kind, number) in selected_contenders(options, &mut lacking) {
        fail_if_interrupted()?;
        match World::new(kind, number) {
            Ok(world) => worlds.push(world),
            Err(error) => lacking.push(format!("FAILED: {} {number:?}: {error:#}", kind.key())),
        }
    }
    ensure!(!worlds.is_empty(), "no contender can be measured:\n{}", lacking.join("\n"));
    eprintln!("{} networks are set up after {} s", worlds.len(), started.elapsed().as_secs());
    let until = started + Duration::from_secs(options.minutes * 60);
    let background = measure_worlds(&mut worlds, rounds, effort, until, |worlds, background| {
        let lacking = not_measured(&lacking, worlds);
        let run =
            ComparisonResults { worlds, rounds: background.len(), background, lacking: &lacking };
        write_results(&run, &options.output).map(drop)
    })?;
    let rounds = background.len();
    let lacking = not_measured(&lacking, &worlds);
    let run =
        ComparisonResults { worlds: &worlds, rounds, background: &background, lacking: &lacking };
    print_results(&run, &options.output)?;
    eprintln!("after {} s", started.elapsed().as_secs());
    let failed = lacking.iter().filter(|line| line.starts_with("FAILED")).count();
    ensure!(failed == 0, "{failed} measurements failed, see above");
    Ok(())
}

/// What is missing, what failed, and what is never measured.
fn not_measured(lacking: &[String], worlds: &[World]) -> Vec<String> {
    let problems = worlds.iter().flat_map(reported_problems);
    lacking.iter().cloned().chain(problems).chain(NEVER.map(str::to_owned)).collect()
}

/// The selected contenders whose programs are installed.
fn selected_contenders(
    options: &ComparisonOptions,
    lacking: &mut Vec<String>,
) -> Vec<(BalancerKind, Option<u32>)> {
    let sizes = if options.quick { &options.services[..1] } else { &options.services[..] };
    let is_wanted = |kind: &BalancerKind| {
        options.only.is_empty() || options.only.iter().any(|part| kind.key().contains(&**part))
    };
    let mut cases = Vec::new();
    for kind in BalancerKind::ALL.into_iter().filter(is_wanted) {
        match kind.program() {
            Some(program) if !is_installed(program) => {
                lacking.push(format!("{}: {program} is not installed", kind.name()));
            }
            _ if kind.has_services() => cases.extend(sizes.iter().map(|size| (kind, Some(*size)))),
            _ => cases.push((kind, None)),
        }
    }
    cases
}

/// Measures all worlds in rounds. Each round starts with another world. A phase that fails in a
/// world is not repeated there. `keep` gets the results after each round.
fn measure_worlds(
    worlds: &mut [World],
    rounds: u32,
    effort: ComparisonEffort,
    until: Instant,
    keep: impl Fn(&[World], &Sample) -> Result<()>,
) -> Result<Sample> {
    let mut background = Sample::default();
    let progress = Progress::new(rounds as usize * worlds.len() * Phase::ALL.len())?;
    let began = Instant::now();
    for round in 0..rounds {
        if round > 0 && Instant::now() + began.elapsed() / round > until {
            eprintln!("time limit reached before round {} of {rounds}", round + 1);
            break;
        }
        background.push(busy_without_us()?);
        for turn in 0..worlds.len() {
            let number = (turn + round as usize) % worlds.len();
            let world = &mut worlds[number];
            for phase in Phase::ALL {
                fail_if_interrupted()?;
                progress.step(&format!("{}: {}", world.title(), phase.name()));
                if world.applies(phase)
                    && !world.problems.contains_key(&phase)
                    && let Err(error) = world.measure(phase, effort)
                {
                    world.problems.insert(phase, format!("{error:#}"));
                }
            }
        }
        keep(worlds, &background)?;
        eprintln!("round {} of {rounds} is done", round + 1);
    }
    progress.end();
    Ok(background)
}

fn reported_problems(world: &World) -> Vec<String> {
    let title = world.title();
    let mut notes: Vec<String> = world
        .problems
        .iter()
        .map(|(phase, problem)| format!("FAILED: {title}: {}: {problem}", phase.name()))
        .collect();
    if !world.kind.carries_datagrams() {
        notes.push(format!("{title}: datagrams and packets: it carries TCP only"));
    }
    notes
}

/// Writes the results as JSON, table and plot; returns the table with remarks, and the paths.
fn write_results(run: &ComparisonResults<'_>, output: &Path) -> Result<(String, Vec<PathBuf>)> {
    let table = report::comparison_table(run);
    let remarks = report::comparison_remarks(run);
    let list =
        |lines: &[String]| lines.iter().map(|line| format!("- {line}\n")).collect::<String>();
    let ratios = report::compare_with_millrace(run.worlds);
    let text = format!("{table}\n{}\nNot measured:\n\n{}", list(&remarks), list(run.lacking));
    let text = format!("{text}\nMillrace against others (1 is as much as they):\n\n{ratios}\n");
    let written = report::write_report_files(output, run, &text, &plot::plot_worlds(run.worlds))?;
    Ok((text, written))
}

fn print_results(run: &ComparisonResults<'_>, output: &Path) -> Result<()> {
    let (text, mut written) = write_results(run, output)?;
    println!("{text}");
    match picture(output) {
        Ok(path) => written.push(path),
        Err(error) => println!("no PNG: {error:#}"),
    }
    let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    println!("Written: {}", names.join(", "));
    Ok(())
}

/// The plot as PNG.
fn picture(output: &Path) -> Result<PathBuf> {
    let (svg, png) = (output.join("compare.svg"), output.join("compare.png"));
    ensure!(is_installed("rsvg-convert"), "rsvg-convert (librsvg2-bin) is not installed");
    let mut command = Command::new("rsvg-convert");
    let status = command.args(["--zoom", "1.5", "--output"]).arg(&png).arg(&svg).status()?;
    if !status.success() {
        bail!("rsvg-convert ended with {status}");
    }
    Ok(png)
}

/// Called between measurements.
fn fail_if_interrupted() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted; everything was cleaned up");
    Ok(())
}
