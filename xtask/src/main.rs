//! `cargo xtask`: builds, tests, benchmarks and images, for developers and CI.

mod cluster;
mod dependencies;
mod documents;
mod ebpf;
mod etcd;
mod excerpt;
mod fingerprint;
mod flaky;
mod fuzz;
mod image;
mod imports;
mod linker;
mod lint;
mod packages;
mod paths;
mod process;
mod programs;
mod prometheus;
mod python;
mod release;
mod run;
mod schedule;
mod site;
mod stages;
mod test;
mod toolchain;
mod tools;
mod usage;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Build, test, measure and package Millrace
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
struct Xtask {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Run a demo in network namespaces, without a cluster, until Ctrl-C:
    cargo xtask run

  Run what CI runs, or one stage of it:
    cargo xtask test
    cargo xtask test --only kernel

  Run benchmarks, and compare them with an earlier run:
    cargo xtask bench --quick
    cargo xtask bench --only 'xdp*' --compare before.json
    cargo xtask bench control --services 1000,10000
    cargo xtask bench cluster --services 10000
    cargo xtask bench compare --services 1,1000
    cargo xtask bench api --objects 50000 --watchers 1000
    cargo xtask bench ingress --only millrace,nginx

  Fuzz the data plane's pipeline in user space for ten minutes:
    cargo xtask fuzz pipeline --seconds 600

  Run a Kubernetes cluster on this machine until Ctrl-C; run upstream's tests against one:
    cargo xtask cluster --nodes 3
    cargo xtask conformance sig-network

  Build a container image, without a container engine; all files of a release; the documentation as a site:
    cargo xtask image
    cargo xtask release --output /tmp/millrace-release
    cargo xtask site

  Build only the BPF objects, and print why a compiler was chosen:
    cargo xtask build-ebpf --verbose

Missing tools are installed: a compiler for BPF, bpf-linker, mdBook, the programs that the tests use.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Build everything and run a demo in network namespaces
    Run(Passed),
    /// Run all tests and linters; the last line is "N passed, M failed"
    Test(test::TestOptions),
    /// Run tests in a virtual machine with Linux 6.1, the oldest supported kernel
    VmTest(vm::VmTestOptions),
    /// Run benchmarks: nanoseconds per packet and system call, requests per second
    ///
    /// Without another word, packets and system calls. `bench control` measures the control plane, `bench startup` the
    /// start of an agent, `bench cluster` an agent beside kube-proxy among many Services of a real API server, `bench api`
    /// the embedded API beside etcd; `bench compare` compares Millrace with nftables, iptables, HAProxy and direct
    /// connections, `bench ingress` the Ingress proxy with nginx, HAProxy and Caddy; `bench failover`, `bench ecmp` and
    /// `bench bfd-load` measure what faults of nodes and load do to clients.
    /// `bench -- --help`, and `--help` after one of these words, list their options.
    Bench(Passed),
    /// Run a Kubernetes cluster in network namespaces, with Millrace, until Ctrl-C
    ///
    /// Builds its programs from Go modules at the first start, for half an hour. `-- --help` lists the options.
    Cluster(Passed),
    /// Run suites against a new cluster: sig-network, ingress, http2, upgrade, nodes, control-plane, migration, api
    Conformance(Passed),
    /// Build the BPF objects; installs a BPF compiler if none is found
    BuildEbpf(ebpf::EbpfOptions),
    /// Build a container image of the agent, without a container engine
    Image(image::ImageOptions),
    /// Make the files of a release from a clean tree: image, program, chart, manifests, documentation, bill of materials,
    /// licences, changes, checksums
    Release(release::ReleaseOptions),
    /// Build the documentation as a site that works offline
    Site(site::SiteOptions),
    /// Fuzz the data plane, and what the HTTP proxy parses, with cargo-fuzz
    Fuzz(fuzz::FuzzOptions),
    /// Format all code
    Fmt {
        /// Check the formatting, and change nothing
        #[arg(long)]
        check: bool,
    },
    /// Check formatting, imports and dependencies, and run clippy on all crates with warnings as errors
    Lint(lint::LintOptions),
    /// Same as `test`: what CI runs
    Ci,
    /// Build all test programs, or run some of them
    #[command(hide = true)]
    Programs(programs::ProgramOptions),
    /// Install the programs that the tests use
    #[command(hide = true)]
    Prerequisites,
}

#[derive(Debug, Args)]
struct Passed {
    /// Arguments of the program that is run; `-- --help` lists them
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
        Command::Test(options) => return test::run_tests(&options),
        Command::VmTest(options) => vm::test_in_machine(&options)?,
        Command::Bench(passed) => match passed.arguments.split_first() {
            Some((first, rest)) if first == "cluster" => cluster::bench_in_cluster(rest)?,
            _ => run::bench(&passed.arguments)?,
        },
        Command::Cluster(passed) => cluster::run_in_cluster("cluster", &passed.arguments)?,
        Command::Conformance(passed) => cluster::run_in_cluster("conformance", &passed.arguments)?,
        Command::BuildEbpf(options) => ebpf::build_objects(&options)?,
        Command::Image(options) => image::build_image(&options)?,
        Command::Release(options) => release::make_release(&options)?,
        Command::Site(options) => site::build_site_from_options(&options)?,
        Command::Fuzz(options) => fuzz::fuzz(&options)?,
        Command::Fmt { check } => lint::format(check)?,
        Command::Lint(options) => lint::lint(&options)?,
        Command::Ci => return test::run_tests(&test::TestOptions::default()),
        Command::Programs(options) => programs::build_or_run_programs(&options)?,
        Command::Prerequisites => {
            let packages =
                [&packages::DEMO[..], &packages::NODES, &packages::PEERS, &packages::ENDPOINTS];
            packages::ensure_packages(&packages)?;
            python::ensure_python();
            prometheus::ensure_prometheus();
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
#[path = "../../lb-userspace/tests/deploy/console/blocks.rs"]
mod blocks;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Xtask, blocks};

    #[test]
    fn commands_of_the_documentation_are_known() {
        let mut found = 0;
        for page in blocks::PAGES {
            for command in blocks::blocks_of_page(page).iter().flat_map(|block| &block.commands) {
                let words = command.text.split(" #").next().unwrap_or_default();
                if let Some(words) = words.strip_prefix("cargo xtask ") {
                    let words = ["cargo xtask"].into_iter().chain(words.split_whitespace());
                    let parsed = Xtask::try_parse_from(words);
                    assert!(parsed.is_ok(), "docs/{page}.md:{}: {parsed:?}", command.line);
                    found += 1;
                }
            }
        }
        assert!(found > 1);
    }
}
