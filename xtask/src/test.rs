//! `cargo xtask test`: the README's test command, and CI's.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages::{self, Program};
use crate::process::{cargo, is_root};
use crate::stages::{self, Tally};

/// What the tests and the demonstration use.
pub const PROGRAMS: &[Program] = &[
    Program("ip", "iproute2"),
    Program("ethtool", "ethtool"),
    Program("bpftool", "bpftool"),
    Program("nginx", "nginx-light"),
    Program("curl", "curl"),
    Program("iperf3", "iperf3"),
    Program("tcpdump", "tcpdump"),
    Program("nsenter", "util-linux"),
];

#[derive(Debug, Default, Args)]
pub struct Options {
    /// Run only these stages; may be repeated
    #[arg(long, value_name = "STAGE")]
    only: Vec<String>,
}

/// What runs, in this order: the cheap and telling first.
const STAGES: [(&str, &[&str]); 6] = [
    ("lint", &["xtask", "lint"]),
    ("build", &["build", "--package", "lb-userspace", "--package", "tests", "--bins"]),
    ("unit", &["test", "--workspace", "--exclude", "lb-ebpf"]),
    ("privileged", &["test", "--package", "tests", "--features", "privileged", "--tests"]),
    ("demo", &["xtask", "run", "--", "--exit-after-demo"]),
    ("bench", &["xtask", "bench", "--", "--quick"]),
];

pub fn test(options: &Options) -> Result<()> {
    for name in &options.only {
        if !STAGES.iter().any(|(known, _)| known == name) {
            let known: Vec<&str> = STAGES.iter().map(|(name, _)| *name).collect();
            bail!("there is no stage {name}; there are {}", known.join(", "));
        }
    }
    packages::ensure(PROGRAMS)?;
    crate::ebpf::build(&crate::ebpf::Options::default())?;

    let mut tally = Tally::default();
    let mut all_ok = true;
    for (name, arguments) in STAGES {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let mut command = cargo();
        command.args(arguments);
        if name == "privileged" {
            run_as_root(&mut command)?;
        }
        all_ok &= stages::run(name, &mut command, &mut tally)?;
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if !all_ok {
        bail!("not all stages passed; their logs are in target/xtask");
    }
    Ok(())
}

/// Lets cargo run test programs by sudo, if this is not root.
fn run_as_root(command: &mut Command) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    crate::process::output(Command::new("sudo").args(["--non-interactive", "true"])).context(
        "these tests need root, for network namespaces and BPF: run `cargo xtask test` as root, \
         or let sudo know you (`sudo true`) and run it again",
    )?;
    eprintln!("the privileged tests run as root, by sudo");
    command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo --non-interactive -E");
    Ok(())
}
