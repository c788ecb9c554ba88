//! Layers of flags, variables, file and defaults, and the resulting configuration.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::declared::Configuration;
use super::file::{self, File};
use super::problem::{Problem, Problems};
use super::validate::find_conflicts;
use super::{FILE, all, name, variable};

/// The configuration, and the sources of its settings.
#[derive(Clone, Debug)]
pub struct Effective {
    pub configuration: Configuration,
    pub settings: Vec<EffectiveSetting>,
    pub file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    pub name: String,
    /// As they were written; empty if it is not set.
    pub values: Vec<String>,
    pub takes_many: bool,
    pub source: SettingSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    Flag,
    Variable(String),
    File(PathBuf, Option<usize>),
    Default,
}

impl Display for SettingSource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Variable(name) => write!(f, "${name}"),
            Self::File(path, line) => f.write_str(&file::describe_location(path, *line)),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Resolves the arguments of a command with some settings. The other settings have their
/// defaults, but the file may contain them.
pub fn resolve_settings(matches: &ArgMatches, added: &[Arg]) -> Result<Effective, Problems> {
    let mut problems = Vec::new();
    let path = matches.get_one::<PathBuf>(FILE).cloned();
    let file = path.as_deref().map(|path| file::read_file(path, &mut problems)).unwrap_or_default();
    let settings: Vec<(Arg, EffectiveSetting)> =
        all().into_iter().map(|arg| (arg.clone(), layered(&arg, matches, added, &file))).collect();

    // Invalid settings are left out, so that the others can be checked.
    let (right, wrong): (Vec<_>, Vec<_>) = settings
        .iter()
        .map(|(arg, setting)| (setting, check_setting(arg, setting)))
        .partition(|(_, problem)| problem.is_none());
    problems.extend(wrong.into_iter().filter_map(|(_, problem)| problem));
    let right: Vec<&EffectiveSetting> = right.into_iter().map(|(setting, _)| setting).collect();
    match typed(&right) {
        Ok(configuration) => {
            problems.extend(find_conflicts(&configuration).into_iter().map(|(name, reason)| {
                let setting = right.iter().find(|setting| setting.name == name);
                let given = setting.map(|setting| (setting.values.join(","), setting.origin()));
                Problem { setting: name.to_owned(), given, reason }
            }));
            if problems.is_empty() {
                let settings = settings.into_iter().map(|(_, setting)| setting).collect();
                return Ok(Effective { configuration, settings, file: path });
            }
        }
        Err(error) => problems.push(Problem {
            setting: "settings".to_owned(),
            given: None,
            reason: error.to_string(),
        }),
    }
    Err(Problems(problems))
}

fn layered(arg: &Arg, matches: &ArgMatches, added: &[Arg], file: &File) -> EffectiveSetting {
    let id = arg.get_id().as_str();
    // A command may have its own flag with the name of another command's setting.
    let is_known = added.iter().any(|added| added.get_id() == arg.get_id());
    let given: Vec<String> = is_known
        .then(|| matches.get_raw(id))
        .flatten()
        .map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let (values, source) = match is_known.then(|| matches.value_source(id)).flatten() {
        Some(ValueSource::CommandLine) => (given, SettingSource::Flag),
        // In manifests an empty value means: not set.
        Some(ValueSource::EnvVariable) if given.iter().any(|value| !value.is_empty()) => {
            (given, SettingSource::Variable(variable(arg)))
        }
        _ => match file.values.get(name(arg)).filter(|_| is_known) {
            Some(entry) => {
                (entry.values.clone(), SettingSource::File(entry.path.clone(), entry.line))
            }
            None => {
                let defaults = arg.get_default_values().iter();
                let defaults = defaults.map(|value| value.to_string_lossy().into_owned());
                (defaults.collect(), SettingSource::Default)
            }
        },
    };
    EffectiveSetting {
        name: name(arg).to_owned(),
        values,
        takes_many: file::takes_many(arg),
        source,
    }
}

impl EffectiveSetting {
    /// Where to fix an invalid value.
    fn origin(&self) -> String {
        match &self.source {
            SettingSource::Flag => format!("--{}", self.name),
            other => other.to_string(),
        }
    }

    /// As flags.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        self.values.iter().map(|value| format!("--{}={value}", self.name))
    }
}

/// Checks one setting; the message is its parser's.
fn check_setting(arg: &Arg, setting: &EffectiveSetting) -> Option<Problem> {
    if setting.source == SettingSource::Default {
        return None;
    }
    setting.values.iter().find_map(|value| {
        let command = Command::new("setting").no_binary_name(true).arg(arg.clone());
        let argument = format!("--{}={value}", setting.name);
        let error = command.try_get_matches_from([argument]).err()?;
        Some(Problem {
            setting: setting.name.clone(),
            given: Some((value.clone(), setting.origin())),
            reason: reason(&error),
        })
    })
}

fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) if !valid.is_empty() => {
            format!("not one of {}", valid.join(", "))
        }
        _ => "value missing".to_owned(),
    }
}

fn typed(settings: &[&EffectiveSetting]) -> Result<Configuration, clap::Error> {
    let command = Configuration::augment_args(Command::new("settings").no_binary_name(true));
    let given = settings.iter().filter(|setting| setting.source != SettingSource::Default);
    // Flags can't express an empty list; no setting with a default accepts one.
    let matches = command.try_get_matches_from(given.flat_map(|setting| setting.arguments()))?;
    Configuration::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests;
