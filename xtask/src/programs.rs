//! The test programs of all crates that share one build. Cargo builds them at once, and `cargo xtask test` runs them
//! without it: cargo would run one after the other, and wait for the lock of another cargo.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::ebpf;
use crate::process::{SHARED_BUILD, repository_root, shared_cargo, target_directory};
use crate::test::as_root;

/// The only program of the crate `tests` that needs no root, apart from its unit tests.
const HOST: &str = "host";

#[derive(Debug, Args)]
pub struct ProgramOptions {
    /// Build all test programs, and remember where they are
    #[arg(long, conflicts_with_all = ["select", "threads"])]
    build: bool,

    /// Run these programs, one after the other
    #[command(flatten)]
    run: ProgramSelection,
}

#[derive(Debug, Args)]
pub struct ProgramSelection {
    /// A program such as tests/node, the unit tests of a crate such as lb-common, or a group: `unit`, all that need no
    /// root; `crates`, the unit tests of all crates
    ///
    /// With filters after =, only tests whose names contain one of them: tests/node=pods::,trace::
    #[arg(value_name = "PROGRAM[=FILTER,...]")]
    select: Vec<String>,

    /// Number of tests at the same time for each processor
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    threads: usize,

    /// Run tests with everything that they can be run with, such as each installed kubectl, and those that take minutes
    #[arg(long)]
    all: bool,

    /// Leave out programs and tests whose names contain this; may be repeated
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
}

/// A built test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The directory of its crate in the repository, and the name of the file in `tests` if it is not the crate's unit
    /// tests: `tests/node`, `lb-common`.
    pub name: String,
    pub path: PathBuf,
    /// The directory of its crate.
    directory: PathBuf,
    /// Whether it is a file in `tests`, not a crate's unit tests.
    is_integration: bool,
    needs_root: bool,
}

pub fn build_or_run_programs(options: &ProgramOptions) -> Result<()> {
    if options.build { build_programs() } else { run(&options.run) }
}

/// Runs programs one after the other. Fails if one of them fails.
fn run(options: &ProgramSelection) -> Result<()> {
    let programs = built()?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    for selected in &options.select {
        let (name, filters) = selected.split_once('=').unwrap_or((selected, ""));
        let mut chosen = programs.iter().filter(|program| program.is_selected(name)).peekable();
        ensure!(chosen.peek().is_some(), "there is no test program {name}");
        let is_wanted = |program: &&Program| !options.skip.contains(&program.name);
        for program in chosen.filter(is_wanted) {
            let path = program.path.strip_prefix(repository_root()).unwrap_or(&program.path);
            println!("     Running {} ({})", program.name, path.display());
            let mut command = program.command();
            command.args(filters.split_terminator(','));
            command.args(options.skip.iter().flat_map(|name| ["--skip", name]));
            command.args(["--test-threads", &(options.threads * processors).to_string()]);
            // The time of each test, which only the unstable version of libtest prints.
            command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
            if options.all {
                command.env("MILLRACE_TESTS_ALL", "1").arg("--include-ignored");
            }
            let status = command.status().with_context(|| program.path.display().to_string())?;
            if !status.success() {
                failed.push(program.name.as_str());
            }
        }
    }
    ensure!(failed.is_empty(), "failed test programs: {}", failed.join(", "));
    Ok(())
}

impl Program {
    fn is_selected(&self, name: &str) -> bool {
        match name {
            "unit" => !self.needs_root,
            "crates" => !self.is_integration,
            _ => self.name == name,
        }
    }

    /// A command that runs it where cargo would.
    fn command(&self) -> Command {
        let mut command =
            if self.needs_root { as_root(&self.path) } else { Command::new(&self.path) };
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// Builds the BPF objects, all test programs, the programs that tests start, and the demo.
pub fn build_programs() -> Result<()> {
    ebpf::build_objects_beside(compile_programs)
}

fn compile_programs() -> Result<()> {
    let mut messages = String::new();
    for arguments in [&["test", "--no-run"][..], &["build", "--bin", "demo"]] {
        let mut command = shared_cargo();
        command.args(arguments).args(SHARED_BUILD).args(["--message-format", "json"]);
        let built = command.stderr(Stdio::inherit()).output().context("cargo can't be started")?;
        let text = String::from_utf8_lossy(&built.stdout);
        if !built.status.success() {
            diagnostics(&text).iter().for_each(|diagnostic| eprintln!("{diagnostic}"));
            bail!("cargo {} ended with {}", arguments.join(" "), built.status);
        }
        messages += &text;
    }
    fs::write(last_build_messages(), messages)
        .with_context(|| last_build_messages().display().to_string())
}

/// What compiler and linter said about the workspace's crates in the last [`build_programs`].
pub fn warnings() -> Result<BTreeSet<String>> {
    let messages = fs::read_to_string(last_build_messages())
        .with_context(|| last_build_messages().display().to_string())?;
    Ok(diagnostics(&messages))
}

/// Errors and warnings in cargo's messages. A file that is in several programs has its own once.
fn diagnostics(messages: &str) -> BTreeSet<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rendered = |message: Value| Some(message["message"]["rendered"].as_str()?.to_owned());
    let diagnostics = messages.filter(|message| {
        let (reason, level) = (&message["reason"], &message["message"]["level"]);
        reason == "compiler-message" && (level == "warning" || level == "error")
    });
    diagnostics.filter_map(rendered).collect()
}

/// The test programs of the last [`build_programs`].
pub fn built() -> Result<Vec<Program>> {
    let messages = fs::read_to_string(last_build_messages())
        .with_context(|| last_build_messages().display().to_string())?;
    let programs = programs(&messages);
    ensure!(!programs.is_empty(), "cargo reported no test program");
    Ok(programs)
}

/// Cargo's messages of the last build.
fn last_build_messages() -> PathBuf {
    target_directory().join("test-programs.json")
}

/// The test programs in cargo's messages. Benchmarks are only built.
fn programs(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| {
        message["profile"]["test"] == true && message["target"]["kind"][0] != "bench"
    });
    tests.filter_map(|message| program(&message, repository_root())).collect()
}

fn program(message: &Value, root: &Path) -> Option<Program> {
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
    let file = message["target"]["name"].as_str()?;
    let folder = directory.strip_prefix(root).unwrap_or(directory).to_string_lossy();
    let is_integration = message["target"]["kind"][0] == "test";
    Some(Program {
        name: if is_integration { format!("{folder}/{file}") } else { folder.to_string() },
        path: message["executable"].as_str()?.into(),
        directory: directory.to_owned(),
        is_integration,
        needs_root: is_integration && folder == "tests" && file != HOST,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let read = |message: &str| {
            program(&serde_json::from_str(message).unwrap_or_default(), Path::new("/r"))
        };
        let program = |name: &str, path: &str, directory: &str, is_integration, needs_root| {
            let (name, path, directory) = (name.to_owned(), path.into(), directory.into());
            Some(Program { name, path, directory, is_integration, needs_root })
        };
        for (message, expected) in [
            (
                r#"{"target":{"kind":["test"],"name":"node"},"executable":"/t/node-1","manifest_path":"/r/tests/Cargo.toml"}"#,
                program("tests/node", "/t/node-1", "/r/tests", true, true),
            ),
            (
                r#"{"target":{"kind":["test"],"name":"host"},"executable":"/t/host-1","manifest_path":"/r/tests/Cargo.toml"}"#,
                program("tests/host", "/t/host-1", "/r/tests", true, false),
            ),
            (
                r#"{"target":{"kind":["test"],"name":"api"},"executable":"/t/api-1","manifest_path":"/r/crates/api/Cargo.toml"}"#,
                program("crates/api/api", "/t/api-1", "/r/crates/api", true, false),
            ),
            (
                r#"{"target":{"kind":["lib"],"name":"tests"},"executable":"/t/tests-1","manifest_path":"/r/tests/Cargo.toml"}"#,
                program("tests", "/t/tests-1", "/r/tests", false, false),
            ),
            (r#"{"reason":"build-script-executed"}"#, None),
        ] {
            assert_eq!(read(message), expected, "{message}");
        }
    }

    #[test]
    fn warnings_of_several_builds_count_once() {
        let messages = r#"{"reason":"compiler-message","message":{"level":"warning","rendered":"unused import"}}
{"reason":"compiler-message","message":{"level":"warning","rendered":"unused import"}}
{"reason":"compiler-message","message":{"level":"note","rendered":"a hint"}}
{"reason":"compiler-artifact","target":{"name":"node"}}"#;
        assert_eq!(diagnostics(messages), BTreeSet::from(["unused import".to_owned()]));
    }

    #[test]
    fn programs_are_selected_by_name_or_group() {
        let node = Program {
            name: "tests/node".to_owned(),
            path: PathBuf::new(),
            directory: PathBuf::new(),
            is_integration: true,
            needs_root: true,
        };
        assert!(node.is_selected("tests/node"));
        assert!(!node.is_selected("node") && !node.is_selected("unit"));
        assert!(!node.is_selected("crates"));
        let host = Program { needs_root: false, ..node };
        assert!(host.is_selected("unit") && !host.is_selected("crates"));
        assert!(Program { is_integration: false, ..host }.is_selected("crates"));
    }
}
