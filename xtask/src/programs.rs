//! The test programs of all crates that share one build. Cargo builds them at once, and they are run without it: another
//! selection of crates would have other features, and be another build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::process::{SHARED_BUILD, cargo, root};
use crate::test::as_root;

/// The only program of `tests` that needs no root, apart from its unit tests.
const HOST: &str = "host";

#[derive(Debug, Args)]
pub struct Options {
    /// Run the programs of `tests` that need root, instead of all others
    #[arg(long)]
    worlds: bool,
}

/// A built test program.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// The name of the file in `tests`, or of the crate whose unit tests it has.
    name: String,
    path: PathBuf,
    /// The directory of its crate.
    directory: PathBuf,
    /// Whether it has the unit tests of a crate.
    unit: bool,
}

impl Program {
    fn needs_root(&self) -> bool {
        self.directory == root().join("tests") && !self.unit && self.name != HOST
    }
}

/// Builds all test programs, and runs one after the other. Fails if one of them fails.
pub fn test(options: &Options) -> Result<()> {
    let programs = build()?;
    let mut failed = Vec::new();
    for program in programs.iter().filter(|program| program.needs_root() == options.worlds) {
        let path = program.path.strip_prefix(root()).unwrap_or(&program.path);
        println!("     Running {} ({})", program.name, path.display());
        let mut command =
            if options.worlds { as_root(&program.path) } else { Command::new(&program.path) };
        // As cargo does.
        command.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
        let status = command.status().with_context(|| program.path.display().to_string())?;
        if !status.success() {
            failed.push(program.name.as_str());
        }
    }
    ensure!(failed.is_empty(), "failed test programs: {}", failed.join(", "));
    Ok(())
}

fn build() -> Result<Vec<Program>> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
    let built = command
        .args(SHARED_BUILD)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo can't be started")?;
    ensure!(built.status.success(), "cargo test --no-run ended with {}", built.status);
    let programs = programs(&String::from_utf8_lossy(&built.stdout));
    ensure!(!programs.is_empty(), "cargo reported no test program");
    Ok(programs)
}

/// The test programs in cargo's messages.
fn programs(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let program = |message: Value| {
        Some(Program {
            name: message["target"]["name"].as_str()?.to_owned(),
            path: message["executable"].as_str()?.into(),
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
            unit: message["target"]["kind"][0] != "test",
        })
    };
    tests.filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let messages = r#"{"reason":"build-script-executed"}
not json
{"target":{"kind":["test"],"name":"pods"},"profile":{"test":true},"executable":"/t/pods-1","manifest_path":"/r/tests/Cargo.toml"}
{"target":{"kind":["bin"],"name":"millrace"},"profile":{"test":false},"executable":"/t/millrace","manifest_path":"/r/m/Cargo.toml"}
{"target":{"kind":["lib"],"name":"lb_api"},"profile":{"test":true},"executable":"/t/lb_api-1","manifest_path":"/r/a/Cargo.toml"}
"#;
        let program = |name: &str, path: &str, directory: &str, unit| Program {
            name: name.to_owned(),
            path: path.into(),
            directory: directory.into(),
            unit,
        };
        assert_eq!(
            programs(messages),
            [
                program("pods", "/t/pods-1", "/r/tests", false),
                program("lb_api", "/t/lb_api-1", "/r/a", true)
            ]
        );
    }

    #[test]
    fn only_worlds_need_root() {
        let of_tests = |name: &str, unit| Program {
            name: name.to_owned(),
            path: PathBuf::new(),
            directory: root().join("tests"),
            unit,
        };
        assert!(of_tests("node", false).needs_root());
        assert!(!of_tests("host", false).needs_root());
        assert!(!of_tests("tests", true).needs_root());
        let of_other = Program { directory: root().join("crates/api"), ..of_tests("api", false) };
        assert!(!of_other.needs_root());
    }
}
