//! The command line.

mod agent;
mod check;
mod cleanup;
mod config;
mod drops;
mod inspect;
mod log;
mod man;
mod names;
mod output;
mod standalone;
mod trace;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{
    self as configuration, AgentSettings, Common, Effective, OriginSettings, StandaloneSettings,
};

/// Balances Kubernetes Services in the kernel
///
/// Millrace turns Services and EndpointSlices into BPF maps; programs on the network devices
/// translate packets by them.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, after_help = EXAMPLES)]
struct Millrace {
    #[command(subcommand)]
    command: Command,

    /// A file with settings, in YAML, by the names of the flags; flags and variables go before it
    #[arg(long = configuration::FILE, id = configuration::FILE, global = true)]
    #[arg(value_name = "FILE", env = "MILLRACE_CONFIG", hide_env_values = true)]
    file: Option<PathBuf>,
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
    millrace status
    millrace top
    millrace services
    millrace flows --service default/web -o wide
    millrace counters -o json

  Stop forwarding and leave nothing behind:
    millrace cleanup";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: load the programs, attach them, keep the maps true
    // What it was called first, for who has it in a script; not documented.
    #[command(alias = "run")]
    Agent,
    /// Run without a cluster: serve the Kubernetes API here, and balance what is stored in it
    #[command(after_help = standalone::EXAMPLES)]
    Standalone,
    /// Show on one screen how the node is: agent, devices, maps, problems; 1 if it is not well
    #[command(after_help = inspect::STATUS)]
    Status(inspect::Status),
    /// Show live what happens: packets, new connections and bytes a second, and drops
    #[command(after_help = inspect::TOP)]
    Top(inspect::Top),
    /// Show the Services that are in force, and what was counted of each
    #[command(after_help = inspect::SERVICES, visible_alias = "svc")]
    Services(inspect::Named),
    /// Show what clients dial, and the backends behind it
    #[command(after_help = inspect::FRONTENDS)]
    Frontends(inspect::Named),
    /// Show who serves, where that is, and whether he gets new connections
    #[command(after_help = inspect::BACKENDS)]
    Backends(inspect::Named),
    /// Show the connections through Services
    #[command(after_help = inspect::FLOWS)]
    Flows(inspect::Flows),
    /// Show how a Service's Maglev table spreads connections, and what would move if a backend left
    #[command(after_help = inspect::MAGLEV)]
    Maglev(inspect::Maglev),
    /// Show why packets were passed untouched or dropped
    #[command(after_help = inspect::COUNTERS)]
    Counters(inspect::Counters),
    /// Tell step by step what would become of a packet, by the maps as they are now
    Trace(Box<trace::Options>),
    /// Tell of packets that are dropped or refused, as it happens
    Drops(drops::Options),
    /// Say whether this machine will do, and what to mend; fails if it won't
    Check(check::Options),
    /// Detach the programs and remove the maps; connections through Services end
    Cleanup(cleanup::Options),
    /// Show the settings in effect, and where each comes from
    Config(config::Options),
    /// Write the manual's pages into a directory
    Man { directory: PathBuf },
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

/// The commands that take more settings than all do, and which.
fn settings() -> [(&'static str, Vec<Arg>); 4] {
    let [origin, agent, standalone] = [
        configuration::settings::<OriginSettings>(),
        configuration::settings::<AgentSettings>(),
        configuration::settings::<StandaloneSettings>(),
    ];
    let all = [&origin[..], &agent, &standalone].concat();
    [
        ("check", all.clone()),
        ("config", all),
        ("standalone", [standalone, agent.clone()].concat()),
        ("agent", [origin, agent].concat()),
    ]
}

/// The whole command line: what is declared above, and the settings.
fn command() -> clap::Command {
    let common = configuration::settings::<Common>();
    let command = configuration::add(Millrace::command(), &common);
    settings().into_iter().fold(command, |command, (name, settings)| {
        command.mut_subcommand(name, |command| configuration::add(command, &settings))
    })
}

pub fn main() -> ExitCode {
    let matches = command().get_matches();
    match start(&matches) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("millrace: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

fn start(matches: &clap::ArgMatches) -> Result<ExitCode> {
    let Millrace { command, .. } = Millrace::from_arg_matches(matches)?;
    let (name, arguments) = matches.subcommand().expect("clap asks for a command");
    let mut added = configuration::settings::<Common>();
    added.extend(settings().into_iter().filter(|(of, _)| *of == name).flat_map(|(_, more)| more));
    let effective = match (configuration::resolve(arguments, &added), &command) {
        (Err(problems), Command::Check(options)) => {
            return check::check_without(options, &problems).map(|()| ExitCode::SUCCESS);
        }
        (resolved, _) => resolved?,
    };
    let level = log::start(&effective.configuration.common, arguments.clone(), added)?;
    dispatch(command, effective, level)
}

fn dispatch(command: Command, effective: Effective, level: log::Level) -> Result<ExitCode> {
    let common = effective.configuration.common.clone();
    let done = match command {
        Command::Status(options) => return inspect::status(&options, &common.pin_path),
        Command::Agent => agent::run(effective.configuration, level),
        Command::Standalone => standalone::run(effective.configuration, level),
        Command::Top(options) => inspect::top(&options, &common.pin_path),
        Command::Services(options) => inspect::services(&options, &common.pin_path),
        Command::Frontends(options) => inspect::frontends(&options, &common.pin_path),
        Command::Backends(options) => inspect::backends(&options, &common.pin_path),
        Command::Flows(options) => inspect::flows(&options, &common.pin_path),
        Command::Maglev(options) => inspect::maglev(&options, &common.pin_path),
        Command::Counters(options) => inspect::counters(&options, &common.pin_path),
        Command::Trace(options) => trace::trace(&options, &common.pin_path),
        Command::Drops(options) => drops::drops(&options, &common.pin_path),
        Command::Check(options) => check::check(&options, &effective),
        Command::Cleanup(options) => cleanup::cleanup(&options, &common.pin_path),
        Command::Config(options) => config::show(&options, &effective),
        Command::Man { directory } => man::write(self::command(), &directory),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut self::command(), "millrace", &mut io::stdout());
            Ok(())
        }
    };
    done.map(|()| ExitCode::SUCCESS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
