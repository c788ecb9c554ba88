//! `cargo xtask bench`: what packets, system calls and requests cost, and how long the agent takes for a change; beside
//! other load balancers and proxies, too.

mod bfd_load;
mod compare;
mod control;
mod ecmp;
mod failover;
mod figures;
mod generator;
mod ingress;
mod load;
mod machine;
mod output;
mod packets;
mod progress;
mod startup;
mod tables;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench",
    bin_name = "cargo xtask bench",
    args_conflicts_with_subcommands = true
)]
struct Bench {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,

    #[command(flatten)]
    packets: packets::PacketBenchOptions,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    Control(control::ControlPlaneOptions),
    Compare(compare::ComparisonOptions),
    Ingress(ingress::IngressBenchOptions),
    Startup(startup::StartupOptions),
    Failover(failover::FailoverOptions),
    BfdLoad(bfd_load::BfdLoadOptions),
    Ecmp(ecmp::EcmpOptions),
    /// Time system calls on sockets, as the benchmark of packets asks by standard input
    #[command(name = packets::SOCKET_TIMER, hide = true)]
    SocketTimer(SocketTimer),
}

#[derive(Debug, Args)]
struct SocketTimer {
    servers: Vec<String>,
}

fn main() -> Result<()> {
    let Bench { benchmark, packets } = Bench::parse();
    match benchmark {
        None => packets::run_packets(&packets),
        Some(Benchmark::Control(options)) => control::run_control_plane(&options),
        Some(Benchmark::Compare(options)) => compare::run_comparison(&options),
        Some(Benchmark::Ingress(options)) => ingress::run_ingress(&options),
        Some(Benchmark::Startup(options)) => startup::run_startup(&options),
        Some(Benchmark::Failover(options)) => failover::run_failover(&options),
        Some(Benchmark::BfdLoad(options)) => bfd_load::run_bfd_load(&options),
        Some(Benchmark::Ecmp(options)) => ecmp::run_ecmp(&options),
        Some(Benchmark::SocketTimer(options)) => packets::time_sockets(&options.servers),
    }
}
