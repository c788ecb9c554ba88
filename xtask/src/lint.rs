//! Runs rustfmt and clippy on everything, and checks imports, dependencies, documents and ports of tests.

use anyhow::{Result, ensure};
use clap::Args;

use crate::dependencies;
use crate::documents;
use crate::ebpf;
use crate::flaky;
use crate::imports;
use crate::process::{SHARED_BUILD, cargo, clippy_driver, run_command};
use crate::programs;

pub fn format(check: bool) -> Result<()> {
    let mut command = cargo();
    command.args(["fmt", "--all"]);
    if check {
        command.args(["--", "--check"]);
    }
    run_command(&mut command)
}

#[derive(Debug, Default, Args)]
pub struct LintOptions {
    /// Take the warnings of the last build of the tests, instead of another build
    #[arg(long, hide = true)]
    built: bool,
}

/// Runs all checks even if some fail, so that one run reports everything.
pub fn lint(options: &LintOptions) -> Result<()> {
    let shared = if options.built && clippy_driver().is_some() {
        no_warnings()
    } else {
        run_clippy(&[&["--all-targets"], &SHARED_BUILD[..]].concat())
    };
    let parts = [
        format(true),
        imports::check_imports(),
        dependencies::check_dependencies(),
        documents::check_documents(),
        flaky::check_ports(),
        shared,
        run_clippy(&["--all-targets", "--package", "xtask"]),
        run_clippy(&["--all-targets", "--package", "models"]),
        ebpf::lint_ebpf(),
    ];
    let errors: Vec<String> =
        parts.into_iter().filter_map(|part| Some(format!("{:#}", part.err()?))).collect();
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

/// Fails if the shared build had warnings.
fn no_warnings() -> Result<()> {
    let warnings = programs::warnings()?;
    warnings.iter().for_each(|warning| eprintln!("{warning}"));
    ensure!(warnings.is_empty(), "{} warnings", warnings.len());
    Ok(())
}

fn run_clippy(selection: &[&str]) -> Result<()> {
    let mut command = cargo();
    command.args(["clippy", "--quiet"]).args(selection);
    run_command(command.args(["--", "--deny", "warnings"]))
}
