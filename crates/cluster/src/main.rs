//! `cargo xtask cluster`: a Kubernetes cluster on this machine, and `cargo xtask conformance`, which tests it.
//!
//! All programs are real, built from Go modules (`binaries`); images are made here (`images`). Hosts are network
//! namespaces (`network`), nodes have namespaces of all other kinds, too (`node`). Nothing of the machine's own network
//! is touched, and nothing stays when it ends.

mod binaries;
mod certificates;
mod cluster;
mod conformance;
mod control_plane;
mod forward;
mod images;
mod install;
mod interrupt;
mod kubeconfig;
mod network;
mod node;
mod scale;

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use cluster::{Cluster, ClusterOptions};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Program {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run a Kubernetes cluster on this machine until Ctrl-C
    ///
    /// Needs neither a container engine nor a virtual machine: nodes are namespaces. All programs are built from Go
    /// modules at the first start.
    Cluster(ClusterOptions),
    /// Run a conformance suite against a new cluster
    Conformance(conformance::ConformanceOptions),
    /// Measure a service proxy among many Services: `cargo xtask bench cluster`
    #[command(name = "bench-cluster", hide = true)]
    Scale(scale::ScaleOptions),
    #[command(hide = true)]
    Node { file: PathBuf },
    #[command(hide = true)]
    NodeInit { file: PathBuf },
    #[command(hide = true)]
    CleanUp { files: Vec<PathBuf> },
}

fn main() -> ExitCode {
    match dispatch(Program::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(task: Task) -> Result<()> {
    match task {
        Task::Cluster(options) => run_cluster(&options),
        Task::Conformance(options) => conformance::run_conformance(&options),
        Task::Scale(options) => scale::run_scale_benchmark(&options),
        Task::Node { file } => node::enter_node(&file),
        Task::NodeInit { file } => node::run_init(&file),
        Task::CleanUp { files } => {
            // Until the cluster's process ends.
            io::stdin().read_to_end(&mut Vec::new())?;
            tests::worlds::topology::remove_leftovers();
            // They are gone if the cluster removed itself.
            files.iter().for_each(|file| drop(fs::remove_file(file)));
            Ok(())
        }
    }
}

fn run_cluster(options: &ClusterOptions) -> Result<()> {
    let programs = binaries::build_programs(options, false)?;
    if options.build_only {
        return Ok(());
    }
    interrupt::handle_interrupts()?;
    let mut cluster = Cluster::start(options, &programs, &[])?;
    println!("\n{}", cluster.plane.kubectl(&["get", "nodes", "-o", "wide"])?);
    println!("export KUBECONFIG={}", cluster.kubeconfig.display());
    println!("export PATH={}:$PATH    # kubectl of this version", cluster.programs.display());
    println!("A client outside the cluster, for addresses of Services:");
    println!(
        "  nsenter --net={} curl http://ADDRESS",
        cluster.network.client.namespace_path().display()
    );
    println!("An image with a web server and tools: {}", images::AGNHOST);
    println!("Logs: {}", cluster.network.topology.directory().display());
    println!("Ctrl-C ends and removes it.");
    while !interrupt::is_interrupted() {
        if let Some(name) = cluster.ended() {
            cluster.keep_logs();
            bail!("{name} ended");
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
