//! Builds the agent and the demo or a benchmark, and replaces this process with it.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{
    SHARED_BUILD, become_root_command, cargo, run_command, shared_cargo, target_directory,
};
use crate::{ebpf, etcd, packages};

/// Runs the demo, in the profile of the tests to share their build. The kernel does the work that
/// matters.
pub fn demo(arguments: &[String]) -> Result<()> {
    packages::ensure_packages(&[&packages::DEMO])?;
    let (demo, agent) = build_with_agent("demo", "dev", "dev")?;
    become_root_command(&demo, arguments, Some(&agent))
}

/// Runs a benchmark: of the embedded API with the first argument `api`, otherwise a benchmark of `lb-bench`.
pub fn bench(arguments: &[String]) -> Result<()> {
    if let Some((first, rest)) = arguments.split_first()
        && first == "api"
    {
        return bench_api(rest);
    }
    packages::ensure_packages(&[&packages::DEMO, &packages::BENCHMARKS])?;
    let benchmark = arguments.first().map(String::as_str);
    match benchmark {
        Some("compare" | "ingress") => {
            if let Err(error) = packages::ensure_packages(&[&packages::COMPARED]) {
                eprintln!("to be measured without: {error:#}");
            }
        }
        Some("bfd-load" | "ecmp") => packages::ensure_packages(&[&packages::PEERS])?,
        _ => {}
    }
    // A quick run only shows that everything works. It shares the build of the tests, which saves
    // minutes on a new machine. The cost of a packet in the kernel does not depend on the profile;
    // that of a request in the proxy does, so the proxy is built as for the image.
    let profiles = match benchmark {
        _ if arguments.iter().any(|argument| argument == "--quick") => ("dev", "dev"),
        Some("ingress") => ("release", "image"),
        _ => ("release", "release"),
    };
    let (program, agent) = build_with_agent("bench", profiles.0, profiles.1)?;
    become_root_command(&program, arguments, Some(&agent))
}

/// Needs neither root nor the agent.
fn bench_api(arguments: &[String]) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--package", "lb-api", "--example", "bench"]);
    if !arguments.iter().any(|argument| argument == "--quick") {
        command.arg("--release");
    }
    command.arg("--");
    if let Some(program) = etcd::ensure_etcd() {
        command.arg("--etcd").arg(program);
    }
    command.arg("--directory").arg(target_directory().join("bench")).args(arguments);
    run_command(&mut command)
}

/// Builds the BPF objects, and one program and the agent with a profile each. Returns the paths of both.
pub fn build_with_agent(
    program: &str,
    profile: &str,
    of_agent: &str,
) -> Result<(PathBuf, PathBuf)> {
    ebpf::build_objects_beside(|| {
        if profile == of_agent {
            return build_programs_of_profile(profile, &[program, "millrace"]);
        }
        build_programs_of_profile(profile, &[program])?;
        build_programs_of_profile(of_agent, &["millrace"])
    })?;
    Ok((built_program(profile, program), built_program(of_agent, "millrace")))
}

pub fn build_programs_of_profile(profile: &str, programs: &[&str]) -> Result<()> {
    let mut command = if profile == "dev" { shared_cargo() } else { cargo() };
    // All packages that the tests build: their dependencies then have the same features, and are built once.
    command.args(["build", "--profile", profile]).args(SHARED_BUILD);
    command.args(programs.iter().flat_map(|program| ["--bin", program]));
    run_command(&mut command)
}

pub fn built_program(profile: &str, program: &str) -> PathBuf {
    target_directory().join(if profile == "dev" { "debug" } else { profile }).join(program)
}
