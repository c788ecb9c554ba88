//! `cargo xtask bench`: the cost of a packet in the data plane, and end-to-end throughput.

mod baselines;
mod case;
mod end_to_end;
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

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use indicatif::{ProgressBar, ProgressStyle};

use baselines::Baselines;
use case::Case;
use interrupt::check_interrupted;
use memory::Memory;
use pattern::Pattern;
use record::Record;
use subject::Subject;

pub use socket_timer::{ARGUMENT as SOCKET_TIMER, serve as time_sockets};

/// Measure the data plane: nanoseconds per packet and per system call, and end-to-end requests per second
///
/// Packets are measured with BPF_PROG_TEST_RUN, in a wrapper that renews the packet for each run. The cost of the
/// wrapper is measured in the same rounds and subtracted. Cases with the same address family and number of flows are
/// interleaved. Results of one run can be compared with each other, but not with those of another machine.
#[derive(Debug, Args)]
pub struct Options {
    /// JSON file of an earlier run, to show the changes since then
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Only cases whose names contain this text, or match it if it contains *, such as 'xdp.*.new'
    #[arg(long, value_name = "PATTERN", default_value = "")]
    only: Pattern,

    /// Fewer rounds, one flow, and a debug build: a check that everything works
    #[arg(long)]
    quick: bool,

    /// Capacity of the flow table, as a multiple of the number of flows
    ///
    /// Below 4, flows do not get entries, and a case is not measured.
    #[arg(long, value_name = "TIMES", default_value_t = 8, value_parser = value_parser!(u32).range(1..=64))]
    room: u32,

    /// Number of live flows, a power of two; may be repeated [default: 1, 4096, 65536 and 524288; with --quick 1]
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', value_parser = number_of_flows)]
    flows: Vec<u32>,

    /// Output directory for the JSON and the plot [default: target/bench]
    #[arg(long, value_name = "DIRECTORY", default_value = crate::OUTPUT, hide_default_value = true)]
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

pub fn run(options: &Options) -> Result<()> {
    let earlier = options.compare.as_deref().map(report::read).transpose()?;
    interrupt::handle()?;

    let mut records = Vec::new();
    let mut failed = Vec::new();
    // Results are kept even if the rest fails.
    let packets = packets(options, &mut records, &mut failed);
    let ended = packets.and_then(|()| {
        records.extend(scaling::measure(options.quick, &options.only, &mut failed)?);
        match sockets::measure(options.quick, &options.only) {
            Ok(measured) => records.extend(measured),
            Err(error) => failed.push(error.context("socket hooks")),
        }
        records.extend(end_to_end::measure(options.quick, &options.only)?);
        Ok(())
    });
    if !records.is_empty() {
        show(options, records, earlier.as_deref())?;
    } else if failed.is_empty() && ended.is_ok() {
        bail!("--only {}: no case that this machine can measure has a matching name", options.only);
    }
    failed.iter().for_each(|failure| eprintln!("FAILED: {failure:#}"));
    ended?;
    ensure!(failed.is_empty(), "{} cases failed", failed.len());
    Ok(())
}

fn show(options: &Options, mut records: Vec<Record>, earlier: Option<&[Record]>) -> Result<()> {
    records.sort_by_key(Record::order);
    print!("{}", report::table(&records, earlier));
    let own = report::write(&options.output, &records)?;
    plot::write(&options.output.join("latest.svg"), &records)?;
    println!("\nWritten: {}, the same as latest.json, and latest.svg", own.display());
    Ok(())
}

/// The cost of the harness, and the packet cases. If a case fails, the others continue.
fn packets(
    options: &Options,
    records: &mut Vec<Record>,
    failed: &mut Vec<anyhow::Error>,
) -> Result<()> {
    let rounds = if options.quick { 3 } else { 9 };
    let sizes = match (options.flows.as_slice(), options.quick) {
        ([], true) => &FLOWS[..1],
        ([], false) => &FLOWS[..],
        (flows, _) => flows,
    };
    let mut baselines = Baselines::new()?;
    // Enough for their own results; the first rounds warm up the CPU.
    (0..3).try_for_each(|_| baselines.measure())?;
    for &flows in sizes {
        // One family after the other: the largest tables of both would take twice the memory.
        for v6 in [false, true] {
            let cases = case::cases(flows, v6).into_iter();
            let wanted: Vec<Case> = cases.filter(|c| options.only.fits(&c.name())).collect();
            let room = (flows * options.room).max(LEAST_ROOM);
            let memory = options.only.fits(memory::name(v6));
            let memory = memory.then(|| Memory::new(v6, flows, room)).transpose()?;
            if !wanted.is_empty() || memory.is_some() {
                records.extend(interleaved(
                    (flows, room),
                    (wanted, memory),
                    rounds,
                    &mut baselines,
                    failed,
                )?);
            }
        }
    }
    let baselines = baselines.records();
    records.extend(baselines.into_iter().filter(|record| options.only.fits(&record.case)));
    Ok(())
}

/// The cases with this number of live flows, in a table of this capacity, interleaved with the
/// baseline of memory access.
fn interleaved(
    (flows, room): (u32, u32),
    (cases, mut memory): (Vec<Case>, Option<Memory>),
    rounds: usize,
    baselines: &mut Baselines,
    failed: &mut Vec<anyhow::Error>,
) -> Result<Vec<Record>> {
    let bar = progress(cases.len() * (rounds + 1))?;
    let mut subjects = Vec::new();
    for case in cases {
        check_interrupted()?;
        let what = case.describe(flows);
        bar.set_message(format!("{what}: setting up"));
        match Subject::new(case, flows, room) {
            Ok(subject) => subjects.push(subject),
            Err(error) => failed.push(error.context(what)),
        }
        bar.inc(1);
        keep(&mut subjects, failed, Subject::keep_alive);
    }
    for _ in 0..rounds {
        check_interrupted()?;
        baselines.measure()?;
        memory.iter_mut().for_each(Memory::measure);
        keep(&mut subjects, failed, |subject| {
            bar.set_message(subject.describe());
            bar.inc(1);
            subject.measure(baselines)
        });
    }
    bar.finish_and_clear();
    Ok(subjects.iter().map(Subject::record).chain(memory.iter().map(Memory::record)).collect())
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

fn progress(steps: usize) -> Result<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}")?;
    Ok(ProgressBar::new(steps as u64).with_style(style))
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
