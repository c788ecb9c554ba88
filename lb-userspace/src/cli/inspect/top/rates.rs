//! Rates since the last look, and their columns.

use std::time::Instant;

use anyhow::Result;
use lb_inspect::{CounterSample, Rate, Rates, Selector, format_short};
use lb_kernel::Tables;

use super::super::options::read_tables;

/// Reads the counters repeatedly.
pub struct Watcher {
    tables: Tables,
    meant: Selector,
    last: CounterSample,
    at: Instant,
}

impl Watcher {
    pub fn new(tables: Tables, meant: Selector) -> Result<Self> {
        let last = sample(&tables, &meant)?;
        Ok(Self { tables, meant, last, at: Instant::now() })
    }

    /// The rates since the last call.
    pub fn look(&mut self) -> Result<Rates> {
        let sample = sample(&self.tables, &self.meant)?;
        let now = Instant::now();
        let rates = Rates::between(&self.last, &sample, now - self.at);
        (self.last, self.at) = (sample, now);
        Ok(rates)
    }
}

fn sample(tables: &Tables, meant: &Selector) -> Result<CounterSample> {
    let reasons = tables.reasons()?.into_iter();
    let reasons = reasons.map(|(reason, packets)| (reason.name(), packets)).collect();
    Ok(CounterSample::of(&read_tables(tables)?, reasons, meant))
}

/// The columns of rates.
pub const HEADERS: [&str; 5] =
    ["NEW/s", "PACKETS-IN/s", "PACKETS-OUT/s", "BYTES-IN/s", "BYTES-OUT/s"];

pub fn rate_cells(rate: &Rate) -> [String; 5] {
    [
        rate.new_flows,
        rate.forward_packets,
        rate.reverse_packets,
        rate.forward_bytes,
        rate.reverse_bytes,
    ]
    .map(format_short)
}
