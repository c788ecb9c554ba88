//! `docs/configuration.md`, generated from the settings, with the texts of `--help`.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Args, Command};

use super::declared::{AgentSettings, Common, OriginSettings, StandaloneSettings};
use super::ingress::IngressSettings;
use super::load_balancer::{ControllerSettings, LoadBalancerSettings};
use super::{file, name};

const HEAD: &str = "\
# Configuration

<!-- Generated from the code: UPDATE_EXPECT=1 cargo test -p lb-userspace --lib config::reference -->

Each setting has a flag (`--max-flows 4096`), an environment variable (`MILLRACE_MAX_FLOWS=4096`: the name in capitals) and a key in the
YAML file that `--config` or `MILLRACE_CONFIG` names (`max-flows: 4096`). A flag takes precedence over a variable, a variable over the
file, and the file over the default.

Most installations need these, if any:

| setting | for |
| --- | --- |
| [`api-servers`](#api-servers) | the URL of the API server; the chart finds that of kubeadm |
| [`devices`](#devices), [`xdp-mode`](#xdp-mode) | other interfaces than Millrace finds; a driver whose XDP is broken |
| [`nodeport-addresses`](#nodeport-addresses) | NodePorts on some addresses only |
| [`load-balancer-addresses`](#load-balancer-addresses) | a pool of addresses without an object |
| [`max-flows`](#max-flows) | more connections than the node's memory suggests |
| [`log`](#log) | `debug`, or `info,lb_agent=debug` |
| [`watch-namespace`](#watch-namespace), [`default-certificate`](#default-certificate), [`trusted-proxies`](#trusted-proxies), [`max-body-size`](#max-body-size) | the Ingress proxy |

- An empty variable counts as not set. Several values are a list in the file, and separated by commas elsewhere; a flag can be repeated.
- Durations have units (`24h`, `1m30s`, `100ms`), or are numbers of the unit that the text names.
- All commands can share one file: each uses the settings that it has. Unknown keys are errors.

`millrace config`, with the same flags, variables and file, prints the settings in effect and the source of each; `-o yaml` prints a file
for `--config`. `--check` only validates: it exits with 1, and names each error with its file and line, variable or flag.

";

fn page() -> String {
    let mut text = HEAD.to_owned();
    section::<Common>(&mut text, "All commands", "");
    section::<AgentSettings>(
        &mut text,
        "The agent",
        "`millrace agent`, `millrace standalone`. `node-name` and `metrics-max-objects` also for `millrace ingress`.",
    );
    section::<LoadBalancerSettings>(
        &mut text,
        "Addresses of load balancers",
        "`millrace agent`, `millrace standalone`, `millrace controller`.",
    );
    section::<ControllerSettings>(&mut text, "The controller", "`millrace controller`.");
    section::<OriginSettings>(
        &mut text,
        "Source of objects",
        "`millrace agent`, `millrace ingress`, `millrace controller`.",
    );
    section::<StandaloneSettings>(&mut text, "The embedded API", "`millrace standalone`.");
    let of_ingress = "`millrace ingress`, and `millrace standalone` with `serve-ingresses`.";
    section::<IngressSettings>(&mut text, "The Ingress proxy", of_ingress);
    text.trim_end().to_owned() + "\n"
}

fn section<T: Args>(text: &mut String, title: &str, commands: &str) {
    let command = T::augment_args(Command::new("settings"));
    let _ = write!(text, "## {title}\n\n");
    if !commands.is_empty() {
        let _ = write!(text, "{commands}\n\n");
    }
    for setting in command.get_arguments() {
        describe(text, setting);
    }
}

fn describe(text: &mut String, setting: &Arg) {
    let value = setting.get_value_names().map_or(String::new(), |names| names.join(" "));
    let _ = write!(text, "### {}\n\n", name(setting));
    let help = setting.get_long_help().or(setting.get_help());
    let help = escaped(&help.map(|help| help.to_string()).unwrap_or_default());
    let (line, details) = help.split_once("\n\n").unwrap_or((&help, ""));
    let _ = write!(text, "{line}.\n\n");
    if !details.is_empty() {
        let _ = write!(text, "{details}\n\n");
    }
    let many = if file::takes_many(setting) { ", any number" } else { "" };
    let _ = write!(text, "`--{} {value}`{many}", name(setting));
    let defaults: Vec<String> = setting
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if !defaults.is_empty() {
        let _ = write!(text, "; default {}", defaults.join(", "));
    }
    text.push('\n');
    if setting.get_possible_values().iter().any(|value| value.get_help().is_some()) {
        text.push('\n');
    }
    for value in setting.get_possible_values() {
        if let Some(help) = value.get_help() {
            let _ = writeln!(text, "- `{}`: {}", value.get_name(), escaped(&help.to_string()));
        }
    }
    text.push('\n');
}

/// Escapes characters that are special in Markdown.
fn escaped(text: &str) -> String {
    text.replace('*', "\\*").replace('[', "\\[").replace('<', "\\<")
}

#[test]
fn the_reference_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &page).expect("the reference can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is stale; regenerate it:\n\
         UPDATE_EXPECT=1 cargo test -p lb-userspace --lib config::reference"
    );
}
