//! The dashboard and the alerts use existing metrics. In `tests/tests/peers/monitoring.rs` Prometheus
//! evaluates them with a real agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::deploy;

const FAMILIES: [&str; 4] = ["kubeproxy_", "millrace_", "process_", "rest_client_"];

/// The types of metrics, by name.
fn documented() -> BTreeMap<String, String> {
    let document = include_str!("../../../docs/metrics.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        (name.to_owned(), rest.split(' ').next().unwrap().to_owned())
    })
    .collect()
}

/// Panics if an expression contains an unknown metric.
fn check(expression: &str, documented: &BTreeMap<String, String>) -> usize {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| FAMILIES.iter().any(|family| word.starts_with(family)));
    let mut found = 0;
    for name in names {
        let parts = ["_bucket", "_sum", "_count"];
        let histogram = parts.iter().find_map(|part| name.strip_suffix(part));
        let kind = match histogram {
            Some(histogram) => documented.get(histogram).filter(|kind| *kind == "histogram"),
            None => documented.get(name).filter(|kind| *kind != "histogram"),
        };
        assert!(kind.is_some(), "{name} is not in docs/metrics.md: {expression}");
        found += 1;
    }
    found
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer}: {value}"))
}

fn yaml(path: &str) -> Value {
    serde_norway::from_str(&fs::read_to_string(deploy(path)).unwrap()).unwrap()
}

#[test]
fn alerts_use_existing_metrics_and_have_a_fix() {
    let (rules, tests) = (yaml("prometheus/rules.yaml"), yaml("prometheus/rules-test.yaml"));
    let tests = tests.to_string();
    let documented = documented();
    let mut names = BTreeSet::new();
    let groups = rules["groups"].as_array().unwrap().iter();
    for rule in groups.flat_map(|group| group["rules"].as_array().unwrap()) {
        let name = text(rule, "/alert");
        let expression = text(rule, "/expr");
        let found = check(expression, &documented);
        assert!(found > 0 || expression.starts_with("up{"), "{name}: {expression}");
        let severity = text(rule, "/labels/severity");
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        assert!(!text(rule, "/annotations/summary").is_empty(), "{name}");
        assert!(text(rule, "/annotations/runbook").len() > 80, "{name}: what is one to do?");
        assert!(names.insert(name), "{name} is there twice");
        assert!(tests.contains(&format!("\\\"{name}\\\"")), "{name} is not tested by promtool");
    }
    assert!(names.len() > 10);
}

#[test]
fn the_dashboards_ask_for_what_there_is() {
    for (name, least) in [("millrace", 40), ("millrace-ingress", 12), ("millrace-addresses", 10)] {
        let asked = ask(name);
        assert!(asked > least, "only {asked} metrics are asked for by {name}");
    }
}

/// Panics if a panel of the dashboard has an unknown metric, or covers another one.
fn ask(name: &str) -> usize {
    let dashboard = fs::read_to_string(deploy("grafana").join(format!("{name}.json"))).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let documented = documented();
    let mut asked = 0;
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = text(panel, "/title");
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's, too");
        let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{title} covers another panel");
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            asked += check(text(target, "/expr"), &documented);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if text(variable, "/type") == "query" {
            check(text(variable, "/query/query"), &documented);
        }
    }
    asked
}
