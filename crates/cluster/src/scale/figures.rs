//! Figures of one contender, and the table.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

/// Times in milliseconds.
#[derive(Debug, Default, Serialize)]
pub struct Spread {
    pub count: usize,
    pub median: f64,
    pub worst_of_hundred: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return Self::default() };
        // Rounded up: of few figures, the worst of a hundred is the worst.
        let at = |share: usize| sorted[(last * share).div_ceil(100)];
        Self {
            count: sorted.len(),
            median: at(50),
            worst_of_hundred: at(99),
            least: sorted[0],
            most: sorted[last],
        }
    }

    fn range(&self) -> String {
        if self.count == 0 {
            return "-".to_owned();
        }
        format!("{:.0} ({:.0}..{:.0})", self.median, self.least, self.most)
    }

    fn worst(&self) -> String {
        if self.count == 0 {
            return "-".to_owned();
        }
        format!("{:.1} ({:.1})", self.median, self.worst_of_hundred)
    }
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What is measured of one contender. Times in milliseconds, memory in MiB.
#[derive(Debug, Default)]
pub struct Samples {
    /// From the start of the process without state of an earlier one until the first measured Service answers.
    pub cold_first: Vec<f64>,
    /// From the start of the process without state of an earlier one until all measured Services answer.
    pub cold_all: Vec<f64>,
    /// CPU time until all measured Services answer.
    pub cold_processor: Vec<f64>,
    /// From the start of the process after SIGKILL until a change is in force that was made meanwhile.
    pub restart: Vec<f64>,
    pub restart_processor: Vec<f64>,
    /// From the request that changes an endpoint until the new one replies.
    pub change: Vec<f64>,
    /// From the API server's response to that request; less than 0 if the endpoint has replied before.
    pub change_after_response: Vec<f64>,
    /// CPU time of one change, over all of a round.
    pub change_processor: Vec<f64>,
    /// The most anonymous memory of a process, from its start to its end.
    pub peak_anonymous: Vec<f64>,
    /// The most memory of all kinds: also of the program's file, and of BPF maps that it has mapped.
    pub peak_memory: Vec<f64>,
}

/// The figures of one contender.
#[derive(Debug, Serialize)]
pub struct ContenderFigures {
    pub name: String,
    pub cold_first_ms: Spread,
    pub cold_all_ms: Spread,
    pub cold_processor_ms: Spread,
    pub restart_ms: Spread,
    pub restart_processor_ms: Spread,
    pub change_ms: Spread,
    pub change_after_response_ms: Spread,
    pub change_processor_ms: Spread,
    pub peak_anonymous_mib: Spread,
    pub peak_memory_mib: Spread,
}

impl ContenderFigures {
    pub fn new(name: &str, samples: &Samples) -> Self {
        Self {
            name: name.to_owned(),
            cold_first_ms: Spread::of(&samples.cold_first),
            cold_all_ms: Spread::of(&samples.cold_all),
            cold_processor_ms: Spread::of(&samples.cold_processor),
            restart_ms: Spread::of(&samples.restart),
            restart_processor_ms: Spread::of(&samples.restart_processor),
            change_ms: Spread::of(&samples.change),
            change_after_response_ms: Spread::of(&samples.change_after_response),
            change_processor_ms: Spread::of(&samples.change_processor),
            peak_anonymous_mib: Spread::of(&samples.peak_anonymous),
            peak_memory_mib: Spread::of(&samples.peak_memory),
        }
    }
}

/// A table in Markdown, with a column for each contender.
pub fn write_table(contenders: &[ContenderFigures]) -> String {
    type Row = (&'static str, fn(&ContenderFigures) -> String);
    let rows: [Row; 10] = [
        ("cold start until an address answers, ms", |of| of.cold_first_ms.range()),
        ("cold start until all measured answer, ms", |of| of.cold_all_ms.range()),
        ("its CPU time, ms", |of| of.cold_processor_ms.range()),
        ("restart after SIGKILL until a change is in force, ms", |of| of.restart_ms.range()),
        ("its CPU time, ms", |of| of.restart_processor_ms.range()),
        ("a change from its request, ms: median (99 %)", |of| of.change_ms.worst()),
        ("a change from the API server's response, ms: median (99 %)", |of| {
            of.change_after_response_ms.worst()
        }),
        ("CPU time of a change, ms", |of| of.change_processor_ms.worst()),
        ("peak of anonymous memory, MiB", |of| of.peak_anonymous_mib.range()),
        ("peak of all memory, with mapped BPF maps, MiB", |of| of.peak_memory_mib.range()),
    ];
    let mut table = String::from("| |");
    for contender in contenders {
        let _ = write!(table, " {} |", contender.name);
    }
    let _ = write!(table, "\n| --- |{}\n", " ---: |".repeat(contenders.len()));
    for (name, cell) in rows {
        let cells: Vec<_> = contenders.iter().map(cell).collect();
        let _ = writeln!(table, "| {name} | {} |", cells.join(" | "));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_few_is_the_worst_of_a_hundred() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.worst_of_hundred), (2.0, 3.0));
        assert_eq!(Spread::of(&[]).range(), "-");
    }

    #[test]
    fn each_contender_has_a_column() {
        let samples = Samples { cold_first: vec![1.0, 5.0, 2.0], ..Samples::default() };
        let table = write_table(&[
            ContenderFigures::new("one", &samples),
            ContenderFigures::new("two", &Samples::default()),
        ]);
        assert!(table.starts_with("| | one | two |\n| --- | ---: | ---: |\n"), "{table}");
        assert!(table.contains("an address answers, ms | 2 (1..5) | - |"), "{table}");
    }
}
