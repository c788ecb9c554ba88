//! Builds the agent and the demo or a benchmark, and replaces this process with it.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{become_root_command, cargo, run, target};
use crate::{ebpf, etcd, packages};

/// Runs the demo, in the profile of the tests to share their build. The kernel does the work that
/// matters.
pub fn demo(arguments: &[String]) -> Result<()> {
    packages::ensure()?;
    let programs = build("demo", "dev")?;
    become_root_command(&programs.join("demo"), arguments, &programs.join("millrace"))
}

/// Runs a benchmark of packets, or with the first argument `control` of the control plane, with `api` of the embedded
/// API, with `compare` against other load balancers, or with `ingress` against other HTTP proxies.
pub fn bench(arguments: &[String]) -> Result<()> {
    if let Some((first, rest)) = arguments.split_first()
        && first == "api"
    {
        return bench_api(rest);
    }
    packages::ensure()?;
    let (program, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "control" => ("control", rest),
        Some((first, rest)) if first == "compare" => {
            packages::ensure_compared();
            ("compare", rest)
        }
        Some((first, rest)) if first == "ingress" => {
            packages::ensure_compared();
            ("ingress", rest)
        }
        _ => ("bench", arguments),
    };
    // A quick run only shows that everything works. It shares the build of the tests, which saves
    // minutes on a new machine. The cost of a packet in the kernel does not depend on the profile.
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let programs = build(program, if is_quick { "dev" } else { "release" })?;
    become_root_command(&programs.join(program), arguments, &programs.join("millrace"))
}

/// Needs neither root nor the agent.
fn bench_api(arguments: &[String]) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--package", "lb-api", "--example", "bench"]);
    if !arguments.iter().any(|argument| argument == "--quick") {
        command.arg("--release");
    }
    command.arg("--");
    if let Some(program) = etcd::ensure() {
        command.arg("--etcd").arg(program);
    }
    command.arg("--directory").arg(target().join("bench")).args(arguments);
    run(&mut command)
}

/// Builds the BPF objects, the agent and one program of `tests`. Returns their directory.
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
