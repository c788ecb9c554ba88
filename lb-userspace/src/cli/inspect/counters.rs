//! `millrace counters`.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::options::open_tables;
use crate::cli::output::{self, Output, Row};

pub const EXAMPLES: &str = "\
Examples:
  millrace counters
  Follow changes:
    millrace counters --watch
  Only reasons with packets:
    millrace counters -o json | jq '.[] | select(.packets > 0)'";

#[derive(Debug, Args)]
pub struct Counters {
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Counter {
    reason: &'static str,
    packets: u64,
}

pub fn show_counters(options: &Counters, pin_path: &Path) -> Result<()> {
    let tables = open_tables(pin_path)?;
    output::show_rows(&options.output, || {
        let counted = tables.reasons()?.into_iter();
        Ok(counted.map(|(reason, packets)| Counter { reason: reason.name(), packets }).collect())
    })
}

impl Row for Counter {
    const PLURAL: &'static str = "counters";
    const HEADERS: &'static [&'static str] = &["REASON", "PACKETS"];
    const NARROW: usize = 2;

    fn cells(&self) -> Vec<String> {
        vec![self.reason.to_owned(), self.packets.to_string()]
    }

    fn name(&self) -> String {
        self.reason.to_owned()
    }
}
