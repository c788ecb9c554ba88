//! Results of a suite: as a table, and as JUnit's XML.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    Passed,
    Failed(String),
    /// The suite decided not to run it in this cluster, and why.
    Skipped(String),
}

#[derive(Clone, Debug)]
pub(crate) struct SpecResult {
    /// What the spec is about: a row of the table.
    pub group: String,
    pub name: String,
    pub outcome: TestOutcome,
    pub time: Duration,
}

#[derive(Debug, Default)]
pub struct Results(pub Vec<SpecResult>);

impl Results {
    pub fn add(&mut self, group: &str, name: impl Into<String>, result: anyhow::Result<()>) {
        let outcome = match result {
            Ok(()) => TestOutcome::Passed,
            Err(error) => TestOutcome::Failed(format!("{error:#}")),
        };
        let name = name.into();
        self.0.push(SpecResult { group: group.to_owned(), name, outcome, time: Duration::ZERO });
    }

    /// Numbers by group, and the message of each failure.
    pub fn table(&self) -> String {
        let mut groups: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        for result in &self.0 {
            let column = match result.outcome {
                TestOutcome::Passed => 0,
                TestOutcome::Failed(_) => 1,
                TestOutcome::Skipped(_) => 2,
            };
            groups.entry(&result.group).or_default()[column] += 1;
        }
        let mut total = [0; 3];
        let mut text = format!("{:<52} {:>6} {:>6} {:>7}\n", "", "passed", "failed", "skipped");
        for (group, counts) in &groups {
            let _ =
                writeln!(text, "{group:<52} {:>6} {:>6} {:>7}", counts[0], counts[1], counts[2]);
            for (sum, count) in total.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let _ = writeln!(text, "{:<52} {:>6} {:>6} {:>7}", "all", total[0], total[1], total[2]);
        for result in &self.0 {
            if let TestOutcome::Failed(message) = &result.outcome {
                let _ = writeln!(text, "failed: {}\n        {}", result.name, first_line(message));
            }
        }
        text
    }

    pub(crate) fn to_junit(&self, suite: &str) -> String {
        let failures =
            self.0.iter().filter(|each| matches!(each.outcome, TestOutcome::Failed(_))).count();
        let skipped =
            self.0.iter().filter(|each| matches!(each.outcome, TestOutcome::Skipped(_))).count();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{suite}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">\n",
            self.0.len()
        );
        for result in &self.0 {
            let _ = write!(
                text,
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
                escape(&result.group),
                escape(&result.name),
                result.time.as_secs_f64()
            );
            let _ = match &result.outcome {
                TestOutcome::Passed => writeln!(text, "/>"),
                TestOutcome::Failed(why) => {
                    writeln!(text, "><failure>{}</failure></testcase>", escape(why))
                }
                TestOutcome::Skipped(why) => {
                    writeln!(text, "><skipped message=\"{}\"/></testcase>", escape(why))
                }
            };
        }
        text + "</testsuite>\n"
    }
}

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim()
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML 1.0 has no other control characters.
            '\n' | '\t' => escaped.push(character),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_and_escaped() {
        let mut results = Results::default();
        results.add("hosts", "exact", Ok(()));
        results.add("hosts", "a < b", Err(anyhow::anyhow!("got \"404\"\u{1b}[0m\nmore")));
        let table = results.table();
        assert!(
            table.contains(
                "hosts                                                     1      1       0"
            ),
            "{table}"
        );
        assert!(table.contains("failed: a < b\n        got \"404\""), "{table}");
        let junit = results.to_junit("ingress");
        assert!(junit.contains("tests=\"2\" failures=\"1\" skipped=\"0\""), "{junit}");
        assert!(junit.contains("name=\"a &lt; b\""), "{junit}");
        assert!(junit.contains("got &quot;404&quot;\u{fffd}[0m"), "{junit}");
    }
}
