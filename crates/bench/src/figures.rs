//! Figures of benchmarks over several rounds, and the machine.

use std::fs;
use std::process::Command;
use std::sync::LazyLock;

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

    /// In the order of rounds.
    pub fn figures(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    /// The number of rounds.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Median, minimum and maximum.
    pub fn summary(&self) -> [Option<f64>; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        [sorted.get(sorted.len() / 2), sorted.first(), sorted.last()].map(|figure| figure.copied())
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<T: IntoIterator<Item = f64>>(figures: T) -> Self {
        Self(figures.into_iter().collect())
    }
}

/// The environment. Only figures of equal ones can be compared.
#[derive(Clone, Debug)]
pub struct Machine {
    pub kernel: String,
    pub processor: String,
    /// The measured commit.
    pub commit: String,
}

/// This machine.
pub fn this_machine() -> &'static Machine {
    static MACHINE: LazyLock<Machine> = LazyLock::new(|| Machine {
        kernel: output("uname", &["-r"]),
        processor: processor(),
        commit: output("git", &["describe", "--always", "--dirty"]),
    });
    &MACHINE
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
        let sample = Sample::from_iter([900.0, 50.0, 51.0]);
        assert_eq!(sample.summary(), [Some(51.0), Some(50.0), Some(900.0)]);
    }

    #[test]
    fn what_was_not_measured_has_no_figures() {
        assert_eq!(Sample::default().summary(), [None; 3]);
    }
}
