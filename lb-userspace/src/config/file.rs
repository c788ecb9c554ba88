//! The configuration file: a YAML mapping of settings to values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Arg;
use serde_norway::Value;

use super::problem::Problem;
use super::{FILE, all, name};

/// The settings of a file, by name.
#[derive(Debug, Default)]
pub struct File {
    pub values: BTreeMap<String, Given>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Given {
    pub values: Vec<String>,
    pub path: PathBuf,
    /// Counted from 1; `None` if several keys are on one line.
    pub line: Option<usize>,
}

pub fn read_file(path: &Path, problems: &mut Vec<Problem>) -> File {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text, problems),
        Err(error) => {
            problems.push(unusable(path, format!("cannot be read: {error}")));
            File::default()
        }
    }
}

fn unusable(path: &Path, reason: String) -> Problem {
    let given = Some((path.display().to_string(), format!("--{FILE}")));
    Problem { setting: FILE.to_owned(), given, reason }
}

fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> File {
    let entries = match serde_norway::from_str(text) {
        Ok(Value::Mapping(entries)) => entries,
        // An empty file.
        Ok(Value::Null) => return File::default(),
        Ok(_) => {
            let reason =
                "is not a mapping of settings to values, such as `device: eth0`".to_owned();
            problems.push(unusable(path, reason));
            return File::default();
        }
        Err(error) => {
            problems.push(unusable(path, format!("is not valid YAML: {error}")));
            return File::default();
        }
    };
    let settings = all();
    let mut file = File::default();
    for (key, value) in entries {
        let Some(key) = scalar(&key) else {
            problems.push(unusable(path, format!("has a key that is not a string: {key:?}")));
            continue;
        };
        let line = line_of(text, &key);
        let mut refuse = |value: String, reason: String| {
            let given = Some((value, describe_location(path, line)));
            problems.push(Problem { setting: key.clone(), given, reason });
        };
        let shown = serde_norway::to_string(&value).unwrap_or_default().trim().to_owned();
        let Some(setting) = settings.iter().find(|setting| name(setting) == key) else {
            refuse(shown, unknown(&key, &settings));
            continue;
        };
        match values(&value, setting) {
            // A key without a value is ignored.
            Ok(_) if value.is_null() => {}
            Ok(values) if values.is_empty() && !setting.get_default_values().is_empty() => {
                refuse(shown, "needs at least one value".to_owned());
            }
            Ok(values) => {
                let given = Given { values, path: path.to_owned(), line };
                file.values.insert(key, given);
            }
            Err(reason) => refuse(shown, reason.to_owned()),
        }
    }
    file
}

pub fn describe_location(path: &Path, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("{}:{line}", path.display()),
        None => path.display().to_string(),
    }
}

fn values(value: &Value, setting: &Arg) -> Result<Vec<String>, &'static str> {
    const NESTED: &str = "must be a string, number or boolean";
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Sequence(values) if takes_many(setting) => {
            values.iter().map(|value| scalar(value).ok_or(NESTED)).collect()
        }
        Value::Sequence(_) => Err("takes one value, not a list"),
        value => scalar(value).map(|value| vec![value]).ok_or(NESTED),
    }
}

pub(crate) fn takes_many(setting: &Arg) -> bool {
    matches!(setting.get_action(), clap::ArgAction::Append)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn unknown(key: &str, settings: &[Arg]) -> String {
    if key == FILE {
        return "not allowed in a configuration file".to_owned();
    }
    if let Some(setting) = settings.iter().find(|setting| has_alias(setting, key)) {
        return format!("unknown setting; it is named {} now", name(setting));
    }
    if key == "no-status" {
        return "unknown setting; it is update-status: false now".to_owned();
    }
    // Similarity from which a name is suggested.
    const SIMILAR: f64 = 0.8;
    let key = key.replace('_', "-").to_lowercase();
    let nearest = settings
        .iter()
        .map(|setting| (strsim::jaro_winkler(&key, name(setting)), name(setting)))
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    match nearest {
        Some((similarity, name)) if similarity > SIMILAR => {
            format!("unknown setting; did you mean {name}?")
        }
        _ => "unknown setting; `millrace config` lists all".to_owned(),
    }
}

/// Whether it is the name of the flag in earlier builds, which command lines may still use.
fn has_alias(setting: &Arg, name: &str) -> bool {
    setting.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
}

/// Finds the line of a key by its beginning, because the parser reports no positions.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let starts = |line: &str| {
        let line = line.strip_prefix(['"', '\'']).unwrap_or(line);
        let rest = line.strip_prefix(key)?.trim_start_matches(['"', '\'', ' ']);
        rest.starts_with(':').then_some(())
    };
    text.lines().position(|line| starts(line).is_some()).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (File, Vec<String>) {
        let mut problems = Vec::new();
        let file = parse(Path::new("m.yaml"), text, &mut problems);
        (file, problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn scalars_and_lists_are_values() {
        let text = "# ours\nmax-flows: 4096\ndevices: [eth0, 'eth*']\n\"cleanup-on-exit\": true\n";
        let (file, problems) = parsed(text);
        assert_eq!(problems, [""; 0]);
        let values = |name: &str| (file.values[name].values.join(" "), file.values[name].line);
        assert_eq!(values("max-flows"), ("4096".to_owned(), Some(2)));
        assert_eq!(values("devices"), ("eth0 eth*".to_owned(), Some(3)));
        assert_eq!(values("cleanup-on-exit"), ("true".to_owned(), Some(4)));
    }

    #[test]
    fn a_key_without_a_value_is_not_there_and_an_empty_list_is() {
        let (file, problems) = parsed("node-name:\nnodeport-addresses: []\n");
        assert_eq!(problems, [""; 0]);
        assert_eq!(file.values.keys().collect::<Vec<_>>(), ["nodeport-addresses"]);
    }

    #[test]
    fn whatever_is_no_setting_is_refused_with_what_may_be_meant() {
        let (file, problems) = parsed(
            "devise: eth0\nmax_flows: 8\nquux: {a: 1}\nlog: [info]\ncontext: {a: 1}\nconfig: a\ndevices: []\n",
        );
        assert!(file.values.is_empty());
        assert_eq!(
            problems,
            [
                "devise: \"eth0\" (m.yaml:1): unknown setting; did you mean devices?",
                "max_flows: \"8\" (m.yaml:2): unknown setting; did you mean max-flows?",
                "quux: \"a: 1\" (m.yaml:3): unknown setting; `millrace config` lists all",
                "log: \"- info\" (m.yaml:4): takes one value, not a list",
                "context: \"a: 1\" (m.yaml:5): must be a string, number or boolean",
                "config: \"a\" (m.yaml:6): not allowed in a configuration file",
                "devices: \"[]\" (m.yaml:7): needs at least one value",
            ]
        );
    }

    #[test]
    fn a_former_name_is_refused_with_the_new_one() {
        for (text, expected) in [
            ("api-server: https://a\n", "it is named api-servers now"),
            ("share-hosts: true\n", "it is named allow-shared-hosts now"),
            ("no-status: true\n", "it is update-status: false now"),
        ] {
            let (file, problems) = parsed(text);
            assert!(file.values.is_empty() && problems[0].ends_with(expected), "{problems:?}");
        }
    }

    #[test]
    fn what_is_no_mapping_is_refused() {
        assert!(parsed("").1.is_empty());
        for (text, reason) in [
            ("- device", "is not a mapping"),
            ("a: [", "is not valid YAML"),
            ("log: info\nlog: debug\n", "duplicate entry"),
        ] {
            let (_, problems) = parsed(text);
            assert!(problems.len() == 1 && problems[0].contains(reason), "{text}: {problems:?}");
        }
    }
}
