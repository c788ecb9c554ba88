//! `docs/configuration.md`, made from the settings: the text about each is that of `--help`.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Args, Command};

use super::declared::{AgentSettings, Common, OriginSettings, StandaloneSettings};
use super::{file, name, variable};

const HEAD: &str = "\
# Configuration

<!-- Made from the code: UPDATE_EXPECT=1 cargo test -p lb-userspace --lib config::reference -->

A setting is given by its flag (`--max-flows 4096`), by its variable (`MILLRACE_MAX_FLOWS=4096`), or in a
file in YAML (`max-flows: 4096`) that `--config` or `MILLRACE_CONFIG` names. A flag goes before a variable,
that before the file, and that before the default. A variable that is empty is not set. Settings that take
many are lists in the file, and are separated by commas, or repeated, elsewhere. One file serves all
commands: each takes from it what concerns it.

All that is wrong is told at once, with where it stands; a key that is none is refused.

- `millrace config` shows the settings in effect, and where each comes from; it takes the same flags,
  variables and file. `-o yaml` prints a file for `--config`, `-o json` is for programs.
- `millrace config --check` only says whether all is right, and fails if it is not.
- The name of the node is that of `$NODE_NAME` where no setting gives one, as manifests often set it.

";

fn page() -> String {
    let mut text = HEAD.to_owned();
    section::<Common>(&mut text, "All commands", "");
    section::<AgentSettings>(&mut text, "The agent", "`millrace agent`, `millrace standalone`.");
    section::<OriginSettings>(&mut text, "Where Services come from", "`millrace agent`.");
    section::<StandaloneSettings>(&mut text, "The embedded API", "`millrace standalone`.");
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
    let help = setting.get_help().map(|help| help.to_string()).unwrap_or_default();
    let _ = write!(text, "{}.\n\n", escaped(&help));
    let many = if file::takes_many(setting) { ", any number" } else { "" };
    let _ = writeln!(text, "- flag: `--{} {value}`{many}", name(setting));
    let _ = writeln!(text, "- variable: `{}`", variable(setting));
    let defaults: Vec<String> = setting
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if !defaults.is_empty() {
        let _ = writeln!(text, "- default: {}", defaults.join(", "));
    }
    for value in setting.get_possible_values() {
        if let Some(help) = value.get_help() {
            let _ = writeln!(text, "- `{}`: {}", value.get_name(), escaped(&help.to_string()));
        }
    }
    text.push('\n');
}

/// What Markdown would take for its own.
fn escaped(text: &str) -> String {
    text.replace('*', "\\*").replace('[', "\\[").replace('<', "\\<")
}

#[test]
fn the_reference_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &page).expect("the reference can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is stale; make it anew:\n\
         UPDATE_EXPECT=1 cargo test -p lb-userspace --lib config::reference"
    );
}
