//! `millrace top`: live rates.

mod rates;
mod screen;
mod terminal;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lb_inspect::{Rate, Rates, Sort, format_short};

use super::options::{Namespaces, open_tables};
use crate::cli::output::{OutputFormat, align_all, print_document};
use rates::{HEADERS, Watcher, rate_cells};

pub const EXAMPLES: &str = "\
Keys:
  tab        switch between Services and backends
  p c b n    sort by packets, new connections, bytes, name
  space      pause and resume
  q          quit

Examples:
  millrace top
  millrace top -n shop --sort connections
  Once, for scripts, over five seconds:
    millrace top --once --interval 5 -o json | jq '.total'

All rates are per second. If stdout is not a terminal, a table is printed after each interval.";

#[derive(Debug, Args)]
pub struct TopOptions {
    /// Interval between updates, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,

    /// Sort order
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,

    /// Print the rates of one interval and exit
    #[arg(long)]
    once: bool,

    /// Output format where a table, not the live screen, is printed
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    output: TopFormat,

    #[command(flatten)]
    namespaces: Namespaces,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum TopFormat {
    #[default]
    Table,
    Json,
    Yaml,
}

pub fn show_top(options: &TopOptions, pin_path: &Path) -> Result<()> {
    let mut watcher = Watcher::new(open_tables(pin_path)?, options.namespaces.of(None))?;
    let interval = Duration::from_secs(options.interval.into());
    let is_live = io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_live && !options.once && options.output == TopFormat::Table {
        return terminal::run_terminal(&mut watcher, interval, options.sort);
    }
    loop {
        thread::sleep(interval);
        let mut rates = watcher.look()?;
        rates.sort(options.sort);
        let text = match options.output {
            TopFormat::Json => print_document(&rates, OutputFormat::Json),
            TopFormat::Yaml => print_document(&rates, OutputFormat::Yaml),
            TopFormat::Table => crate::cli::output::write_text(&described(&rates)),
        };
        text?;
        if options.once {
            return Ok(());
        }
    }
}

fn described(rates: &Rates) -> String {
    let table = |what: &str, rates: &mut dyn Iterator<Item = &Rate>| {
        let mut lines = vec![[&[what][..], &HEADERS].concat()];
        let rows: Vec<Vec<String>> = rates
            .map(|rate| [vec![rate.name.clone()], rate_cells(rate).to_vec()].concat())
            .collect();
        lines.extend(rows.iter().map(|row| row.iter().map(String::as_str).collect()));
        let lines: Vec<Vec<String>> = lines
            .into_iter()
            .map(|line: Vec<&str>| line.into_iter().map(str::to_owned).collect())
            .collect();
        align_all(&lines)
    };
    let mut reasons = vec![["REASON", "PACKETS/s", "TOTAL"].map(str::to_owned).to_vec()];
    reasons.extend(rates.reasons.iter().map(|reason| {
        vec![reason.reason.to_owned(), format_short(reason.packets), reason.total.to_string()]
    }));
    let services = table("SERVICE", &mut rates.services.iter().chain([&rates.total]));
    let backends = table("BACKEND", &mut rates.backends.iter());
    [services, backends, align_all(&reasons)].join("\n") + "\n"
}
