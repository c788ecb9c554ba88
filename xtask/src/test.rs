//! `cargo xtask test`: the test command of the README and of CI.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::process::{SHARED_BUILD, cargo, is_root, output, root, target};
use crate::stages::{self, Outcome, Tally, Timing};

#[derive(Debug, Default, Args)]
pub struct Options {
    /// Run only this stage and the stages that it needs; may be repeated
    #[arg(long, value_name = "STAGE", value_parser = PossibleValuesParser::new(STAGES.map(|s| s.name)))]
    only: Vec<String>,

    /// Run only what gives a first result in about three minutes, once everything is built
    ///
    /// Lists what it skips: among others most tests in network namespaces, the virtual machine and the benchmarks.
    #[arg(long, conflicts_with = "only")]
    quick: bool,

    /// Also run what changes rarely: models of the flow table, all of the virtual machine, benchmarks, comparisons
    #[arg(long, conflicts_with = "quick")]
    all: bool,
}

struct Stage {
    name: &'static str,
    /// Arguments for cargo.
    arguments: &'static [&'static str],
    /// Whether it is for all crates that share one build.
    shares_build: bool,
    /// Earlier stages that it depends on. They always run with it, and if one fails, it is skipped.
    needs: &'static [&'static str],
    /// Whether the tests need root.
    root: bool,
    /// A directory to which the stage must write JSON.
    writes: Option<&'static str>,
    /// Whether the stage runs only with `--all`, or when it is named.
    rare: bool,
}

/// All stages in their order. All use one profile and the same features of dependencies, so that each
/// reuses the builds of the earlier ones. So xtask, which needs more features, is tested separately:
/// its own dependencies are built before it runs.
const STAGES: [Stage; 14] = [
    stage("prerequisites", &["xtask", "prerequisites"], &[]),
    stage("build-ebpf", &["xtask", "build-ebpf", "--verbose"], &[]),
    Stage { shares_build: true, ..stage("build", &["build"], &["build-ebpf"]) },
    stage("lint", &["xtask", "lint"], &[]),
    stage("unit", &["xtask", "programs"], &["build-ebpf"]),
    Stage {
        shares_build: true,
        ..stage("doc", &["test", "--doc", "--no-fail-fast"], &["build-ebpf"])
    },
    stage("xtask", &["test", "--package", "xtask"], &[]),
    // Built separately: its feature of `lb-common` must not affect other crates.
    Stage { rare: true, ..stage("models", &["test", "--package", "models"], &[]) },
    Stage {
        root: true,
        ..stage(
            "kernel",
            &["xtask", "programs", "--worlds"],
            &["prerequisites", "build-ebpf", "build"],
        )
    },
    // The virtual machine is slow, but needs no root.
    stage("vm", &["xtask", "vm-test"], &["prerequisites", "build-ebpf", "build"]),
    Stage {
        rare: true,
        ..stage(
            "vm rare",
            &["xtask", "vm-test", "--rare"],
            &["prerequisites", "build-ebpf", "build"],
        )
    },
    stage("demo", &["xtask", "run", "--exit-after-demo"], &["prerequisites", "build-ebpf"]),
    Stage {
        rare: true,
        writes: Some("target/bench"),
        ..stage("bench", &["xtask", "bench", "--quick"], &["prerequisites", "build-ebpf"])
    },
    Stage {
        rare: true,
        writes: Some("target/bench"),
        ..stage(
            "compare",
            &["xtask", "bench", "compare", "--quick"],
            &["prerequisites", "build-ebpf"],
        )
    },
];

const fn stage(
    name: &'static str,
    arguments: &'static [&'static str],
    needs: &'static [&'static str],
) -> Stage {
    Stage { name, arguments, shares_build: false, needs, root: false, writes: None, rare: false }
}

/// The stages for a first result: unit tests, all packet tables on the host, and a few tests in the
/// kernel, one of each kind.
const QUICK: [Stage; 5] = [
    stage("prerequisites", &["xtask", "prerequisites"], &[]),
    stage("build-ebpf", &["xtask", "build-ebpf", "--verbose"], &[]),
    stage(
        "quick unit",
        &[
            "test",
            "--package",
            "lb-common",
            "--package",
            "lb-userspace",
            "--package",
            "tests",
            "--lib",
            "--test",
            "model",
            "--test",
            "config",
            "--test",
            "host",
            "--",
            "--skip",
            "adoption",
        ],
        &["build-ebpf"],
    ),
    stage("xtask", &["test", "--package", "xtask"], &[]),
    Stage {
        root: true,
        ..stage(
            "quick kernel",
            &[
                "test",
                "--package",
                "tests",
                "--test",
                "kernel",
                "--test",
                "node",
                "--test",
                "life",
                "--",
                "verifier::",
                "agreement::",
                "pods::",
                "service::",
            ],
            &["prerequisites", "build-ebpf"],
        )
    },
];

const SKIPPED: &str = "\
not run by --quick: linters, the largest plans (adoption), the agent with API servers, its deployment manifests, the
embedded API, the HTTP proxy, fuzzing, models of the flow table, packet tables in the kernel, most tests in network
namespaces, the virtual machine, demo and benchmarks. Run `cargo xtask test` for all of them, or
`cargo xtask test --only STAGE` for one stage.";

/// Number of slowest test programs to list.
const SLOWEST: usize = 10;

/// Runs the stages, prints a line for each, and ends with the line "N passed, M failed".
pub fn test(options: &Options) -> Result<ExitCode> {
    let stages: &[Stage] = if options.quick { &QUICK } else { &STAGES };
    warn_of_little_space()?;
    let mut total = Tally::default();
    let mut timings: Vec<Timing> = Vec::new();
    let mut failed: Vec<&str> = Vec::new();
    for stage in stages.iter().filter(|stage| is_wanted(stage, options)) {
        if let Some(need) = stage.needs.iter().find(|need| failed.contains(need)) {
            println!("FAIL  {:<14} not run: it needs {need}", stage.name);
            total.failed += 1;
            failed.push(stage.name);
            continue;
        }
        let outcome = run(stage)?;
        if outcome.tally.failed > 0 {
            failed.push(stage.name);
        }
        total.add(outcome.tally);
        timings.extend(outcome.timings);
    }
    print_slowest(timings);
    if options.quick {
        println!("{SKIPPED}");
    } else if options.only.is_empty() && !options.all {
        let rare = STAGES.iter().filter(|stage| stage.rare).map(|stage| stage.name);
        println!("run by --all only: {}", rare.collect::<Vec<_>>().join(", "));
    }
    if !failed.is_empty() {
        println!("failed: {}; their output is in target/xtask/logs", failed.join(", "));
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Space on the disk that all stages of a new checkout need, in GiB. Measured; with debug information,
/// as without [`.ci/run`], half as much again.
const SPACE: u64 = 6;

/// Warns before the first build: on a full disk builds fail in the middle of a run.
fn warn_of_little_space() -> Result<()> {
    fs::create_dir_all(target())?;
    let free =
        output(Command::new("df").args(["--block-size=1G", "--output=avail"]).arg(target()))?;
    let free: Option<u64> = free.split_whitespace().last().and_then(|number| number.parse().ok());
    if let Some(free) = free.filter(|&free| free < SPACE) {
        println!(
            "      only {free} GiB are free in {}: all stages of a new checkout need {SPACE}",
            target().display()
        );
    }
    Ok(())
}

fn print_slowest(mut timings: Vec<Timing>) {
    timings.retain(|timing| timing.seconds >= 1.0);
    timings.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    if !timings.is_empty() {
        println!("slowest test programs:");
    }
    for Timing { program, seconds } in timings.iter().take(SLOWEST) {
        println!("      {program:<24} {seconds:>5.0} s");
    }
}

/// Whether the stage is selected, or needed by a selected one. Without a selection, all stages are that are not rare.
fn is_wanted(stage: &Stage, options: &Options) -> bool {
    let selected = |other: &Stage| options.only.iter().any(|only| only == other.name);
    let needed = |other: &Stage| selected(other) && other.needs.contains(&stage.name);
    if options.only.is_empty() {
        return options.all || !stage.rare;
    }
    selected(stage) || STAGES.iter().any(needed)
}

fn run(stage: &Stage) -> Result<Outcome> {
    let mut command = cargo();
    if stage.root && !is_root() {
        if let Err(error) = check_sudo() {
            println!("FAIL  {:<14} not run: {error:#}", stage.name);
            return Ok(Outcome::failed());
        }
        println!("      {:<14} runs its tests as root, with sudo", stage.name);
        command.env(runner_variable(), AS_ROOT);
    }
    command.args(stage.arguments);
    if stage.shares_build {
        command.args(SHARED_BUILD);
    }
    let started = SystemTime::now();
    stages::run(stage.name, &mut command, || match stage.writes {
        Some(directory) => has_json_since(&root().join(directory), started),
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
    output(Command::new("sudo").args(["--non-interactive", "true"])).map(drop).context(
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
        let options = Options { only, all, ..Options::default() };
        STAGES.iter().filter(|stage| is_wanted(stage, &options)).map(|stage| stage.name).collect()
    }

    #[test]
    fn a_stage_includes_the_stages_that_it_needs() {
        assert_eq!(wanted(&["lint"], false), ["lint"]);
        assert_eq!(wanted(&["models"], false), ["models"]);
        assert_eq!(wanted(&["kernel"], false), ["prerequisites", "build-ebpf", "build", "kernel"]);
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
    fn needed_stages_come_first() {
        for stages in [&STAGES[..], &QUICK] {
            for (index, stage) in stages.iter().enumerate() {
                for need in stage.needs {
                    let before = stages[..index].iter().any(|other| other.name == *need);
                    assert!(before, "{}", stage.name);
                }
            }
        }
    }
}
