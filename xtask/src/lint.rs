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
    // With and without what needs root; the second time only `tests` is looked at again.
    for features in [&[][..], &["--features", "tests/privileged"]] {
        let mut command = cargo();
        command
            .args(["clippy", "--workspace", "--exclude", "lb-ebpf", "--all-targets", "--quiet"])
            .args(features)
            .args(["--", "--deny", "warnings"]);
        run(&mut command)?;
    }
    ebpf::clippy()
}
