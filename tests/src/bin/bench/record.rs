//! One case as it stands in the JSON, and the figures it is made of.

use std::fs;
use std::process::Command;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// What was measured of one case. The names are stable; fields are only ever added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub case: String,
    pub flows: u32,
    /// How many flows the table had room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<u32>,
    /// Nanoseconds a packet over the harness's own cost: the median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<f64>,
    /// End to end: the median of the rounds, and their extremes, in `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    pub kernel: String,
    pub processor: String,
    pub commit: String,
}

impl Record {
    fn named(case: &str, flows: u32) -> Self {
        static MACHINE: LazyLock<(String, String, String)> = LazyLock::new(|| {
            (
                output("uname", &["-r"]),
                processor(),
                output("git", &["describe", "--always", "--dirty"]),
            )
        });
        let (kernel, processor, commit) = MACHINE.clone();
        Self { case: case.to_owned(), flows, kernel, processor, commit, ..Self::default() }
    }

    /// Baselines first, then packets by case and number of flows, then end to end.
    pub fn order(&self) -> (u8, String, u32) {
        let rank = match self.case.split('.').next_back() {
            Some("empty" | "wrapper") => 0,
            _ if self.is_end_to_end() => 2,
            _ => 1,
        };
        (rank, self.case.clone(), self.flows)
    }

    pub fn is_end_to_end(&self) -> bool {
        self.unit.is_some()
    }

    /// Median, least and most, whatever their unit.
    pub fn figures(&self) -> [Option<f64>; 3] {
        if self.is_end_to_end() {
            [self.value, self.min, self.max]
        } else {
            [self.net_ns, self.min_ns, self.max_ns]
        }
    }
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

    /// Nanoseconds a packet.
    pub fn packet(&self, case: &str, flows: u32, room: Option<u32>) -> Record {
        let [net_ns, min_ns, max_ns] = self.summary();
        Record { room, net_ns, min_ns, max_ns, ..Record::named(case, flows) }
    }

    pub fn end_to_end(&self, case: &str, unit: &str) -> Record {
        let [value, min, max] = self.summary();
        Record { value, min, max, unit: Some(unit.to_owned()), ..Record::named(case, 0) }
    }

    /// Median, least and most.
    fn summary(&self) -> [Option<f64>; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        [sorted.get(sorted.len() / 2), sorted.first(), sorted.last()].map(|figure| figure.copied())
    }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name"));
    model.map_or(String::new(), |model| model.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_an_outlier() {
        let sample = Sample(vec![900.0, 50.0, 51.0]);
        assert_eq!(sample.summary(), [Some(51.0), Some(50.0), Some(900.0)]);
    }

    #[test]
    fn what_was_not_measured_has_no_figures() {
        assert_eq!(Sample::default().summary(), [None; 3]);
    }

    #[test]
    fn an_earlier_file_with_fewer_fields_can_be_read() -> serde_json::Result<()> {
        let record: Record = serde_json::from_str(r#"{"case": "xdp.empty", "net_ns": 9.0}"#)?;
        assert_eq!(record.figures(), [Some(9.0), None, None]);
        Ok(())
    }
}
