//! Runs rustfmt and clippy on everything, and checks imports and dependencies.

use anyhow::{Result, ensure};

use crate::dependencies;
use crate::ebpf;
use crate::imports;
use crate::process::{SHARED_BUILD, cargo, run};

pub fn format(check: bool) -> Result<()> {
    let mut command = cargo();
    command.args(["fmt", "--all"]);
    if check {
        command.args(["--", "--check"]);
    }
    run(&mut command)
}

/// Runs all checks even if some fail, so that one run reports everything.
pub fn lint() -> Result<()> {
    let parts = [
        format(true),
        imports::check(),
        dependencies::check(),
        clippy(&[&["--all-targets"], &SHARED_BUILD[..]].concat()),
        clippy(&["--all-targets", "--package", "xtask"]),
        clippy(&["--all-targets", "--package", "models"]),
        ebpf::clippy(),
    ];
    let errors: Vec<String> =
        parts.into_iter().filter_map(|part| Some(format!("{:#}", part.err()?))).collect();
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

fn clippy(selection: &[&str]) -> Result<()> {
    let mut command = cargo();
    command.args(["clippy", "--quiet"]).args(selection);
    run(command.args(["--", "--deny", "warnings"]))
}
