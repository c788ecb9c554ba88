//! `cargo xtask test`: the test command of the README and of CI.
//!
//! Its stages run at the same time, so that tests that wait leave the processors to those that compute.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::{MultiProgress, ProgressBar};

use crate::process::{
    SHARED_BUILD, cargo, is_root, read_output, repository_root, shared_cargo, target_directory,
};
use crate::schedule::{self, Job, Lane, ScheduleEvent};
use crate::stages::{self, StageOutcome, Tally, Timing};

#[derive(Debug, Default, Args)]
pub struct TestOptions {
    /// Run only this stage and the stages that it needs; may be repeated
    #[arg(long, value_name = "STAGE", value_parser = PossibleValuesParser::new(STAGES.map(|s| s.job.name)))]
    only: Vec<String>,

    /// Run only what gives a first result in about a minute, once everything is built
    ///
    /// Lists what it skips: among others most tests in network namespaces, the virtual machine and the benchmarks.
    #[arg(long, conflicts_with = "only")]
    quick: bool,

    /// Also run what changes rarely: floods, each installed kubectl, models of the flow table, all of the virtual machine, benchmarks, the image
    #[arg(long, conflicts_with = "quick")]
    all: bool,
}

struct Stage {
    job: Job,
    work: Work,
    /// Whether the tests need root.
    root: bool,
    /// A directory to which the stage must write JSON.
    writes: Option<&'static str>,
    /// Whether the stage runs only with `--all`, or when it is named.
    rare: bool,
}

/// What a stage runs, with arguments.
enum Work {
    /// This program.
    Xtask(&'static [&'static str]),
    Cargo(&'static [&'static str]),
    /// Cargo, for all crates that share one build.
    SharedCargo(&'static [&'static str]),
}

/// Cargo locks its target directory, so only one cargo can work at a time. Test programs that compute follow it.
const CARGO: Lane = Lane { name: "cargo", room: 1 };
/// Tests that mostly wait: for timers, for other processes, for the kernel.
const WORLDS: Lane = Lane { name: "worlds", room: 2 };
/// The virtual machine uses one processor.
const MACHINE: Lane = Lane { name: "machine", room: 1 };

/// What stages need that run built programs.
const BUILT: &[&str] = &["prerequisites", "build"];

/// Simulated floods, which compute for minutes.
const FLOOD: &str = "fuzz/flood";

/// All stages. Of those that could run in a lane, the first one does. All use one profile and the same features of
/// dependencies, so that each reuses the builds of the earlier ones. So xtask, which needs more features, is tested
/// separately: its own dependencies are built before it runs.
const STAGES: [Stage; 21] = [
    xtask("prerequisites", CARGO, &["prerequisites"], &[]),
    xtask("build", CARGO, &["programs", "--build"], &[]),
    xtask("vm", MACHINE, &["vm-test", "--built"], BUILT),
    Stage { rare: true, ..xtask("vm rare", MACHINE, &["vm-test", "--built", "--rare"], BUILT) },
    world("node", &["programs", "tests/node", "--threads", "2"]),
    world("nodes", &["programs", "tests/nodes", "--threads", "2"]),
    world("peers", &["programs", "tests/peers", "--threads", "2"]),
    world("life", &["programs", "tests/life"]),
    world("api", &["programs", "tests/api", "--threads", "2"]),
    world("kernel", &["programs", "tests/kernel"]),
    xtask("demo", CARGO, &["run", "--exit-after-demo"], BUILT),
    xtask("lint", CARGO, &["lint", "--built"], &["build"]),
    stage("xtask", CARGO, Work::Cargo(&["test", "--package", "xtask"]), &[]),
    stage("doc", CARGO, Work::SharedCargo(&["test", "--doc", "--no-fail-fast"]), BUILT),
    xtask("unit", CARGO, &["programs", "unit", "--skip", FLOOD], BUILT),
    Stage { rare: true, ..xtask("flood", CARGO, &["programs", FLOOD], BUILT) },
    Stage {
        rare: true,
        ..xtask(
            "long",
            CARGO,
            &[
                "programs",
                "--all",
                "crates/api/api=every_kubectl",
                "lb-userspace/deploy=every_kubectl",
                "lb-userspace/api_crash=a_hundred_kills",
                "crates/announce=of_too_many_nodes",
                "crates/announce=of_a_hundred_nodes",
                "tests/node=a_thousand_changes",
            ],
            BUILT,
        )
    },
    // Built separately: its feature of `lb-common` must not affect other crates.
    Stage {
        rare: true,
        ..stage("models", CARGO, Work::Cargo(&["test", "--package", "models"]), &[])
    },
    Stage { rare: true, ..xtask("image", CARGO, &["image", "--test"], BUILT) },
    Stage {
        rare: true,
        writes: Some("target/bench"),
        ..xtask("bench", CARGO, &["bench", "--quick"], BUILT)
    },
    Stage {
        rare: true,
        writes: Some("target/bench"),
        ..xtask("compare", CARGO, &["bench", "compare", "--quick"], BUILT)
    },
];

/// The stages for a first result: unit tests, all packet tables on the host, and a few tests in the
/// kernel, one of each kind.
const QUICK: [Stage; 4] = [
    xtask("prerequisites", CARGO, &["prerequisites"], &[]),
    xtask("build", CARGO, &["programs", "--build"], &[]),
    world(
        "quick kernel",
        &[
            "programs",
            "tests/kernel=verifier::,agreement::",
            "tests/node=pods::",
            "tests/life=service::",
        ],
    ),
    xtask(
        "quick unit",
        CARGO,
        &[
            "programs",
            "crates",
            "crates/rules/model",
            "lb-userspace/config",
            "tests/host",
            "--skip",
            "adoption",
            "--skip",
            "in_tight_room",
            "--skip",
            "random::after_any_changes",
            "--skip",
            "chaos::",
        ],
        BUILT,
    ),
];

const fn stage(
    name: &'static str,
    lane: Lane,
    work: Work,
    needs: &'static [&'static str],
) -> Stage {
    Stage { job: Job { name, needs, lane }, work, root: false, writes: None, rare: false }
}

const fn xtask(
    name: &'static str,
    lane: Lane,
    arguments: &'static [&'static str],
    needs: &'static [&'static str],
) -> Stage {
    stage(name, lane, Work::Xtask(arguments), needs)
}

/// A stage of tests that need root.
const fn world(name: &'static str, arguments: &'static [&'static str]) -> Stage {
    Stage { root: true, ..xtask(name, WORLDS, arguments, BUILT) }
}

const SKIPPED: &str = "\
not run by --quick: linters, random plans (adoption, tight room, any changes), random faults of announcers, sources and
speakers with their servers, deployment manifests, the embedded API and the HTTP proxy with their clients, fuzzing,
models of the flow table, packet tables in the kernel, most tests in network namespaces, the virtual machine, xtask,
demo and benchmarks. Run `cargo xtask test` for all of them, or `cargo xtask test --only STAGE` for one stage.";

/// Number of slowest tests to list.
const SLOWEST: usize = 10;

/// Runs the stages, prints a line for each that has ended, then a table of all, and ends with the line "N passed, M
/// failed".
pub fn run_tests(options: &TestOptions) -> Result<ExitCode> {
    let stages: &[Stage] = if options.quick { &QUICK } else { &STAGES };
    let stages: Vec<&Stage> = stages.iter().filter(|stage| is_wanted(stage, options)).collect();
    warn_of_little_space()?;
    let started = Instant::now();
    let outcomes = run_all(&stages)?;

    let mut total = Tally::default();
    outcomes.iter().for_each(|(_, outcome)| total.add(outcome.tally));
    print_table(&outcomes, started.elapsed());
    print_slowest(outcomes.iter().flat_map(|(_, outcome)| outcome.timings.clone()).collect());
    if options.quick {
        println!("{SKIPPED}");
    } else if options.only.is_empty() && !options.all {
        let rare = STAGES.iter().filter(|stage| stage.rare).map(|stage| stage.job.name);
        println!("run by --all only: {}", rare.collect::<Vec<_>>().join(", "));
    }
    let failed: Vec<&str> =
        outcomes.iter().filter(|(_, o)| !o.succeeded).map(|(name, _)| *name).collect();
    if !failed.is_empty() {
        println!("failed: {}; their output is in target/xtask/logs", failed.join(", "));
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the stages; returns their names and outcomes in the order in which they ended.
fn run_all(stages: &[&Stage]) -> Result<Vec<(&'static str, StageOutcome)>> {
    let jobs: Vec<Job> = stages.iter().map(|stage| stage.job).collect();
    let bars = MultiProgress::new();
    let work = |index: usize| {
        let stage = stages[index];
        let outcome = run(stage, &stages::show_spinner(stage.job.name, &bars))?;
        let succeeded = outcome.succeeded;
        Ok((outcome, succeeded))
    };
    let mut outcomes = Vec::new();
    schedule::run_jobs(&jobs, work, |event| {
        bars.suspend(|| match event {
            ScheduleEvent::Ended(index, outcome) => {
                println!("{}", stages::summarize_stage(jobs[index].name, &outcome));
                if !outcome.succeeded {
                    stages::show_failure(jobs[index].name)?;
                }
                outcomes.push((jobs[index].name, outcome));
                Ok(())
            }
            ScheduleEvent::Blocked(index, need) => {
                println!("FAIL  {:<14} not run: it needs {need}", jobs[index].name);
                outcomes.push((jobs[index].name, StageOutcome::failed()));
                Ok(())
            }
            ScheduleEvent::Running(running) => {
                if !stages::has_terminal() {
                    let running = running.iter().map(|(index, time)| {
                        format!("{} for {} s", jobs[*index].name, time.as_secs())
                    });
                    println!("      running: {}", running.collect::<Vec<_>>().join(", "));
                }
                Ok(())
            }
        })
    })?;
    Ok(outcomes)
}

/// Prints what each stage took, so that one that has become slower is seen.
fn print_table(outcomes: &[(&str, StageOutcome)], elapsed: Duration) {
    println!("\n      stage              time  processors   tests");
    let row = |name: &str, elapsed: Duration, processor: Duration, tests: u64| {
        let (seconds, busy) = (elapsed.as_secs_f64(), processor.as_secs_f64());
        println!("      {name:<14} {seconds:>6.0} s    {busy:>6.0} s  {tests:>6}");
    };
    for (name, outcome) in outcomes {
        row(name, outcome.elapsed, outcome.processor, outcome.tally.passed + outcome.tally.failed);
    }
    let processor = outcomes.iter().map(|(_, outcome)| outcome.processor).sum();
    let tests = outcomes.iter().map(|(_, o)| o.tally.passed + o.tally.failed).sum();
    row("all", elapsed, processor, tests);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = processor.as_secs_f64() / elapsed.as_secs_f64() / processors as f64;
    println!("      {:.0} % of {processors} processors\n", busy * 100.0);
}

/// Space on the disk that all stages of a new checkout need, in GiB. Measured; with debug information,
/// as without [`.ci/run`], half as much again.
const SPACE: u64 = 6;

/// Warns before the first build: on a full disk builds fail in the middle of a run.
fn warn_of_little_space() -> Result<()> {
    fs::create_dir_all(target_directory())?;
    let free = read_output(
        Command::new("df").args(["--block-size=1G", "--output=avail"]).arg(target_directory()),
    )?;
    let free: Option<u64> = free.split_whitespace().last().and_then(|number| number.parse().ok());
    if let Some(free) = free.filter(|&free| free < SPACE) {
        println!(
            "      only {free} GiB are free in {}: all stages of a new checkout need {SPACE}",
            target_directory().display()
        );
    }
    Ok(())
}

fn print_slowest(mut timings: Vec<Timing>) {
    timings.retain(|timing| timing.seconds >= 1.0);
    timings.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    if !timings.is_empty() {
        println!("slowest tests:");
    }
    for Timing { test, seconds } in timings.iter().take(SLOWEST) {
        println!("      {seconds:>5.0} s  {test}");
    }
}

/// Whether the stage is selected, or needed by one that is. Without a selection, all stages are that are not rare.
fn is_wanted(stage: &Stage, options: &TestOptions) -> bool {
    if options.only.is_empty() {
        return options.all || !stage.rare;
    }
    let selected = |other: &Stage| options.only.iter().any(|only| only == other.job.name);
    let needs = |other: &Stage| other.job.needs.contains(&stage.job.name);
    selected(stage) || STAGES.iter().any(|other| needs(other) && is_wanted(other, options))
}

fn run(stage: &Stage, bar: &ProgressBar) -> Result<StageOutcome> {
    if stage.root
        && !is_root()
        && let Err(error) = check_sudo()
    {
        bar.suspend(|| println!("FAIL  {:<14} {error:#}", stage.job.name));
        return Ok(StageOutcome::failed());
    }
    let mut command = match stage.work {
        // Not by cargo, which would wait for other stages that build.
        Work::Xtask(arguments) => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(arguments).current_dir(repository_root());
            command
        }
        Work::Cargo(arguments) => {
            let mut command = cargo();
            command.args(arguments);
            command
        }
        Work::SharedCargo(arguments) => {
            let mut command = shared_cargo();
            command.args(arguments).args(SHARED_BUILD);
            command
        }
    };
    let started = SystemTime::now();
    stages::run_stage(stage.job.name, &mut command, bar, || match stage.writes {
        Some(directory) => has_json_since(&repository_root().join(directory), started),
        None => Ok(()),
    })
}

/// Checks that a stage that succeeded has written its results.
fn has_json_since(directory: &Path, started: SystemTime) -> Result<()> {
    let files = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let is_new = |file: &fs::DirEntry| {
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        file.path().extension().is_some_and(|e| e == "json") && modified.is_ok_and(|m| m >= started)
    };
    ensure!(
        files.flatten().any(|file| is_new(&file)),
        "no JSON was written to {}",
        directory.display()
    );
    Ok(())
}

fn check_sudo() -> Result<()> {
    read_output(Command::new("sudo").args(["--non-interactive", "true"])).map(drop).context(
        "it needs root, for network namespaces and BPF. Run `cargo xtask test` as root, or run \
         `sudo true` first",
    )
}

/// Starts a program as root, without asking for a password.
pub const AS_ROOT: &str = "sudo --non-interactive --preserve-env";

/// A command for a program as root.
pub fn as_root(program: &Path) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut words = AS_ROOT.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg(program);
    command
}

/// Environment variable with the command that cargo starts test programs with.
pub fn runner_variable() -> String {
    format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(only: &[&str], all: bool) -> Vec<&'static str> {
        let only = only.iter().map(|name| name.to_string()).collect();
        let options = TestOptions { only, all, ..TestOptions::default() };
        STAGES
            .iter()
            .filter(|stage| is_wanted(stage, &options))
            .map(|stage| stage.job.name)
            .collect()
    }

    #[test]
    fn a_stage_includes_the_stages_that_it_needs() {
        assert_eq!(wanted(&["lint"], false), ["build", "lint"]);
        assert_eq!(wanted(&["models"], false), ["models"]);
        assert_eq!(wanted(&["kernel"], false), ["prerequisites", "build", "kernel"]);
        assert_eq!(wanted(&[], true).len(), STAGES.len());
        assert!(!wanted(&[], false).contains(&"bench"));
    }

    #[test]
    fn only_new_json_counts() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let long_ago = SystemTime::UNIX_EPOCH;
        assert!(has_json_since(&directory.path().join("missing"), long_ago).is_err());
        fs::write(directory.path().join("plot.svg"), "")?;
        assert!(has_json_since(directory.path(), long_ago).is_err());
        fs::write(directory.path().join("results.json"), "{}")?;
        assert!(has_json_since(directory.path(), long_ago).is_ok());
        let soon = SystemTime::now() + std::time::Duration::from_secs(60);
        assert!(has_json_since(directory.path(), soon).is_err());
        Ok(())
    }

    #[test]
    fn needed_stages_exist() {
        for stages in [&STAGES[..], &QUICK] {
            for need in stages.iter().flat_map(|stage| stage.job.needs) {
                assert!(stages.iter().any(|other| other.job.name == *need), "{need}");
            }
        }
    }
}
