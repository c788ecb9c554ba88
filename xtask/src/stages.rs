//! Running stages one after the other, a line each.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::process::root;

/// What the stages so far came to.
#[derive(Default)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
}

/// Runs a command as a stage. Its output goes to a log, and to the terminal only if it fails.
pub fn run(name: &str, command: &mut Command, tally: &mut Tally) -> Result<bool> {
    let log_path = log_path(name)?;
    let mut log = File::create(&log_path)?;
    let started = Instant::now();
    let bar = spinner(name);

    // One pipe for both, in the order they were written.
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("the stage {name} can't be started"))?;
    // The command holds the pipe's other end, too.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (mut passed, mut failed) = (0, 0);
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line}")?;
        bar.set_message(line.chars().take(100).collect::<String>());
        if let Some((p, f)) = libtest_result(&line) {
            passed += p;
            failed += f;
        }
    }
    let status = child.wait()?;
    bar.finish_and_clear();
    tally.passed += passed;
    tally.failed += failed;
    let ok = status.success();
    if !ok {
        // A stage that fails without a failed test is a failure all the same.
        tally.failed += u64::from(failed == 0);
        println!("{}", fs::read_to_string(&log_path)?);
    }
    let tests = if passed + failed > 0 { format!("{passed} passed, {failed} failed") } else { String::new() };
    println!("{:4}  {name:<14} {:>6}  {tests}", if ok { "ok" } else { "FAIL" }, seconds(started.elapsed()));
    Ok(ok)
}

fn log_path(name: &str) -> Result<PathBuf> {
    let directory = root().join("target/xtask");
    fs::create_dir_all(&directory)?;
    Ok(directory.join(format!("{name}.log")))
}

fn spinner(name: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}") {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs())
}

/// The counts in "test result: ok. 14 passed; 0 failed; …".
fn libtest_result(line: &str) -> Option<(u64, u64)> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let mut numbers = counts.split("; ").map(|part| part.split(' ').next()?.parse::<u64>().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_results_are_read() {
        let line = "test result: ok. 14 passed; 2 failed; 0 ignored; 0 measured; finished in 0.02s";
        assert_eq!(libtest_result(line), Some((14, 2)));
        assert_eq!(libtest_result("test result: FAILED. 1 passed; 3 failed; 0 ignored"), Some((1, 3)));
        assert_eq!(libtest_result("test maglev::tests ... ok"), None);
    }
}
