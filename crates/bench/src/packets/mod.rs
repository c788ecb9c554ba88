//! `cargo xtask bench`: the cost of a packet in the data plane, and end-to-end throughput.

mod baselines;
mod case;
mod end_to_end;
mod idle_worlds;
mod interrupt;
mod memory;
mod pattern;
mod plot;
mod record;
mod report;
mod samples;
mod scaling;
mod socket_timer;
mod sockets;
mod subject;
mod wrapper;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};

use crate::progress::Progress;

use baselines::Baselines;
use case::Case;
use idle_worlds::IdleWorlds;
use interrupt::check_interrupted;
use memory::MemoryRing;
use pattern::Pattern;
use record::CaseRecord;
use report::Results;
use subject::Subject;

pub use socket_timer::{ARGUMENT as SOCKET_TIMER, time_sockets};

/// Measure the data plane: nanoseconds per packet and per system call, and end-to-end requests per second
///
/// Packets are measured with BPF_PROG_TEST_RUN, in a wrapper that renews the packet for each run. The cost of the
/// wrapper is measured in the same rounds and subtracted. Cases with the same address family and number of flows are
/// interleaved. Results of one run can be compared with each other, but not with those of another machine.
#[derive(Debug, Args)]
pub struct PacketBenchOptions {
    /// JSON file of an earlier run, to show the changes since then
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Only cases whose names contain this text, or match it if it contains *, such as 'xdp.*.new'
    #[arg(long, value_name = "PATTERN", default_value = "")]
    only: Pattern,

    /// Fewer rounds and packets, one flow, and a debug build: a check that everything works
    #[arg(long)]
    quick: bool,

    /// Time limit in minutes: cases are measured in fewer rounds, three at least
    #[arg(long, value_name = "NUMBER", default_value_t = 15)]
    minutes: u64,

    /// Capacity of the flow table, as a multiple of the number of flows
    ///
    /// Below 4, flows do not get entries, and a case is not measured.
    #[arg(long, value_name = "TIMES", default_value_t = 8, value_parser = value_parser!(u32).range(1..=64))]
    room: u32,

    /// Number of live flows, a power of two; may be repeated [default: 1, 4096, 65536 and 524288; with --quick 1]
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', value_parser = number_of_flows)]
    flows: Vec<u32>,

    /// Output directory for the JSON and the plot [default: target/bench]
    #[arg(long, value_name = "DIRECTORY", default_value = crate::output::DIRECTORY, hide_default_value = true)]
    output: PathBuf,
}

const FLOWS: [u32; 4] = [1, 4_096, 65_536, 524_288];

/// The minimum capacity of a table.
const LEAST_ROOM: u32 = 65_536;

/// The wrapper numbers clients by a mask.
fn number_of_flows(text: &str) -> Result<u32> {
    let number: u32 = text.parse()?;
    let is_valid = number.is_power_of_two() && number <= MOST_FLOWS;
    ensure!(is_valid, "give a power of two, {MOST_FLOWS} at most");
    Ok(number)
}

const MOST_FLOWS: u32 = 1 << 22;

pub fn run_packets(options: &PacketBenchOptions) -> Result<()> {
    let earlier = options.compare.as_deref().map(report::read_records).transpose()?;
    interrupt::handle_interrupts()?;

    let mut results = Results::new(&options.output)?;
    let mut failed = Vec::new();
    let ended = measure_all(options, &mut results, &mut failed);
    if !results.records.is_empty() {
        print_records(options, &results, earlier.as_deref())?;
    } else if failed.is_empty() && ended.is_ok() {
        bail!("--only {}: no case that this machine can measure has a matching name", options.only);
    }
    failed.iter().for_each(|failure| eprintln!("FAILED: {failure:#}"));
    ended?;
    ensure!(failed.is_empty(), "{} cases failed", failed.len());
    Ok(())
}

/// Measures everything that is wanted. If a case fails, the others continue.
fn measure_all(
    options: &PacketBenchOptions,
    results: &mut Results,
    failed: &mut Vec<anyhow::Error>,
) -> Result<()> {
    let mut idle = IdleWorlds::default();
    measure_packets(options, results, &mut idle, failed)?;
    let progress = Progress::new(0)?;
    let scaling =
        scaling::measure_scaling(options.quick, &options.only, &progress, &mut idle, failed)?;
    drop(idle);
    results.add(scaling)?;
    match sockets::measure_socket_calls(options.quick, &options.only, &progress) {
        Ok(measured) => results.add(measured)?,
        Err(error) => failed.push(error.context("socket hooks")),
    }
    let end_to_end = end_to_end::measure_end_to_end(options.quick, &options.only, &progress)?;
    progress.end();
    results.add(end_to_end)
}

fn print_records(
    options: &PacketBenchOptions,
    results: &Results,
    earlier: Option<&[CaseRecord]>,
) -> Result<()> {
    print!("{}", report::packet_table(&results.records, earlier));
    plot::write_plot(&options.output.join("latest.svg"), &results.records)?;
    println!("\nWritten: {}, the same as latest.json, and latest.svg", results.path.display());
    Ok(())
}

/// The time for what is measured after the packets.
const LATER: Duration = Duration::from_secs(3 * 60);

/// The fewest rounds of a case, even if there is no time for more.
const FEWEST_ROUNDS: usize = 3;

/// The cost of the harness, and the packet cases.
fn measure_packets(
    options: &PacketBenchOptions,
    results: &mut Results,
    idle: &mut IdleWorlds,
    failed: &mut Vec<anyhow::Error>,
) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60 * options.minutes).saturating_sub(LATER);
    let sizes = match (options.flows.as_slice(), options.quick) {
        ([], true) => &FLOWS[..1],
        ([], false) => &FLOWS[..],
        (flows, _) => flows,
    };
    let mut baselines = Baselines::new()?;
    let packets = if options.quick { 50_000 } else { 200_000 };
    // Enough for their own results; the first rounds warm up the CPU.
    (0..3).try_for_each(|_| baselines.measure(2 * packets))?;
    // One family after the other: the largest tables of both would take twice the memory.
    let groups: Vec<(u32, bool)> =
        sizes.iter().flat_map(|&flows| [(flows, false), (flows, true)]).collect();
    for (index, &(flows, v6)) in groups.iter().enumerate() {
        let cases = case::cases_of_family(flows, v6).into_iter();
        let wanted: Vec<Case> = cases.filter(|c| options.only.fits(&c.name())).collect();
        let room = (flows * options.room).max(LEAST_ROOM);
        let memory = options.only.fits(memory::ring_name(v6));
        let mut memory = memory.then(|| MemoryRing::new(v6, flows, room)).transpose()?;
        if wanted.is_empty() && memory.is_none() {
            continue;
        }
        idle.keep_only(room);
        let left = until.saturating_duration_since(Instant::now());
        let effort = Effort {
            rounds: if options.quick { FEWEST_ROUNDS } else { 9 },
            packets,
            until: Instant::now() + left / (groups.len() - index) as u32,
        };
        // Cases that are interleaved need a data plane each. One after the other, they share it.
        let together = if options.quick { 1 } else { wanted.len().max(1) };
        let mut parts: Vec<&[Case]> = wanted.chunks(together).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        for cases in parts {
            let cases = (cases, memory.take());
            let records = interleaved((flows, room), cases, effort, &mut baselines, idle, failed)?;
            results.add(records)?;
        }
    }
    let baselines = baselines.records();
    results.add(baselines.into_iter().filter(|record| options.only.fits(&record.case)))
}

/// How often cases are measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// How many packets of a case in a round.
    packets: u32,
    /// When no round after the [`FEWEST_ROUNDS`] begins any more.
    until: Instant,
}

/// The cases with this number of live flows, in a table of this capacity, interleaved with the
/// baseline of memory access.
fn interleaved(
    (flows, room): (u32, u32),
    (cases, mut memory): (&[Case], Option<MemoryRing>),
    effort: Effort,
    baselines: &mut Baselines,
    idle: &mut IdleWorlds,
    failed: &mut Vec<anyhow::Error>,
) -> Result<Vec<CaseRecord>> {
    let progress = Progress::new(cases.len() * (effort.rounds + 1))?;
    let mut subjects = Vec::new();
    for &case in cases {
        check_interrupted()?;
        let what = case.describe(flows);
        progress.step(&format!("{what}: setting up"));
        match Subject::new(case, flows, room, idle) {
            Ok(subject) => subjects.push(subject),
            Err(error) => failed.push(error.context(what)),
        }
        keep(&mut subjects, failed, Subject::keep_alive);
    }
    for round in 0..effort.rounds {
        check_interrupted()?;
        if round >= FEWEST_ROUNDS && Instant::now() >= effort.until {
            eprintln!("{flows} flows: {round} of {} rounds, for lack of time", effort.rounds);
            break;
        }
        baselines.measure(2 * effort.packets)?;
        memory.iter_mut().for_each(MemoryRing::measure);
        keep(&mut subjects, failed, |subject| {
            progress.step(&subject.describe());
            subject.measure(effort.packets, baselines)
        });
    }
    progress.end();
    let records =
        subjects.iter().map(Subject::record).chain(memory.iter().map(MemoryRing::record)).collect();
    subjects.into_iter().for_each(|subject| subject.end(idle));
    Ok(records)
}

/// Calls a function with each element, and keeps those for which it succeeds.
fn keep(
    subjects: &mut Vec<Subject>,
    failed: &mut Vec<anyhow::Error>,
    mut action: impl FnMut(&mut Subject) -> Result<()>,
) {
    subjects.retain_mut(|subject| {
        let done = action(subject).with_context(|| subject.describe());
        done.map_err(|error| failed.push(error)).is_ok()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_flows_that_the_wrapper_can_vary_are_accepted() {
        for (text, expected) in
            [("1", Some(1)), ("65536", Some(65_536)), ("4194304", Some(MOST_FLOWS)), ("0", None)]
        {
            assert_eq!(number_of_flows(text).ok(), expected, "{text}");
        }
        for text in ["52000", "8388608", "-1", "many"] {
            assert!(number_of_flows(text).is_err(), "{text}");
        }
    }
}
