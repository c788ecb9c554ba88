//! Building the agent and the programs that show and measure it, and becoming them.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{become_root_command, cargo, run, target};
use crate::{ebpf, packages};

/// The demonstration, in the profile of the tests: they share what is built, and the work that
/// counts is done by the kernel.
pub fn demo(arguments: &[String]) -> Result<()> {
    packages::ensure()?;
    let programs = build("demo", "dev")?;
    become_root_command(&programs.join("demo"), arguments, &programs.join("millrace"))
}

/// Before all other arguments `control` measures the control plane instead of packets, `compare`
/// Millrace beside others.
pub fn bench(arguments: &[String]) -> Result<()> {
    packages::ensure()?;
    let (program, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "control" => ("control", rest),
        Some((first, rest)) if first == "compare" => {
            packages::ensure_compared();
            ("compare", rest)
        }
        _ => ("bench", arguments),
    };
    // A quick run is to show that all works: it shares what the tests have built, which spares a
    // fresh machine minutes. What a packet costs is the kernel's, whatever the profile.
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let programs = build(program, if is_quick { "dev" } else { "release" })?;
    become_root_command(&programs.join(program), arguments, &programs.join("millrace"))
}

/// Builds the BPF objects, the agent and one program of `tests`; returns where they are.
fn build(program: &str, profile: &str) -> Result<PathBuf> {
    ebpf::build(&ebpf::Options::default())?;
    let mut command = cargo();
    command.args(["build", "--package", "lb-userspace", "--package", "tests"]).args([
        "--bin",
        "millrace",
        "--bin",
        program,
        "--profile",
        profile,
    ]);
    run(&mut command)?;
    Ok(target().join(if profile == "dev" { "debug" } else { profile }))
}
