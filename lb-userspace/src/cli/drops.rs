//! `millrace drops`: prints dropped and refused packets, live.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use lb_common::layout::{PacketEvent, Reason};
use lb_inspect::drops::{DropReport, Listening, RENEWAL, usual_reasons};
use lb_inspect::trace::View;
use lb_inspect::trace::story::NameLookup;
use nix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use lb_inspect::LiveNames;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DropsOptions {
    /// Only packets with this reason, such as no_backend; may be repeated
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Vec<Reason>,

    /// Also packets that looked like those of a Service and were passed unchanged
    #[arg(long, conflicts_with = "reason")]
    passed: bool,

    /// Only packets to this Service: NAMESPACE/NAME, or any part of the printed name
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,

    /// Exit after this many packets
    #[arg(long, short = 'n', value_name = "NUMBER")]
    count: Option<u64>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: DropsFormat,
}

const EXAMPLES: &str = "\
Examples:
  All dropped and refused packets:
    millrace drops

  Ten packets to Services without a backend, as JSON:
    millrace drops --reason no_backend --count 10 -o json

docs/operations.md explains each reason and how to fix it.";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DropsFormat {
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

fn reason(text: &str) -> Result<Reason, String> {
    let names = || Reason::ALL.map(Reason::name).join(", ");
    let found = Reason::ALL.into_iter().find(|reason| reason.name() == text);
    found.ok_or_else(|| format!("not a reason; one of: {}", names()))
}

pub fn show_drops(options: &DropsOptions, pin_path: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(listen(options, pin_path))
}

async fn listen(options: &DropsOptions, pin_path: &Path) -> Result<()> {
    let (view, names) = (View::open(pin_path)?, LiveNames::open(pin_path)?);
    let reasons: Vec<Reason> = match (&options.reason[..], options.passed) {
        ([], true) => Reason::ALL.to_vec(),
        ([], false) => usual_reasons().collect(),
        (some, _) => some.to_vec(),
    };
    let mut listening = Listening::begin(pin_path, reasons.into_iter())?;
    // To stderr, for scripts that wait for it.
    eprintln!("listening");
    let mut renewal = interval(RENEWAL);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut terminated = signal(SignalKind::terminate())?;
    let left = options.count.unwrap_or(u64::MAX);
    let mut printer = DropsPrinter { options, view, names, left, unreported: 0 };
    while printer.left > 0 {
        tokio::select! {
            events = listening.next() => printer.print(&events?)?,
            _ = renewal.tick() => {
                listening.renew()?;
                printer.print_unreported(listening.unreported()?);
            }
            _ = tokio::signal::ctrl_c() => break,
            _ = terminated.recv() => break,
        }
    }
    // In this order, so that each packet is printed or counted, also at the end.
    let rest = listening.end();
    printer.print(&rest)?;
    printer.print_unreported(listening.unreported()?);
    Ok(())
}

struct DropsPrinter<'a> {
    options: &'a DropsOptions,
    view: View,
    names: LiveNames,
    /// Number of packets still to print.
    left: u64,
    /// Number of unreported packets that has been printed.
    unreported: u64,
}

impl DropsPrinter<'_> {
    fn print(&mut self, events: &[PacketEvent]) -> Result<()> {
        for event in events {
            let report = self.report(event)?;
            if self.left == 0 || !is_wanted(self.options, &report) {
                continue;
            }
            self.left -= 1;
            let line = match self.options.output {
                DropsFormat::Text => report.line(),
                DropsFormat::Json => serde_json::to_string(&report)?,
            };
            match writeln!(io::stdout(), "{line}") {
                // The reader has closed the pipe.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.left = 0,
                result => result?,
            }
        }
        Ok(())
    }

    /// `unreported`: the present number.
    fn print_unreported(&mut self, unreported: u64) {
        if unreported > self.unreported {
            eprintln!("{} more not printed: too many at once", unreported - self.unreported);
            self.unreported = unreported;
        }
    }

    fn report(&self, event: &PacketEvent) -> Result<DropReport> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let then = SignedDuration::from_nanos(i64::try_from(event.time)?);
        let age = SignedDuration::new(now.tv_sec(), now.tv_nsec() as i32) - then;
        let mut report = DropReport::of(event, age, self.names.device(event.device));
        let service_port = self.view.service_port_of(event);
        report.service_port = service_port.map(|index| self.names.service_port(index));
        Ok(report)
    }
}

fn is_wanted(options: &DropsOptions, report: &DropReport) -> bool {
    let Some(wanted) = &options.service else { return true };
    report.service_port.as_ref().is_some_and(|service_port| service_port.contains(wanted.as_str()))
}
