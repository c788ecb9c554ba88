//! `millrace config`: every setting by flag, variable and file. And every setting has a test.

mod settings;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use settings::{SETTINGS, Setting};

/// Manifests and a cluster exclude each other, and so do addresses and a Service for the status.
const OF_A_CLUSTER: [&str; 4] = ["kubeconfig", "context", "api-servers", "publish-service"];
/// What these exclude.
const OF_MANIFESTS: [&str; 2] = ["manifests", "status-addresses"];

fn millrace(arguments: &[String], variables: &[(String, String)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace"))
        .env_clear()
        .envs(variables.iter().cloned())
        .args(arguments)
        .output()
        .expect("millrace can be run")
}

/// Each setting's value and source.
fn effective(
    arguments: &[String],
    variables: &[(String, String)],
) -> BTreeMap<String, [String; 2]> {
    let fixed = ["config", "-o", "json"].map(str::to_owned);
    let output = millrace(&[&fixed[..], arguments].concat(), variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let rows = rows.iter().map(|row| {
        let value = match &row["value"] {
            Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
            value => text(value),
        };
        (text(&row["name"]), [value, text(&row["source"])])
    });
    rows.collect()
}

/// The settings for manifests, and those for a cluster.
fn halves() -> [Vec<(&'static str, &'static str)>; 2] {
    let half = |left_out: &[&str]| {
        let values = SETTINGS.iter().map(|setting| (setting.name, setting.value));
        values.filter(|(name, _)| !left_out.contains(name)).collect()
    };
    [half(&OF_A_CLUSTER), half(&OF_MANIFESTS)]
}

fn assert_given(found: &BTreeMap<String, [String; 2]>, given: &[(&str, &str)], source: &str) {
    for (name, value) in given {
        let [found, from] = &found[*name];
        assert_eq!(found, value, "{name}");
        assert!(from.contains(source), "{name} comes from {from}");
    }
}

#[test]
fn every_setting_has_its_flag_its_variable_and_its_key() {
    let names: Vec<String> = effective(&[], &[]).into_keys().collect();
    let mut listed: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
    listed.sort_unstable();
    assert_eq!(names, listed, "SETTINGS is the list of all");

    let directory = tempfile::tempdir().expect("temporary files can be made");
    for half in halves() {
        let flags: Vec<String> =
            half.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        assert_given(&effective(&flags, &[]), &half, "flag");

        let variable = |name: &str| format!("MILLRACE_{}", name.to_uppercase().replace('-', "_"));
        let variables: Vec<(String, String)> =
            half.iter().map(|(name, value)| (variable(name), (*value).to_owned())).collect();
        assert_given(&effective(&[], &variables), &half, "$MILLRACE_");

        // The file that it prints.
        let printed =
            millrace(&[&["config", "-o", "yaml"].map(str::to_owned)[..], &flags].concat(), &[]);
        let path = directory.path().join("millrace.yaml");
        fs::write(&path, printed.stdout).expect("the file can be written");
        let file = ["--config".to_owned(), path.display().to_string()];
        assert_given(&effective(&file, &[]), &half, "millrace.yaml:");
    }
}

#[test]
fn every_setting_has_a_test_of_its_effect() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let missing = SETTINGS.iter().filter(|Setting { name, test, .. }| {
        let (file, function) = test.split_once("::").unwrap_or((test, ""));
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        if function.is_empty() {
            !text.lines().any(|line| line.starts_with('#') && line.contains(name))
        } else {
            !has_test(&text, function)
        }
    });
    let missing: Vec<String> =
        missing.map(|Setting { name, test, .. }| format!("{name}: {test}")).collect();
    assert!(missing.is_empty(), "there are no such tests:\n{}", missing.join("\n"));
}

/// Whether the source of tests has one of this name.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let signatures = ["fn", "async fn"].map(|word| format!("{word} {name}("));
    let is_signature = |line: &&str| signatures.iter().any(|start| line.starts_with(start));
    let Some(at) = lines.iter().position(is_signature) else { return false };
    let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
    attributes.into_iter().any(|line| line.starts_with("#[test]") || line.contains("::test"))
}

#[test]
fn tests_are_found_by_their_attribute() {
    let source = "#[test]\nfn one() {}\n    #[tokio::test(flavor = \"a\")]\n    async fn two() {}\nfn three() {}";
    let names = ["one", "two", "three", "on"];
    assert_eq!(names.map(|name| has_test(source, name)), [true, true, false, false]);
}

#[test]
fn an_empty_variable_is_not_set_and_a_flag_goes_before_one() {
    let variables =
        [("MILLRACE_API_SERVERS", ""), ("MILLRACE_LOG", ""), ("MILLRACE_MAX_FLOWS", "64")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let found = effective(&["--max-flows=128".to_owned()], &variables);
    assert_eq!(found["api-servers"], ["", "default"]);
    assert_eq!(found["log"], ["info", "default"]);
    assert_eq!(found["max-flows"], ["128", "flag"]);
}

#[test]
fn a_wrong_configuration_fails_with_all_that_is_wrong() {
    let arguments = ["config", "--check", "--max-flows=3", "--xdp-mode=fast"].map(str::to_owned);
    let output = millrace(&arguments, &[("MILLRACE_TC_MODE".to_owned(), "slow".to_owned())]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("invalid configuration, 3 errors"), "{stderr}");
    for part in ["--max-flows", "--xdp-mode", "$MILLRACE_TC_MODE"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    // The agent reports the same errors.
    let agent = ["agent", "--max-flows=3", "--xdp-mode=fast"].map(str::to_owned);
    let refused = millrace(&agent, &[("MILLRACE_TC_MODE".to_owned(), "slow".to_owned())]);
    assert_eq!(String::from_utf8_lossy(&refused.stderr), stderr);

    // `millrace check` reports each of them, also as JSON.
    let check = ["check", "--max-flows=3", "--xdp-mode=fast", "-o", "json"].map(str::to_owned);
    let checked = millrace(&check, &[("MILLRACE_TC_MODE".to_owned(), "slow".to_owned())]);
    assert_eq!(checked.status.code(), Some(1));
    let findings: Vec<BTreeMap<String, String>> =
        serde_json::from_slice(&checked.stdout).expect("JSON");
    let wrong = findings.iter().filter(|finding| finding["check"] == "configuration");
    let wrong: Vec<&str> = wrong.map(|finding| finding["message"].as_str()).collect();
    for part in ["--max-flows", "--xdp-mode", "$MILLRACE_TC_MODE"] {
        assert!(wrong.iter().any(|message| message.contains(part)), "{part}: {wrong:?}");
    }
    assert_eq!(wrong.len(), 3);
    assert!(findings.iter().any(|finding| finding["check"] == "kernel"), "{findings:?}");

    let right = millrace(&["config", "--check"].map(str::to_owned), &[]);
    assert!(right.status.success());
}

#[test]
fn a_wrong_value_of_external_ips_starts_nothing() {
    let directory = tempfile::tempdir().expect("temporary files can be made");
    let path = directory.path().join("millrace.yaml");
    for (text, expected) in [
        ("[]", "needs at least one value"),
        ("[none, all]", "all excludes every other value"),
        ("[203.0.113.0/24, all]", "all excludes every other value"),
        ("[none, 203.0.113.0/24]", "none excludes every other value"),
        ("off", "neither all, nor none, nor a network"),
    ] {
        fs::write(&path, format!("external-ips: {text}\n")).expect("the file can be written");
        let arguments = ["agent", "--manifests", "none", "--config"].map(str::to_owned);
        let refused = millrace(&[&arguments[..], &[path.display().to_string()]].concat(), &[]);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && stderr.contains(expected), "{text}: {stderr}");
        assert!(stderr.contains("invalid configuration"), "{text}: {stderr}");
    }
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let directory = tempfile::tempdir().expect("temporary files can be made");
    let path = directory.path().join("man1");
    let output = millrace(&["man".to_owned(), path.display().to_string()], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for page in ["millrace.1", "millrace-agent.1", "millrace-config.1"] {
        let text = fs::read_to_string(path.join(page)).expect(page);
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let agent = fs::read_to_string(path.join("millrace-agent.1")).expect("it is there");
    assert!(agent.contains("MILLRACE_MAX_FLOWS"), "the page of the agent has its settings");
}
