//! `cargo xtask`: the one door to the repository, for people and for CI.

mod build;
mod ebpf;
mod fingerprint;
mod lint;
mod packages;
mod process;
mod stages;
mod test;
mod toolchain;

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
  cargo xtask run                        build it and see it at work
  cargo xtask test                       what CI runs
  cargo xtask test --only kernel         one stage of it
  cargo xtask bench --quick              nanoseconds per packet, in a minute
  cargo xtask bench --only 'xdp.v4.*' --compare old.json";

#[derive(Debug, Subcommand)]
enum Command {
    /// Build everything and show it at work in network namespaces
    Run(Passed),
    /// Run all tests and linters, installing what they need
    Test(test::Options),
    /// Measure: nanoseconds per packet, requests per second
    Bench(Passed),
    /// Build the BPF object, installing a compiler for it if there is none
    BuildEbpf(ebpf::Options),
    /// Format all code
    Fmt {
        /// Only say what is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Check formatting and run clippy with warnings as errors, the BPF crate included
    Lint,
    /// What CI runs: `test`
    Ci,
}

/// Arguments for the program behind a command; `-- --help` shows them.
#[derive(Debug, Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    match dispatch(Xtask::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run(passed) => build::run_demo(&passed.arguments),
        Command::Test(options) => test::test(&options),
        Command::Bench(passed) => build::run_bench(&passed.arguments),
        Command::BuildEbpf(options) => ebpf::build(&options),
        Command::Fmt { check } => lint::format(check),
        Command::Lint => lint::lint(),
        Command::Ci => test::test(&test::Options::default()),
    }
}
