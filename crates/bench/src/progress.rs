//! How far a benchmark is: a bar on a terminal, elsewhere a line a minute.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

const LINE_INTERVAL: Duration = Duration::from_secs(60);

pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// When the last line was printed; `None` on a terminal.
    printed: Option<Cell<Instant>>,
}

impl Progress {
    /// Begins with this number of steps to do.
    pub fn new(steps: usize) -> Result<Self> {
        let now = Instant::now();
        if !std::io::stderr().is_terminal() {
            let bar = ProgressBar::hidden();
            bar.set_length(steps as u64);
            return Ok(Self { bar, began: now, printed: Some(Cell::new(now)) });
        }
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}")?;
        let bar = ProgressBar::new(steps as u64).with_style(style);
        Ok(Self { bar, began: now, printed: None })
    }

    /// Begins a step.
    pub fn step(&self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
        let Some(printed) = &self.printed else { return };
        if printed.get().elapsed() >= LINE_INTERVAL {
            printed.set(Instant::now());
            eprintln!("{}", self.line(what));
        }
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// The seconds since the beginning, and the steps of all, if their number is known.
    fn line(&self, what: &str) -> String {
        let seconds = self.began.elapsed().as_secs();
        match (self.bar.position(), self.bar.length()) {
            (position, Some(length)) if length > 0 => {
                format!("{seconds} s: {position}/{length} {what}")
            }
            (position, _) => format!("{seconds} s: {position} {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() -> Result<()> {
        let progress = Progress::new(3)?;
        progress.step("one");
        assert_eq!(progress.line("two"), "0 s: 1/3 two");
        let endless = Progress::new(0)?;
        endless.step("one");
        assert_eq!(endless.line("two"), "0 s: 1 two");
        Ok(())
    }
}
