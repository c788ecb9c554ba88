//! What was measured, for people and for programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One case, as it stands in the JSON. The names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub case: String,
    pub flows: u32,
    /// Nanoseconds a packet over the harness's own cost: the median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<f64>,
    /// End to end: the median of the rounds, in `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    pub kernel: String,
    pub commit: String,
}

/// The figures of one case over the rounds.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub fn last(&self) -> f64 {
        self.0.last().copied().unwrap_or_default()
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    pub fn record(&self, case: &str, flows: u32) -> Record {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Record {
            net_ns: Some(self.median()),
            min_ns: Some(least),
            max_ns: Some(most),
            ..Record::named(case, flows)
        }
    }
}

impl Record {
    pub fn named(case: &str, flows: u32) -> Self {
        Self {
            case: case.to_owned(),
            flows,
            net_ns: None,
            min_ns: None,
            max_ns: None,
            value: None,
            unit: None,
            kernel: output("uname", &["-r"]),
            commit: output("git", &["rev-parse", "--short", "HEAD"]),
        }
    }

    pub fn end_to_end(case: &str, value: f64, unit: &str) -> Self {
        Self { value: Some(value), unit: Some(unit.to_owned()), ..Self::named(case, 0) }
    }

    /// Baselines first, then by case and number of flows.
    pub fn order(&self) -> (u8, String, u32) {
        let rank = match self.case.split('.').next_back() {
            Some("empty" | "wrapper") => 0,
            _ if self.case.starts_with("e2e") => 2,
            _ => 1,
        };
        (rank, self.case.clone(), self.flows)
    }

    /// What is compared: nanoseconds, or the value.
    fn figure(&self) -> Option<f64> {
        self.net_ns.or(self.value)
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// A line a case; against one hot established flow, or the way without a balancer, and against
/// an earlier run.
pub fn table(records: &[Record], earlier: Option<&[Record]>) -> String {
    let find = |case: &str, flows| records.iter().find(|r| r.case == case && r.flows == flows);
    let mut text = format!(
        "{:<26} {:>8} {:>12} {:>15} {:>7}{}\n",
        "CASE",
        "FLOWS",
        "MEDIAN",
        "MIN..MAX",
        "RATIO",
        if earlier.is_some() { "  CHANGE" } else { "" }
    );
    for record in records {
        let Some(figure) = record.figure() else { continue };
        let (median, spread) = match (record.min_ns, record.max_ns, &record.unit) {
            (Some(least), Some(most), _) => {
                (format!("{figure:.0} ns"), format!("{least:.0}..{most:.0}"))
            }
            (_, _, Some(unit)) => (format!("{figure:.1} {unit}"), String::new()),
            _ => (format!("{figure:.1}"), String::new()),
        };
        let against = match record.case.strip_prefix("e2e.nodeport.") {
            Some(what) => find(&format!("e2e.direct.{what}"), 0),
            None if record.case.starts_with("e2e") => None,
            None => find("xdp.v4.tcp.established", 1),
        };
        let ratio = against.and_then(Record::figure).filter(|base| *base > 0.0);
        let ratio = ratio.map_or(String::new(), |base| format!("{:.2}", figure / base));
        let change = earlier.map_or(String::new(), |earlier| change(record, earlier));
        let flows = if record.flows == 0 { String::new() } else { record.flows.to_string() };
        text +=
            format!("{:<26} {flows:>8} {median:>12} {spread:>15} {ratio:>7}{change}", record.case)
                .trim_end();
        text.push('\n');
    }
    text
}

fn change(record: &Record, earlier: &[Record]) -> String {
    let before = earlier.iter().find(|r| r.case == record.case && r.flows == record.flows);
    match (before.and_then(Record::figure), record.figure()) {
        (Some(before), Some(now)) if before > 0.0 => {
            format!("  {:+.1} %", (now / before - 1.0) * 100.0)
        }
        _ => "  new".to_owned(),
    }
}

pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(path).with_context(|| format!("--compare {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what a benchmark has written", path.display()))
}

pub fn write(directory: &Path, records: &[Record]) -> Result<()> {
    fs::create_dir_all(directory)?;
    let path = directory.join("latest.json");
    fs::write(&path, serde_json::to_string_pretty(records)? + "\n")
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_an_outlier() {
        let sample = Sample(vec![50.0, 51.0, 900.0]);
        assert_eq!(sample.median(), 51.0);
    }

    #[test]
    fn a_change_is_shown_by_case_and_flows() {
        let mut record = Record::named("xdp.v4.none", 1);
        record.net_ns = Some(11.0);
        let mut before = record.clone();
        before.net_ns = Some(10.0);
        assert_eq!(change(&record, &[before]).trim(), "+10.0 %");
        assert_eq!(change(&record, &[]).trim(), "new");
    }
}
