//! rustfmt and clippy, over everything.

use anyhow::Result;

use crate::ebpf;
use crate::process::{cargo, run};

pub fn format(check: bool) -> Result<()> {
    let mut command = cargo();
    command.args(["fmt", "--all"]);
    if check {
        command.args(["--", "--check"]);
    }
    run(&mut command)
}

pub fn lint() -> Result<()> {
    format(true)?;
    let mut command = cargo();
    command
        .args(["clippy", "--workspace", "--exclude", "lb-ebpf", "--all-targets", "--quiet"])
        .args(["--features", "tests/privileged", "--", "--deny", "warnings"]);
    run(&mut command)?;
    ebpf::build(&ebpf::Options::default())?;
    ebpf::clippy()
}
