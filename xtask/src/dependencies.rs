//! Checks dependencies against `deny.toml`: the part of `cargo deny check` that needs neither that
//! program nor the network, so it can run with every change.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::process::{cargo, read_output, repository_root};

struct Rules {
    /// SPDX expressions, with their exceptions.
    licenses: BTreeSet<String>,
    /// Crates that may have other licenses.
    exceptions: Vec<(String, BTreeSet<String>)>,
    banned: BTreeSet<String>,
    registries: BTreeSet<String>,
}

/// Reports all violations in one error.
pub fn check_dependencies() -> Result<()> {
    let path = repository_root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rules = Rules::parse(&text).with_context(|| path.display().to_string())?;
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version", "1", "--locked", "--all-features"]);
    let metadata: Value = serde_json::from_str(&read_output(&mut metadata)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let wrong: Vec<String> =
        packages.iter().filter_map(|package| rules.check_package(package)).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("these break the rules of deny.toml:\n  {}", wrong.join("\n  "))
}

impl Rules {
    fn parse(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse()?;
        let at = |section: &str, key: &str| {
            let value = table.get(section).and_then(|section| section.get(key));
            value.and_then(toml::Value::as_array).with_context(|| format!("no {section}.{key}"))
        };
        let exceptions = at("licenses", "exceptions")?.iter().map(|exception| {
            let allowed = exception.get("allow").and_then(toml::Value::as_array);
            Some((name(exception)?, texts(allowed?)))
        });
        Ok(Self {
            licenses: texts(at("licenses", "allow")?),
            exceptions: exceptions.collect::<Option<_>>().context("licenses.exceptions")?,
            banned: at("bans", "deny")?.iter().filter_map(name).collect(),
            registries: texts(at("sources", "allow-registry")?),
        })
    }

    /// What is wrong with a package of `cargo metadata`. Packages of the workspace have no source
    /// and are not checked.
    fn check_package(&self, package: &Value) -> Option<String> {
        let text = |field: &str| package[field].as_str();
        let (source, name) = (text("source")?, text("name").unwrap_or_default());
        let registry = source.strip_prefix("registry+").unwrap_or(source);
        if !self.registries.contains(registry) {
            return Some(format!("{name} is from {source}"));
        }
        if self.banned.contains(name) {
            return Some(format!("{name} is banned"));
        }
        let license = text("license").unwrap_or("no license that it names");
        (!self.may(name, license)).then(|| format!("{name} has {license}"))
    }

    fn may(&self, name: &str, license: &str) -> bool {
        let Ok(expression) = Expression::parse_mode(license, ParseMode::LAX) else { return false };
        let exception = self.exceptions.iter().find(|(of, _)| of == name);
        expression.evaluate(|requirement| {
            let license = requirement.to_string();
            self.licenses.contains(&license)
                || exception.is_some_and(|(_, allowed)| allowed.contains(&license))
        })
    }
}

fn name(table: &toml::Value) -> Option<String> {
    table.get("name").and_then(toml::Value::as_str).map(str::to_owned)
}

fn texts(values: &[toml::Value]) -> BTreeSet<String> {
    values.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const REGISTRY: &str = "registry+https://example.org/index";

    fn check_license(name: &str, license: &str, source: &str) -> Option<String> {
        let rules = Rules::parse(
            "[licenses]\nallow = ['MIT', 'Apache-2.0 WITH LLVM-exception']\n\
             exceptions = [{ name = 'roots', allow = ['CDLA-Permissive-2.0'] }]\n\
             [bans]\ndeny = [{ name = 'openssl-sys' }]\n\
             [sources]\nallow-registry = ['https://example.org/index']\n",
        );
        rules.unwrap().check_package(&json!({"name": name, "license": license, "source": source}))
    }

    #[test]
    fn one_allowed_alternative_is_enough() {
        for license in ["MIT", "GPL-3.0-only OR MIT", "MIT/GPL-2.0", "MIT AND (MIT OR ISC)"] {
            assert_eq!(check_license("a", license, REGISTRY), None, "{license}");
        }
        assert_eq!(check_license("a", "Apache-2.0 WITH LLVM-exception", REGISTRY), None);
        assert_eq!(check_license("roots", "CDLA-Permissive-2.0", REGISTRY), None);
    }

    #[test]
    fn each_violated_rule_is_named() {
        for (name, license, source, wrong) in [
            ("a", "GPL-3.0-only", REGISTRY, "a has GPL-3.0-only"),
            ("a", "MIT AND ISC", REGISTRY, "a has MIT AND ISC"),
            ("a", "Apache-2.0", REGISTRY, "a has Apache-2.0"),
            ("a", "whatever", REGISTRY, "a has whatever"),
            ("a", "CDLA-Permissive-2.0", REGISTRY, "a has CDLA-Permissive-2.0"),
            ("openssl-sys", "MIT", REGISTRY, "openssl-sys is banned"),
            ("a", "MIT", "git+https://example.org/a", "a is from git+https://example.org/a"),
        ] {
            assert_eq!(check_license(name, license, source).as_deref(), Some(wrong));
        }
        let none = Rules::parse("[licenses]\nallow = []\n");
        assert!(none.is_err_and(|error| error.to_string().contains("licenses.exceptions")));
    }
}
