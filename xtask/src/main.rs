//! `cargo xtask`: the one door to the repository, for people and for CI.

mod dependencies;
mod ebpf;
mod fingerprint;
mod fuzz;
mod image;
mod linker;
mod lint;
mod packages;
mod paths;
mod process;
mod prometheus;
mod python;
mod run;
mod stages;
mod test;
mod toolchain;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Everything one does with Millrace's repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
struct Xtask {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  See it at work in network namespaces, no cluster needed; Ctrl-C ends it:
    cargo xtask run

  Everything CI does, or one stage of it:
    cargo xtask test
    cargo xtask test --only kernel

  Measure, change something, and compare:
    cargo xtask bench --quick
    cargo xtask bench --only 'xdp*' --compare before.json
    cargo xtask bench control --services 1000,10000
    cargo xtask bench compare --services 1,1000

  Fuzz the data plane's pipeline on the host for ten minutes:
    cargo xtask fuzz pipeline --seconds 600

  An image to deploy, without a container engine:
    cargo xtask image

  Only the BPF objects, and why by this compiler:
    cargo xtask build-ebpf --verbose

What is missing is installed: a compiler for BPF, bpf-linker, the tests' programs.
Nothing is installed twice, and nothing is built twice.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Build everything and show it at work in network namespaces
    Run(Passed),
    /// Run all tests and linters; ends with "N passed, M failed"
    Test(test::Options),
    /// Run tests in a virtual machine on Linux 6.1, the oldest kernel that is supported
    VmTest(vm::Options),
    /// Measure: nanoseconds per packet, requests per second; `bench control`: the control plane;
    /// `bench compare`: beside nftables, iptables, HAProxy and no balancer
    Bench(Passed),
    /// Build the BPF objects, installing a compiler for them if there is none
    BuildEbpf(ebpf::Options),
    /// Make an image of the agent for container runtimes, without one
    Image(image::Options),
    /// Look for packets and tables that break what holds for all, by cargo-fuzz
    Fuzz(fuzz::Options),
    /// Format all code
    Fmt {
        /// Only say what is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Check formatting and dependencies, and run clippy with warnings as errors, the BPF crate included
    Lint,
    /// What CI runs: `test`
    Ci,
    /// Install the programs that the tests use
    #[command(hide = true)]
    Prerequisites,
}

/// Arguments for the program behind a command; `-- --help` shows them.
#[derive(Debug, Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    dispatch(Xtask::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(passed) => run::demo(&passed.arguments)?,
        Command::Test(options) => return test::test(&options),
        Command::VmTest(options) => vm::test(&options)?,
        Command::Bench(passed) => run::bench(&passed.arguments)?,
        Command::BuildEbpf(options) => ebpf::build(&options)?,
        Command::Image(options) => image::build(&options)?,
        Command::Fuzz(options) => fuzz::fuzz(&options)?,
        Command::Fmt { check } => lint::format(check)?,
        Command::Lint => lint::lint()?,
        Command::Ci => return test::test(&test::Options::default()),
        Command::Prerequisites => {
            packages::ensure()?;
            python::ensure();
            prometheus::ensure();
        }
    }
    Ok(ExitCode::SUCCESS)
}
