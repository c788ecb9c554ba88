//! Each setting reaches every process whose command has it: what that is started with differs from what it is started with
//! by default.

#[path = "../../tests/settings/mod.rs"]
mod settings;

use clap::{Arg, Command};
use lb_agent::ObjectSource;
use lb_kernel::privileges::Privileges;
use lb_source::cluster::Access;

use super::agent::{agent_options, agent_origin};
use super::controller::{controller_options, controller_start};
use super::ingress::ingress_options;
use super::standalone::{child_arguments, standalone_start};
use super::{log, settings_of_commands};
use crate::config::{self, Common, Configuration, Effective};
use settings::{SETTINGS, Setting};

/// The process refuses it.
const REFUSED: (&str, &str) = ("controller", "manifests");
/// The log's writer is made from it, without options between.
const WITHOUT_OPTIONS: &str = "log-format";
/// Commands that start a process.
const PROCESSES: [&str; 4] = ["agent", "controller", "ingress", "standalone"];

/// The configuration of flags.
fn configure(flags: &[String]) -> Effective {
    let all = config::settings_of::<Configuration>();
    let command = config::add_settings(Command::new("settings").no_binary_name(true), &all)
        .mut_args(|arg| arg.env(None::<&'static str>))
        .arg(Arg::new(config::FILE).long(config::FILE));
    let matches = command.try_get_matches_from(flags).unwrap_or_else(|error| panic!("{error}"));
    config::resolve_settings(&matches, &all).unwrap_or_else(|problems| panic!("{problems}"))
}

/// What a process is started with.
fn started_with(command: &str, effective: &Effective) -> String {
    let configuration = effective.configuration.clone();
    let log = log::parse_filter(&configuration.common.log).unwrap();
    let agent = |origin, privileges| agent_options(configuration.clone(), origin, privileges);
    let options = match command {
        "agent" => {
            let origin = agent_origin(&configuration.origin);
            format!("{:?}", agent(origin, Privileges::AGENT).unwrap())
        }
        "controller" => format!("{:?}", controller_start(&configuration)),
        "ingress" => {
            let node_name = configuration.agent.node_name().unwrap();
            format!("{:?}", ingress_options(&configuration, Some(node_name)))
        }
        "standalone" => {
            let start = standalone_start(&configuration, child_arguments(effective)).unwrap();
            let access = Access::default();
            let agent =
                agent(ObjectSource::Cluster(access.clone()), Privileges::STANDALONE).unwrap();
            let controller = controller_options(&configuration.load_balancer, access, None);
            format!("{start:?}\n{agent:?}\n{controller:?}")
        }
        other => panic!("{other} starts nothing"),
    };
    format!("{log}\n{options}")
}

/// `pin-path` is of the kernel's maps, which only these have.
fn has_common(command: &str, name: &str) -> bool {
    name == "log" || (name == "pin-path" && ["agent", "standalone"].contains(&command))
}

/// The processes whose commands have the setting, and are not to refuse it.
fn processes_with(name: &str) -> Vec<&'static str> {
    let common = config::settings_of::<Common>();
    let is_among = |settings: &[Arg]| settings.iter().any(|it| it.get_long() == Some(name));
    let has = |command: &str, settings: &[Arg]| {
        let is_its = if is_among(&common) { has_common(command, name) } else { is_among(settings) };
        is_its && PROCESSES.contains(&command) && (command, name) != REFUSED
    };
    let commands = settings_of_commands().into_iter();
    commands
        .filter(|(command, settings)| has(command, settings))
        .map(|(command, _)| command)
        .collect()
}

#[test]
fn every_setting_reaches_the_processes_that_have_it() {
    let flag = |setting: &str| format!("--{setting}");
    // Without it, standalone does not use the settings of the proxy.
    let serves = [flag("serve-ingresses=true")];
    let usual = configure(&serves);
    for &Setting { name, value, needs, test } in SETTINGS {
        let base = if name == "serve-ingresses" { &[][..] } else { &serves };
        let needs = (!needs.is_empty()).then(|| flag(needs));
        let flags: Vec<String> = base.iter().cloned().chain(needs).collect();
        let without = if flags == serves { usual.clone() } else { configure(&flags) };
        let with = configure(&[flags, vec![flag(&format!("{name}={value}"))]].concat());
        let [before, after] = [&without, &with].map(|it| format!("{:?}", it.configuration));
        assert_ne!(before, after, "{name}: {value} is the default");

        let processes = processes_with(name);
        assert!(!processes.is_empty() || name == WITHOUT_OPTIONS, "{name} is of no process");
        for command in processes {
            assert_ne!(
                started_with(command, &without),
                started_with(command, &with),
                "millrace {command} is started as without {name}, whose effect {test} shows"
            );
        }
    }
    for command in PROCESSES {
        let [one, other] = [&usual, &usual].map(|it| started_with(command, it));
        assert_eq!(one, other, "{command}: nothing else differs between two starts");
    }
}
