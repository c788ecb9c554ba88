//! The results: a table for people, files for programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::record::CaseRecord;
use crate::figures::this_machine;

/// The case to which others are compared: one hot established flow.
const REFERENCE: (&str, u32) = ("xdp.v4.tcp.established", 1);

/// A line for each case, compared with the reference, or with direct access, and with an earlier run.
pub fn packet_table(records: &[CaseRecord], earlier: Option<&[CaseRecord]>) -> String {
    let mut text =
        line(["CASE", "FLOWS", "ROOM", "MEDIAN", "MIN..MAX", "RATIO"].map(str::to_owned));
    if earlier.is_some() {
        text += "   CHANGE";
    }
    text.push('\n');
    for record in records {
        let [Some(median), Some(least), Some(most)] = record.figures() else { continue };
        let unit = record.unit.as_deref().unwrap_or("ns");
        let ratio = reference(record, records).filter(|&against| against > 0.0);
        let cells = [
            record.case.clone(),
            if record.flows == 0 { String::new() } else { record.flows.to_string() },
            record.room.map_or(String::new(), |room| room.to_string()),
            format!("{} {unit}", format_figure(median)),
            format!("{}..{}", format_figure(least), format_figure(most)),
            ratio.map_or(String::new(), |against| format!("{:.2}", median / against)),
        ];
        text += &line(cells);
        if let Some(earlier) = earlier {
            text += &format!(" {:>8}", change(record, earlier));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn line([case, flows, room, median, spread, ratio]: [String; 6]) -> String {
    format!("{case:<28} {flows:>7} {room:>8} {median:>17} {spread:>15} {ratio:>6}")
}

/// With at least three significant digits.
fn format_figure(figure: f64) -> String {
    if figure.abs() < 100.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }
}

fn reference(record: &CaseRecord, records: &[CaseRecord]) -> Option<f64> {
    let what = record.case.rsplit('.').next().unwrap_or_default();
    let direct = format!("e2e.direct.{what}");
    let (case, flows) = if record.is_end_to_end() { (&*direct, 0) } else { REFERENCE };
    let found = records.iter().find(|other| other.case == case && other.flows == flows)?;
    found.figures()[0]
}

fn change(record: &CaseRecord, earlier: &[CaseRecord]) -> String {
    let same = |other: &&CaseRecord| other.case == record.case && other.flows == record.flows;
    match (earlier.iter().find(same).and_then(|r| r.figures()[0]), record.figures()[0]) {
        (Some(before), Some(now)) if before > 0.0 => {
            format!("{:+.1} %", (now / before - 1.0) * 100.0)
        }
        _ => "new".to_owned(),
    }
}

pub fn read_records(path: &Path) -> Result<Vec<CaseRecord>> {
    let text = fs::read_to_string(path).with_context(|| format!("--compare {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what a benchmark has written", path.display()))
}

/// The results so far. They are in files as soon as they are there, so that an interrupted run leaves what it has
/// measured.
pub struct Results {
    /// In the order of [`CaseRecord::order`].
    pub records: Vec<CaseRecord>,
    /// The file for later comparisons.
    pub path: PathBuf,
    /// Always the last run's.
    latest: PathBuf,
}

impl Results {
    /// Of a run that begins now.
    pub fn new(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let seconds = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
        let path = directory.join(format!("{seconds}-{}.json", this_machine().commit));
        Ok(Self { records: Vec::new(), path, latest: directory.join("latest.json") })
    }

    /// Adds results, and writes all.
    pub fn add(&mut self, records: impl IntoIterator<Item = CaseRecord>) -> Result<()> {
        self.records.extend(records);
        self.records.sort_by_key(CaseRecord::order);
        if self.records.is_empty() {
            return Ok(());
        }
        let json = serde_json::to_string_pretty(&self.records)? + "\n";
        for path in [&self.path, &self.latest] {
            fs::write(path, &json).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(case: &str, flows: u32, ns: f64) -> CaseRecord {
        let [net_ns, min_ns, max_ns] = [Some(ns); 3];
        CaseRecord { case: case.to_owned(), flows, net_ns, min_ns, max_ns, ..CaseRecord::default() }
    }

    #[test]
    fn a_change_is_shown_by_case_and_flows() {
        let now = packet("xdp.v4.none", 1, 11.0);
        assert_eq!(change(&now, &[packet("xdp.v4.none", 1, 10.0)]), "+10.0 %");
        assert_eq!(change(&now, &[packet("xdp.v4.none", 4096, 10.0)]), "new");
        assert_eq!(change(&now, &[]), "new");
    }

    #[test]
    fn packets_are_held_against_one_hot_flow() {
        let records = [packet(REFERENCE.0, 1, 50.0), packet("xdp.v4.tcp.new", 4096, 125.0)];
        assert!(
            packet_table(&records, None).trim_end().ends_with("2.50"),
            "{}",
            packet_table(&records, None)
        );
    }

    #[test]
    fn what_was_written_can_be_compared_with() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let mut results = Results::new(directory.path())?;
        let read_all = |results: &Results| -> Result<_> {
            Ok([read_records(&results.path)?, read_records(&directory.path().join("latest.json"))?])
        };
        results.add([packet("xdp.v4.none", 1, 11.0)])?;
        assert!(read_all(&results)?.iter().all(|records| records[0].net_ns == Some(11.0)));
        results.add([packet("xdp.v4.none", 4096, 12.0)])?;
        assert!(read_all(&results)?.iter().all(|records| records.len() == 2));
        Ok(())
    }
}
