//! The JSON of one case.

use crate::figures::{Machine, Sample, this_machine};
use serde::{Deserialize, Serialize};

/// The results of one case. Names are stable; fields are only added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CaseRecord {
    pub case: String,
    pub flows: u32,
    /// Capacity of the flow table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<u32>,
    /// Nanoseconds per packet without the cost of the harness: the median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<f64>,
    /// End to end: median, minimum and maximum of the rounds, in `unit`.
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

impl CaseRecord {
    fn named(case: &str, flows: u32) -> Self {
        let Machine { kernel, processor, commit } = this_machine().clone();
        Self { case: case.to_owned(), flows, kernel, processor, commit, ..Self::default() }
    }

    /// A result in nanoseconds per packet.
    pub fn packet(sample: &Sample, case: &str, flows: u32, room: Option<u32>) -> Self {
        let [net_ns, min_ns, max_ns] = sample.summary();
        Self { room, net_ns, min_ns, max_ns, ..Self::named(case, flows) }
    }

    pub(crate) fn end_to_end(sample: &Sample, case: &str, unit: &str) -> Self {
        let [value, min, max] = sample.summary();
        Self { value, min, max, unit: Some(unit.to_owned()), ..Self::named(case, 0) }
    }

    /// Baselines first, then packets by case and number of flows, then end to end.
    pub fn order(&self) -> (u8, String, u32) {
        let rank = match self.case.split('.').next_back() {
            Some("empty" | "wrapper") => 0,
            _ if self.case.starts_with("memory.") => 0,
            _ if self.is_end_to_end() => 2,
            _ => 1,
        };
        (rank, self.case.clone(), self.flows)
    }

    pub(crate) fn is_end_to_end(&self) -> bool {
        self.unit.is_some()
    }

    /// Median, minimum and maximum, in any unit.
    pub fn figures(&self) -> [Option<f64>; 3] {
        if self.is_end_to_end() {
            [self.value, self.min, self.max]
        } else {
            [self.net_ns, self.min_ns, self.max_ns]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_file_with_fewer_fields_can_be_read() -> serde_json::Result<()> {
        let record: CaseRecord = serde_json::from_str(r#"{"case": "xdp.empty", "net_ns": 9.0}"#)?;
        assert_eq!(record.figures(), [Some(9.0), None, None]);
        Ok(())
    }
}
