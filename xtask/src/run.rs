//! Building the agent and the programs that show and measure it, and becoming them.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{become_root_command, cargo, root, run};
use crate::{ebpf, packages, test};

/// The demonstration, in the profile of the tests: it is built quickly, and the kernel does
/// the work that counts.
pub fn run_demo(arguments: &[String]) -> Result<()> {
    packages::ensure(test::PROGRAMS)?;
    let programs = build(&["--bin", "demo"], "dev")?;
    become_root_command(&programs.join("demo"), arguments, &programs.join("millrace"))
}

pub fn run_bench(arguments: &[String]) -> Result<()> {
    packages::ensure(test::PROGRAMS)?;
    let programs = build(&["--bin", "bench"], "release")?;
    become_root_command(&programs.join("bench"), arguments, &programs.join("millrace"))
}

/// Builds the BPF objects, the agent and more; returns where the programs are.
fn build(more: &[&str], profile: &str) -> Result<PathBuf> {
    ebpf::build(&ebpf::Options::default())?;
    let mut command = cargo();
    command
        .args(["build", "--package", "lb-userspace", "--package", "tests", "--bin", "millrace"])
        .args(more)
        .args(["--profile", profile]);
    run(&mut command)?;
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(root().join("target").join(directory))
}
