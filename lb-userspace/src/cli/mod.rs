//! The command line.

mod agent;
mod cleanup;
mod get;
mod output;
mod standalone;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::kernel::DEFAULT_PIN_PATH;

/// Balances Kubernetes Services in the kernel
///
/// Millrace turns Services and EndpointSlices into BPF maps; programs on the network devices
/// translate packets by them.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, after_help = EXAMPLES)]
struct Millrace {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  Balance the Services of the cluster that kubectl talks to, as the node that it calls worker-1:
    millrace agent --device eth0 --node-name worker-1

  Balance the Services of some manifests, without a cluster:
    millrace agent --manifests services/ --device eth0

  The same with an API of our own, for kubectl, instead of a cluster:
    millrace standalone --device eth0

  See what is in force, and what was counted:
    millrace get frontends
    millrace get flows -o wide
    millrace get counters -o json

  Stop forwarding and leave nothing behind:
    millrace cleanup";

#[derive(Debug, Args)]
struct Common {
    /// The directory in the BPF filesystem that holds the maps and links
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = DEFAULT_PIN_PATH)]
    #[arg(env = "MILLRACE_PIN_PATH")]
    pin_path: PathBuf,

    /// What to log: error, warn, info, debug or trace, also by module
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    #[arg(env = "MILLRACE_LOG")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: load the programs, attach them, keep the maps true
    // What it was called first, for who has it in a script; not documented.
    #[command(alias = "run")]
    Agent(Box<agent::Options>),
    /// Run without a cluster: serve the Kubernetes API here, and balance what is stored in it
    Standalone(Box<standalone::Options>),
    /// Show what the kernel holds
    Get(get::Options),
    /// Detach the programs and remove the maps; connections through Services end
    Cleanup,
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

pub fn main() -> ExitCode {
    let Millrace { command, common } = Millrace::parse();
    match start_log(&common.log).and_then(|()| dispatch(command, &common)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command, common: &Common) -> Result<()> {
    match command {
        Command::Agent(options) => agent::run(*options, &common.pin_path),
        Command::Standalone(options) => standalone::run(*options, &common.pin_path),
        Command::Get(options) => get::get(&options, &common.pin_path),
        Command::Cleanup => cleanup::cleanup(&common.pin_path),
        Command::Completions { shell } => {
            let mut command = Millrace::command();
            clap_complete::generate(shell, &mut command, "millrace", &mut io::stdout());
            Ok(())
        }
    }
}

/// The causes from the outside in, one a line.
fn explain(error: &anyhow::Error) -> String {
    let mut lines = vec![error.to_string()];
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Wrappers that only repeat what they wrap add nothing.
        if !lines.iter().any(|line| line.contains(&cause)) {
            lines.push(format!("  because: {cause}"));
        }
    }
    lines.join("\n")
}

/// To stderr; without times where a journal adds its own.
fn start_log(filter: &str) -> Result<()> {
    // The client complains of every try; the source that uses it says once what is wrong.
    let filter = EnvFilter::try_new(format!("kube_client=off,{filter}"))
        .map_err(|error| anyhow::anyhow!("--log {filter}: {error}; try --log debug"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        builder.without_time().init();
    } else {
        builder.init();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Millrace::command().debug_assert();
    }
}
