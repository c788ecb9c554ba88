//! The command line.

mod agent;
mod check;
mod check_bgp;
mod check_pools;
mod cleanup;
mod config;
mod controller;
mod drops;
#[cfg(test)]
mod effects;
mod explain;
mod ingress;
mod ingress_child;
mod ingress_replay;
mod ingress_report;
mod inspect;
mod log;
mod man;
mod output;
mod standalone;
mod trace;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{
    self as configuration, AgentSettings, Common, ControllerSettings, Effective, IngressSettings,
    LoadBalancerSettings, OriginSettings, StandaloneSettings,
};

/// Load balancer for Kubernetes Services in eBPF
///
/// The agent writes Services and EndpointSlices to BPF maps. BPF programs on the network interfaces
/// translate packets according to the maps.
#[derive(Debug, Parser)]
#[command(name = "millrace", version = lb_process::VERSION, after_help = EXAMPLES)]
struct Millrace {
    #[command(subcommand)]
    command: Command,

    /// Configuration file in YAML; flags and environment variables take precedence over it
    ///
    /// The keys are the names of the flags, for example `max-flows: 4096`. `millrace config` lists
    /// them all.
    #[arg(long = configuration::FILE, id = configuration::FILE, global = true)]
    #[arg(value_name = "FILE", env = "MILLRACE_CONFIG", hide_env_values = true)]
    file: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Load balance the Services of the cluster in the current kubeconfig, as its node worker-1:
    millrace agent --devices eth0 --node-name worker-1

  Load balance the Services in a directory of manifests, without a cluster:
    millrace agent --manifests services/ --devices eth0

  Load balance the Services of the embedded Kubernetes API, without a cluster:
    millrace standalone --devices eth0

  Serve the Ingresses of the cluster in the current kubeconfig, as any user:
    millrace ingress --http-bind-addresses [::]:8080 --https-bind-addresses [::]:8443

  Show what is programmed, and its counters:
    millrace status
    millrace top
    millrace services
    millrace flows --service default/web -o wide
    millrace counters -o json

  Stop forwarding, and remove all programs and maps:
    millrace cleanup";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: load and attach the BPF programs, and keep the maps up to date
    Agent,
    /// Run the agent without a cluster, with an embedded Kubernetes API
    #[command(after_help = standalone::EXAMPLES)]
    Standalone(standalone::StandaloneOptions),
    /// Serve Ingresses: an HTTP proxy that needs no privileges
    ///
    /// Reads Ingresses, Services, EndpointSlices and TLS Secrets from a cluster or from manifests, and forwards
    /// requests to the endpoints. Changes end no connection.
    #[command(after_help = ingress::EXAMPLES)]
    Ingress(ingress::RunIngressOptions),
    /// Assign addresses to Services of type LoadBalancer; needs no privileges
    ///
    /// Reads Services and AddressPools (also MetalLB's IPAddressPools and L2Advertisements) from a cluster, and writes
    /// the status of Services. Of several controllers only the holder of a Lease is active. `millrace standalone` needs
    /// no controller: it assigns addresses itself.
    #[command(after_help = controller::EXAMPLES)]
    Controller,
    /// Explain why a request for an Ingress goes where it goes, without sending it
    ///
    /// Runs the same code as the proxy. Prints the rule that applies, the rules that match but do not apply, the
    /// certificate, the endpoints, and the annotations involved.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainOptions),
    /// Show the node's health: agent, interfaces, maps, problems; exits 1 if unhealthy
    #[command(after_help = inspect::STATUS)]
    Status(inspect::Status),
    /// Show packets, new connections, bytes and drops per second, live
    #[command(after_help = inspect::TOP)]
    Top(inspect::Top),
    /// List the programmed Services and their counters
    #[command(after_help = inspect::SERVICES, visible_alias = "svc")]
    Services(inspect::Named),
    /// List frontends (the addresses and ports that clients connect to) and their backends
    #[command(after_help = inspect::FRONTENDS)]
    Frontends(inspect::Named),
    /// List backends, their nodes, and whether they accept new connections
    #[command(after_help = inspect::BACKENDS)]
    Backends(inspect::Named),
    /// List announced addresses: which node announces each, and why not this one
    #[command(after_help = inspect::ANNOUNCEMENTS)]
    Announcements(inspect::Announcements),
    /// List BGP peers and their sessions; with a peer's name, its session and routes
    #[command(after_help = inspect::BGP)]
    Bgp(inspect::Bgp),
    /// List BFD sessions, which find broken paths to BGP peers
    #[command(after_help = inspect::BFD)]
    Bfd(inspect::Bfd),
    /// List flows: the connections to Services
    #[command(after_help = inspect::FLOWS)]
    Flows(inspect::Flows),
    /// Show how Maglev tables distribute connections, and how many move if a backend is removed
    #[command(after_help = inspect::MAGLEV)]
    Maglev(inspect::Maglev),
    /// Show how many packets were passed unchanged, answered or dropped, by reason
    #[command(after_help = inspect::COUNTERS)]
    Counters(inspect::Counters),
    /// Trace a packet through the data plane step by step, without sending it
    ///
    /// Uses the current maps, and prints each step and the verdict. Nothing is sent, counted or
    /// changed. No agent needs to run.
    Trace(Box<trace::TraceOptions>),
    /// Print dropped and refused packets, live
    ///
    /// The BPF programs report packets only while this command runs, at most about 1,000 per second
    /// and CPU. Packets beyond that are counted, and their number is printed to stderr.
    Drops(drops::DropsOptions),
    /// Check that this machine can run Millrace, and print how to fix problems
    ///
    /// Exits with 1 if there are errors. Takes the settings of the agent, and checks them too. While an agent runs, its
    /// BGP sessions and BFD paths are checked as well.
    Check(check::CheckOptions),
    /// Detach the programs and remove the maps; connections to Services break
    Cleanup(cleanup::CleanupOptions),
    /// Show the settings in effect, and the source of each
    Config(config::ConfigOptions),
    /// Write the manual pages to a directory
    Man {
        /// Directory for the pages, which is created if needed
        directory: PathBuf,
    },
    /// Print a shell completion script
    Completions {
        /// Shell to print the script for
        shell: clap_complete::Shell,
    },
}

/// Settings of the agent that the Ingress proxy has, too.
const INGRESS_SHARES: [&str; 2] = ["node_name", "metrics_max_objects"];

/// The commands with settings beyond the common ones.
fn settings_of_commands() -> [(&'static str, Vec<Arg>); 7] {
    let [origin, agent, standalone, ingress, load_balancer, controller] = [
        configuration::settings_of::<OriginSettings>(),
        configuration::settings_of::<AgentSettings>(),
        configuration::settings_of::<StandaloneSettings>(),
        configuration::settings_of::<IngressSettings>(),
        configuration::settings_of::<LoadBalancerSettings>(),
        configuration::settings_of::<ControllerSettings>(),
    ];
    let all = [&origin[..], &agent, &standalone, &ingress, &load_balancer, &controller].concat();
    let shared = |setting: &&Arg| INGRESS_SHARES.contains(&setting.get_id().as_str());
    let of_ingress = [ingress.clone(), agent.iter().filter(shared).cloned().collect()].concat();
    [
        ("check", all.clone()),
        ("config", all),
        ("standalone", [standalone, agent.clone(), load_balancer.clone(), ingress].concat()),
        ("controller", [origin.clone(), load_balancer.clone(), controller].concat()),
        ("explain", of_ingress.clone()),
        ("ingress", [origin.clone(), of_ingress].concat()),
        ("agent", [origin, agent, load_balancer].concat()),
    ]
}

/// The whole command line: the declarations above and the settings.
pub fn command_line() -> clap::Command {
    let common = configuration::settings_of::<Common>();
    let command = configuration::add_settings(Millrace::command(), &common);
    settings_of_commands().into_iter().fold(command, |command, (name, settings)| {
        command.mut_subcommand(name, |command| configuration::add_settings(command, &settings))
    })
}

pub fn run_command_line() -> ExitCode {
    let matches = command_line().get_matches();
    match run_command(&matches) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("millrace: {}", list_causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn run_command(matches: &clap::ArgMatches) -> Result<ExitCode> {
    let Millrace { command, .. } = Millrace::from_arg_matches(matches)?;
    let (name, arguments) = matches.subcommand().expect("clap requires a command");
    let mut added = configuration::settings_of::<Common>();
    added.extend(
        settings_of_commands().into_iter().filter(|(of, _)| *of == name).flat_map(|(_, more)| more),
    );
    let effective = match (configuration::resolve_settings(arguments, &added), &command) {
        (Err(problems), Command::Check(options)) => {
            return check::check_without(options, &problems).map(|()| ExitCode::SUCCESS);
        }
        (resolved, _) => resolved?,
    };
    let level = log::start_log(&effective.configuration.common, arguments.clone(), added)?;
    dispatch_command(command, effective, level)
}

fn dispatch_command(command: Command, effective: Effective, level: log::Level) -> Result<ExitCode> {
    let common = effective.configuration.common.clone();
    let done = match command {
        Command::Status(options) => return inspect::show_status(&options, &common.pin_path),
        Command::Agent => agent::run_agent(effective.configuration, level),
        Command::Standalone(options) => {
            let child = standalone::child_arguments(&effective);
            standalone::run_standalone(options, effective.configuration, child, level)
        }
        Command::Ingress(options) => ingress::run_ingress(&options, effective.configuration, level),
        Command::Controller => controller::run_controller(&effective.configuration, level),
        Command::Explain(options) => explain::explain_request(&options, &effective.configuration),
        Command::Top(options) => inspect::show_top(&options, &common.pin_path),
        Command::Services(options) => inspect::show_services(&options, &common.pin_path),
        Command::Frontends(options) => inspect::show_frontends(&options, &common.pin_path),
        Command::Backends(options) => inspect::show_backends(&options, &common.pin_path),
        Command::Announcements(options) => inspect::show_announcements(&options, &common.pin_path),
        Command::Bgp(options) => inspect::show_bgp(&options, &common.pin_path),
        Command::Bfd(options) => inspect::show_bfd(&options, &common.pin_path),
        Command::Flows(options) => inspect::show_flows(&options, &common.pin_path),
        Command::Maglev(options) => inspect::show_maglev(&options, &common.pin_path),
        Command::Counters(options) => inspect::show_counters(&options, &common.pin_path),
        Command::Trace(options) => trace::trace_packets(&options, &common.pin_path),
        Command::Drops(options) => drops::show_drops(&options, &common.pin_path),
        Command::Check(options) => check::check_machine(&options, &effective),
        Command::Cleanup(options) => cleanup::run_cleanup(&options, &common.pin_path),
        Command::Config(options) => config::show_config(&options, &effective),
        Command::Man { directory } => man::write_man_pages(self::command_line(), &directory),
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut self::command_line(),
                "millrace",
                &mut io::stdout(),
            );
            Ok(())
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The causes of an error, one per line, the outermost first.
fn list_causes(error: &anyhow::Error) -> String {
    let mut lines = vec![error.to_string()];
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Skip causes that the message contains already.
        if !lines.iter().any(|line| line.contains(&cause)) {
            lines.push(format!("  cause: {cause}"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command_line().debug_assert();
    }
}
