//! The configuration from flags, environment and file. A setting is a flag; its name is the key in
//! the file; the variable is `MILLRACE_` and the name in capitals. Flags take precedence over
//! variables, these over the file, and that over defaults.
//!
//! Invariant: there is no second list of settings: everything here uses the declarations of
//! `declared::Configuration`.

mod declared;
mod file;
mod ingress;
mod layers;
mod load_balancer;
mod problem;
#[cfg(test)]
mod reference;
mod tracing;
mod validate;
mod values;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command};

pub use declared::{
    AgentSettings, Common, Configuration, LogFormat, OriginSettings, StandaloneSettings,
};
pub use ingress::IngressSettings;
pub use layers::{Effective, EffectiveSetting, SettingSource, resolve_settings};
pub use load_balancer::{ControllerSettings, LoadBalancerSettings};
pub use problem::{Problem, Problems};
pub use tracing::{TracedIngresses, TracingSettings};

/// The flag with the file's path, which can't be set in the file.
pub const FILE: &str = "config";

/// The settings of a part of the configuration.
pub fn settings_of<T: Args>() -> Vec<Arg> {
    T::augment_args(Command::new("settings")).get_arguments().cloned().collect()
}

/// Adds settings to a command without parsers: `resolve_settings` reports all errors together.
pub fn add_settings(command: Command, settings: &[Arg]) -> Command {
    settings.iter().fold(command, |command, setting| {
        let values = setting.get_possible_values();
        let setting = setting.clone().env(variable(setting)).hide_env_values(true);
        // Numbered from the beginning in each part, they would be shown mixed.
        command.arg(setting.value_parser(Unchecked(values)).display_order(None))
    })
}

/// All settings, as their flags.
fn all() -> Vec<Arg> {
    settings_of::<Configuration>()
}

fn name(setting: &Arg) -> &str {
    setting.get_long().expect("every setting is a flag with a long name")
}

fn variable(setting: &Arg) -> String {
    format!("MILLRACE_{}", name(setting).to_uppercase().replace('-', "_"))
}

/// Accepts any text; help shows the possible values.
#[derive(Clone)]
struct Unchecked(Vec<PossibleValue>);

impl TypedValueParser for Unchecked {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        value.to_str().map(str::to_owned).ok_or_else(|| {
            let mut error = clap::Error::new(ErrorKind::InvalidUtf8).with_cmd(command);
            if let Some(argument) = argument {
                let argument = ContextValue::String(argument.to_string());
                error.insert(ContextKind::InvalidArg, argument);
            }
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = self.0.iter().cloned();
        if self.0.is_empty() { None } else { Some(Box::new(values)) }
    }
}
