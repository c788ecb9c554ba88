//! `millrace maglev`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use lb_inspect::{Selector, Spread, list_spreads};

use super::options::{Namespaces, open_tables, read_tables};
use crate::cli::output::{OutputFormat, align_all, print_document, write_text};

pub const EXAMPLES: &str = "\
Examples:
  millrace maglev shop/web
  millrace maglev shop/web:http
  The least even table of all Services:
    millrace maglev -o json | jq 'max_by(.evenness.deviationPercent)'

Established connections stay with their backends. MOVED is the share of new connections that
would go to another backend. The table size depends on the number of backends: where it would
change (SLOTS AFTER), nearly all slots move.";

#[derive(Debug, Args)]
pub struct Maglev {
    /// Only this Service, optionally one port by name or number: default/web:http
    #[arg(value_name = "[NAMESPACE/]NAME[:PORT]")]
    service: Option<Selector>,

    #[command(flatten)]
    namespaces: Namespaces,

    /// Output format
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    output: MaglevFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum MaglevFormat {
    #[default]
    Table,
    Json,
    Yaml,
}

pub fn show_maglev(options: &Maglev, pin_path: &Path) -> Result<()> {
    let meant = options.namespaces.of(options.service.as_ref());
    let found = list_spreads(&read_tables(&open_tables(pin_path)?)?, &meant);
    if found.is_empty() && options.service.is_some() {
        bail!("Service {meant} is not programmed or has no backends; see `millrace services`");
    }
    match options.output {
        MaglevFormat::Json => print_document(&found, OutputFormat::Json),
        MaglevFormat::Yaml => print_document(&found, OutputFormat::Yaml),
        MaglevFormat::Table => {
            let text: Vec<String> = found.iter().map(described).collect();
            write_text(&text.join("\n"))
        }
    }
}

fn described(spread: &Spread) -> String {
    let Spread { namespace, service, port, protocol, family, scope, slots, evenness, .. } = spread;
    let port = if port.is_empty() { String::new() } else { format!(":{port}") };
    let mut text = format!("{namespace}/{service}{port} {protocol} {family}, {scope} pool\n");
    let count = spread.backends.len();
    let is_weighted = spread.backends.windows(2).any(|two| two[0].weight != two[1].weight);
    let backends = if count == 1 { "backend" } else { "backends" };
    let _ = writeln!(
        text,
        "{slots} slots, {count} {backends}: {} to {} each, {:.1} on average; at most {:.2}% from {}",
        evenness.min_slots,
        evenness.max_slots,
        evenness.mean_slots,
        evenness.deviation_percent,
        if is_weighted { "the weights" } else { "even" },
    );
    if !spread.as_computed {
        text += "The table in the kernel does not match these backends: is the agent running?\n";
    }
    let headers = [
        "BACKEND",
        "WEIGHT",
        "SLOTS",
        "SHARE",
        "DEVIATION",
        "MOVED IF IT LEFT",
        "OF OTHERS",
        "SLOTS AFTER",
    ];
    let mut rows = vec![headers.map(str::to_owned).to_vec()];
    rows.extend(spread.backends.iter().map(|share| {
        vec![
            share.address.clone(),
            share.weight.to_string(),
            share.slots.to_string(),
            format!("{:.2}%", share.percent),
            format!("{:+.2}%", share.deviation_percent),
            format!("{:.2}%", share.if_it_left.moved_percent),
            format!("{:.2}%", share.if_it_left.of_others_percent),
            share.if_it_left.slots.to_string(),
        ]
    }));
    text + &align_all(&rows)
}
