//! Runs a stage: its output goes to a log, and a summary to the terminal.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::excerpt::excerpt;
use crate::process::repository_root;
use crate::usage;

/// Time to wait for output after a command has ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// Numbers of passed, failed and other tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Parses "test result: ok. 14 passed; 0 failed; 1 ignored; …".
    fn parse(line: &str) -> Option<Self> {
        let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
        let count = |word: &str| {
            let mut parts = counts.split("; ").filter_map(|part| part.split_once(' '));
            parts.find(|(_, name)| *name == word)?.0.parse().ok()
        };
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            ignored: count("ignored")?,
        })
    }
}

/// The run time of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    pub test: String,
    pub seconds: f64,
}

/// Collects run times from a log of test programs.
#[derive(Default)]
struct Timings {
    program: String,
    read: Vec<Timing>,
}

impl Timings {
    fn read(&mut self, line: &str) {
        if let Some(program) = program_of(line) {
            self.program = program.to_owned();
        } else if let Some((test, seconds)) = time_of(line) {
            self.read.push(Timing { test: format!("{} {test}", self.program), seconds });
        }
    }
}

/// The program in "Running tests/node (target/debug/deps/node-eba2d49fd722d522)".
fn program_of(line: &str) -> Option<&str> {
    let (program, _) = line.trim_start().strip_prefix("Running ")?.split_once(" (")?;
    Some(program)
}

/// The test and its time in "test pods::a_pod_reaches_itself ... ok <1.250s>".
fn time_of(line: &str) -> Option<(&str, f64)> {
    let (test, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = result.strip_suffix("s>")?.rsplit_once('<')?.1.parse().ok()?;
    Some((test, seconds))
}

/// The result of a stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageOutcome {
    pub tally: Tally,
    pub timings: Vec<Timing>,
    pub succeeded: bool,
    pub elapsed: Duration,
    /// Processor time of all its processes.
    pub processor: Duration,
}

impl StageOutcome {
    /// The result of a stage that could not run.
    pub fn failed() -> Self {
        Self { tally: Tally { failed: 1, ..Tally::default() }, ..Self::default() }
    }
}

/// Runs a command as a stage, and if it succeeds, a check of its results. A stage that fails
/// without a failed test counts as one failed test.
pub fn run_stage(
    name: &str,
    command: &mut Command,
    bar: &ProgressBar,
    check: impl FnOnce() -> Result<()>,
) -> Result<StageOutcome> {
    let log = log_path(name)?;
    let started = Instant::now();
    let mut followed = follow(command, &log, bar);
    if followed.as_ref().is_ok_and(|outcome| outcome.succeeded) {
        followed = check().and(followed);
    }
    let mut outcome = followed.or_else(|error| {
        let mut log = File::options().create(true).append(true).open(&log)?;
        writeln!(log, "{error:#}").map(|()| StageOutcome::default())
    })?;
    if !outcome.succeeded && outcome.tally.failed == 0 {
        outcome.tally.failed = 1;
    }
    outcome.elapsed = started.elapsed();
    Ok(outcome)
}

/// Runs the command, and copies its output to the log line by line.
fn follow(command: &mut Command, log: &Path, bar: &ProgressBar) -> Result<StageOutcome> {
    let mut log = File::create(log).with_context(|| log.display().to_string())?;
    // One pipe for stdout and stderr keeps the order of their lines.
    let (reader, writer) = std::io::pipe()?;
    let child = command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command still holds the writing end of the pipe, and the reader would wait forever.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let read = BufReader::new(reader).split(b'\n').map_while(Result::ok);
        read.for_each(|line| drop(sender.send(String::from_utf8_lossy(&line).into_owned())));
    });
    let mut tally = Tally::default();
    let mut timings = Timings::default();
    let mut early = None;
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                writeln!(log, "{line}")?;
                tally.add(Tally::parse(&line).unwrap_or_default());
                timings.read(&line);
                bar.set_message(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                early = usage::try_wait(&child)?;
                if early.is_some() {
                    writeln!(log, "it left a process behind, which still holds its output")?;
                    break;
                }
            }
        }
    }
    let usage::Ended { status, processor } = early.map_or_else(|| usage::wait_for(&child), Ok)?;
    bar.finish_and_clear();
    if !status.success() {
        writeln!(log, "ended with {status}")?;
    }
    let succeeded = status.success();
    Ok(StageOutcome {
        tally,
        timings: timings.read,
        succeeded,
        processor,
        ..StageOutcome::default()
    })
}

/// One line: whether it succeeded, the time that it took and the processor time.
pub fn summarize_stage(name: &str, outcome: &StageOutcome) -> String {
    let StageOutcome { tally, succeeded: ok, elapsed, processor, .. } = outcome;
    let word = if *ok { "ok" } else { "FAIL" };
    let mut line = format!(
        "{word:4}  {name:<14} {:>5.0} s {:>5.0} s",
        elapsed.as_secs_f64(),
        processor.as_secs_f64()
    );
    if *ok && tally.passed > 0 {
        line += &format!("   {} tests", tally.passed);
    }
    if tally.ignored > 0 {
        line += &format!(", {} ignored", tally.ignored);
    }
    line
}

/// Prints what matters of the log of a failed stage.
pub fn show_failure(name: &str) -> Result<()> {
    let log = log_path(name)?;
    let text = fs::read_to_string(&log)?;
    println!("{}", excerpt(&text).join("\n"));
    println!("... the whole output is in {}", log.display());
    Ok(())
}

fn log_path(name: &str) -> Result<PathBuf> {
    let directory = repository_root().join("target/xtask/logs");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    Ok(directory.join(format!("{name}.log")))
}

/// Whether spinners are shown. Otherwise running stages are printed from time to time.
pub fn has_terminal() -> bool {
    env::var_os("CI").is_none() && std::io::stderr().is_terminal()
}

/// Shows the stage and its last line of output on a terminal.
pub fn show_spinner(name: &str, all: &MultiProgress) -> ProgressBar {
    if !has_terminal() {
        return ProgressBar::hidden();
    }
    let bar = all.add(ProgressBar::new_spinner());
    if let Ok(style) =
        ProgressStyle::with_template("{spinner}     {prefix:14} {elapsed:>7}   {wide_msg:.dim}")
    {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, ignored: u64) -> Tally {
        Tally { passed, failed, ignored }
    }

    #[test]
    fn test_results_are_read() {
        for (line, expected) in [
            (
                "test result: ok. 14 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
                Some(tally(14, 0, 1)),
            ),
            (
                "test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured",
                Some(tally(1, 3, 0)),
            ),
            ("test maglev::tests::a_pool ... ok", None),
            ("test result: ok", None),
            ("  test result: ok. 14 passed; 0 failed; 0 ignored", None),
        ] {
            assert_eq!(Tally::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn the_time_of_each_test_is_read() {
        let mut timings = Timings::default();
        for line in [
            "     Running lb-common (target/debug/deps/lb_common-0123456789abcdef)",
            "test maglev::a_pool ... ok <0.250s>",
            "     Running tests/node (target/debug/deps/node-eba2d49fd722d522)",
            "running 2 tests",
            "test pods::one ... ok <61.500s>",
            "test pods::two ... FAILED <2.000s>",
            "test pods::three ... ignored, prints figures",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 61.50s",
        ] {
            timings.read(line);
        }
        let timing = |test: &str, seconds| Timing { test: test.to_owned(), seconds };
        assert_eq!(
            timings.read,
            [
                timing("lb-common maglev::a_pool", 0.25),
                timing("tests/node pods::one", 61.5),
                timing("tests/node pods::two", 2.0)
            ]
        );
    }

    #[test]
    fn a_stage_has_a_one_line_summary() {
        let line = |succeeded, tally| {
            let (elapsed, processor) = (Duration::from_secs(34), Duration::from_millis(61_700));
            let outcome =
                StageOutcome { tally, succeeded, elapsed, processor, timings: Vec::new() };
            summarize_stage("lint", &outcome)
        };
        assert_eq!(line(true, tally(0, 0, 0)), "ok    lint              34 s    62 s");
        assert_eq!(
            line(true, tally(9, 0, 2)),
            "ok    lint              34 s    62 s   9 tests, 2 ignored"
        );
        assert_eq!(line(false, tally(0, 1, 0)), "FAIL  lint              34 s    62 s");
    }

    #[test]
    fn a_command_is_followed_to_its_end() -> Result<()> {
        let script = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        let log = tempfile::NamedTempFile::new()?;
        let mut printing =
            script("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; echo more >&2");
        let done = follow(&mut printing, log.path(), &ProgressBar::hidden())?;
        assert_eq!((done.tally, done.succeeded), (tally(2, 0, 0), true));
        assert!(fs::read_to_string(log.path())?.ends_with("more\n"));

        let done = follow(&mut script("exit 3"), log.path(), &ProgressBar::hidden())?;
        assert!(!done.succeeded && done.tally == Tally::default());
        assert_eq!(fs::read_to_string(log.path())?, "ended with exit status: 3\n");

        // A process that a test left running must not delay the stage.
        let started = Instant::now();
        let done = follow(&mut script("sleep 30 &"), log.path(), &ProgressBar::hidden())?;
        assert!(done.succeeded);
        assert!(started.elapsed() < Duration::from_secs(25));
        Ok(())
    }
}
