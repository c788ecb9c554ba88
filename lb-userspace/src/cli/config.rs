//! `millrace config`: the settings in effect, and the source of each.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::output::{self, Row};
use crate::config::{Effective, EffectiveSetting};

#[derive(Debug, Args)]
pub struct ConfigOptions {
    /// Only validate the settings; exits with 1 if they are invalid
    #[arg(long)]
    check: bool,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: ConfigFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ConfigFormat {
    #[default]
    Table,
    /// Configuration file, for --config
    Yaml,
    Json,
}

/// Errors were reported before this is called.
pub(crate) fn show_config(options: &ConfigOptions, effective: &Effective) -> Result<()> {
    let text = if options.check {
        "the configuration is valid\n".to_owned()
    } else {
        let rows: Vec<SettingRow> = effective.settings.iter().map(SettingRow::from).collect();
        match options.output {
            ConfigFormat::Table => return output::print_rows(&rows, output::OutputFormat::Table),
            ConfigFormat::Json => return output::print_rows(&rows, output::OutputFormat::Json),
            ConfigFormat::Yaml => yaml(&effective.settings)?,
        }
    };
    output::write_text(&text)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SettingRow {
    name: String,
    value: serde_json::Value,
    source: String,
}

impl From<&EffectiveSetting> for SettingRow {
    fn from(setting: &EffectiveSetting) -> Self {
        let name = setting.name.clone();
        Self { name, value: value(setting), source: setting.source.to_string() }
    }
}

impl Row for SettingRow {
    const PLURAL: &'static str = "settings";
    const HEADERS: &'static [&'static str] = &["SETTING", "VALUE", "FROM"];
    const NARROW: usize = 3;

    fn cells(&self) -> Vec<String> {
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let value = match &self.value {
            serde_json::Value::Array(values) => {
                values.iter().map(text).collect::<Vec<_>>().join(",")
            }
            serde_json::Value::Null => String::new(),
            value => text(value),
        };
        vec![self.name.clone(), value, self.source.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// The value as in a file.
fn value(setting: &EffectiveSetting) -> serde_json::Value {
    let typed = |text: &String| {
        let truth = text.parse().ok().map(serde_json::Value::Bool);
        let number = || text.parse::<u64>().ok().map(serde_json::Value::from);
        truth.or_else(number).unwrap_or_else(|| text.as_str().into())
    };
    match (setting.takes_many, setting.values.as_slice()) {
        (true, values) => values.iter().map(typed).collect(),
        (false, values) => values.first().map_or(serde_json::Value::Null, typed),
    }
}

fn yaml(settings: &[EffectiveSetting]) -> Result<String> {
    let mut text = String::new();
    for setting in settings {
        let value = value(setting);
        // Settings without a value are comments: `key:` would look incomplete.
        let mark = if value.is_null() { "# " } else { "" };
        let value = if value.is_null() { "".to_owned() } else { " ".to_owned() + &flow(&value)? };
        text += &format!("# {}\n{mark}{}:{value}\n", setting.source, setting.name);
    }
    Ok(text)
}

/// Formats a value on one line, with quotes where they are needed.
fn flow(value: &serde_json::Value) -> Result<String> {
    Ok(match value {
        serde_json::Value::Array(values) => {
            // JSON is valid YAML for any text.
            serde_json::to_string(values)?
        }
        value => serde_norway::to_string(value)?.trim_end().to_owned(),
    })
}
