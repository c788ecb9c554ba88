//! `cargo xtask bench`: what a packet costs, and what that is worth from end to end.

mod end_to_end;
mod plot;
mod report;
mod subject;
mod wrapper;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use indicatif::ProgressBar;

use report::Record;
use subject::{Baselines, Subject};

/// Measure Millrace
///
/// Every case is interleaved with all others over several rounds; medians are reported, less what
/// the harness itself costs. Figures of one run compare with each other; machines differ.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Options {
    /// Show the change since an earlier JSON file
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Only cases whose names match; * stands for anything, e.g. 'xdp.v4.*'
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,

    /// Fewer rounds, and not the largest tables
    #[arg(long)]
    quick: bool,

    /// Where latest.json and latest.svg go
    #[arg(long, value_name = "DIRECTORY", default_value = OUTPUT)]
    output: PathBuf,
}

const OUTPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench");

const FLOWS: [u32; 4] = [1, 4_096, 65_536, 524_288];

fn main() -> Result<()> {
    let options = Options::parse();
    let earlier = options.compare.as_deref().map(report::read).transpose()?;
    let rounds = if options.quick { 3 } else { 9 };
    let flows = if options.quick { &FLOWS[..2] } else { &FLOWS[..] };

    let mut records = Vec::new();
    for &flows in flows {
        records.extend(packets(&options, flows, rounds)?);
    }
    if records.iter().all(|record| record.net_ns.is_none()) && options.only.is_none() {
        anyhow::bail!("nothing was measured");
    }
    records.extend(end_to_end::measure(options.quick, |case| options.wants(case))?);
    records.sort_by_key(Record::order);

    print!("{}", report::table(&records, earlier.as_deref()));
    report::write(&options.output, &records)?;
    plot::write(&options.output.join("latest.svg"), &records)?;
    println!("\nlatest.json and latest.svg are in {}", options.output.display());
    Ok(())
}

impl Options {
    fn wants(&self, case: &str) -> bool {
        self.only.as_deref().is_none_or(|pattern| matches(pattern, case))
    }
}

/// Whether a name fits a pattern in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }),
    }
}

/// All packet cases with so many live flows.
fn packets(options: &Options, flows: u32, rounds: usize) -> Result<Vec<Record>> {
    let wanted: Vec<_> =
        subject::cases(flows).into_iter().filter(|case| options.wants(&case.name())).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let bar = progress((wanted.len() * (rounds + 1)) as u64);
    let mut baselines = Baselines::new(flows)?;
    let mut subjects = Vec::new();
    for case in wanted {
        bar.set_message(format!("{} with {flows} flows: setting up", case.name()));
        let name = case.name();
        subjects.push(Subject::new(case, flows).with_context(|| name)?);
        bar.inc(1);
    }
    for _ in 0..rounds {
        baselines.measure()?;
        for subject in &mut subjects {
            bar.set_message(format!("{} with {flows} flows", subject.name()));
            subject.measure(&baselines).with_context(|| subject.name())?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut records = if flows == 1 { baselines.records() } else { Vec::new() };
    records.extend(subjects.iter().map(Subject::record));
    Ok(records)
}

fn progress(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
    ProgressBar::new(steps)
        .with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_names() {
        assert!(matches("xdp.v4.*", "xdp.v4.tcp.new"));
        assert!(matches("*.new", "xdp.v4.tcp.new"));
        assert!(matches("xdp.*.tcp.*", "xdp.v6.tcp.established"));
        assert!(!matches("xdp.v4", "xdp.v4.none"));
        assert!(!matches("tc.*", "xdp.v4.none"));
    }
}
