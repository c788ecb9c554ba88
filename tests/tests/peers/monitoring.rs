//! The dashboard's queries and the alerts of `deploy/`, evaluated by Prometheus on a real agent.
//!
//! `cargo xtask prerequisites` unpacks Debian's Prometheus under `target/prometheus`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tests::worlds::one_node::{OneNode, WEB};
use tests::worlds::topology::{Process, SOON, wait_until};

/// Short intervals, so that rates are available soon.
fn configuration(rules: &Path) -> String {
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [{}]\n\
         scrape_configs:\n\
         - job_name: millrace\n\
         \x20 static_configs: [{{targets: ['127.0.0.1:10249']}}]\n",
        rules.display()
    )
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// The path of `prometheus` or `promtool`, if it is installed.
fn program(name: &str) -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/prometheus/usr/bin");
    let named = env::var_os("MILLRACE_PROMETHEUS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = named.into_iter().chain([unpacked]).chain(env::split_paths(&path));
    let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: {name} is not installed");
    }
    found
}

/// A Prometheus on the node, with a directory of its own.
struct Prometheus<'a> {
    network: &'a OneNode,
    _process: Process,
}

impl<'a> Prometheus<'a> {
    fn start(network: &'a OneNode, program: &Path) -> Result<Self> {
        let directory = network.topology.directory().join("prometheus");
        fs::create_dir_all(&directory)?;
        let file = directory.join("prometheus.yml");
        fs::write(&file, configuration(&deploy("prometheus/rules.yaml").canonicalize()?))?;
        let mut command = network.node.command(program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:9090");
        let mut process = network.node.spawn(&mut command)?;
        process.wait_for_output("Server is ready to receive web requests", SOON)?;
        Ok(Self { network, _process: process })
    }

    /// The data of an API response; an error response is an error.
    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value> {
        let mut words =
            ["curl", "--silent", "--get", "--max-time", "60"].map(str::to_owned).to_vec();
        for (name, value) in query {
            words.extend(["--data-urlencode".to_owned(), format!("{name}={value}")]);
        }
        words.push(format!("http://127.0.0.1:9090/api/v1/{path}"));
        let answer: Value = serde_json::from_str(&self.network.node.run(&words)?)?;
        ensure!(answer["status"] == "success", "{query:?}: {answer}");
        Ok(answer["data"].clone())
    }

    /// The number of series that an expression currently returns.
    fn count(&self, expression: &str) -> Result<usize> {
        let data = self.get("query", &[("query", expression)])?;
        Ok(data["result"].as_array().context("a result")?.len())
    }
}

/// The dashboard's queries, with variables replaced as Grafana does for all nodes and Services.
fn expressions(dashboard: &Value) -> Result<Vec<String>> {
    let mut expressions = Vec::new();
    for panel in dashboard["panels"].as_array().context("panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().context("an expression")?;
            let expression = ["$instance", "$namespace", "$service"]
                .iter()
                .fold(expression.to_owned(), |text, variable| text.replace(variable, ".*"))
                .replace("$__rate_interval", "10s");
            ensure!(!expression.contains('$'), "unknown variable: {expression}");
            expressions.push(expression);
        }
    }
    Ok(expressions)
}

/// Whether a healthy node without an API server may have no series for this query.
fn may_be_empty(expression: &str) -> bool {
    // tests/bgp.rs has peers.
    let others = ["rest_client_", "millrace_bgp_", "millrace_bfd_"];
    others.iter().any(|other| expression.contains(other))
        || expression.contains(") > min by (instance) (kubeproxy_")
}

#[test]
fn a_real_agent_has_metrics_for_every_query_and_alert() -> Result<()> {
    let Some(prometheus) = program("prometheus") else { return Ok(()) };
    let network = OneNode::warm(1)?;
    let agent = network.agent_that_announces(WEB)?;
    let prometheus = Prometheus::start(&network, &prometheus)?;
    let dashboard = fs::read_to_string(deploy("grafana/millrace.json"))?;
    let expressions = expressions(&serde_json::from_str(&dashboard)?)?;
    ensure!(expressions.len() > 40, "only {} queries were found", expressions.len());

    for expression in &expressions {
        // A query with an error fails at once. One without series gets some from the traffic below.
        prometheus.count(expression)?;
        if may_be_empty(expression) {
            continue;
        }
        let answered = wait_until(expression, SOON, || {
            for port in ["10256/healthz", "10256/livez"] {
                let url = format!("http://127.0.0.1:{port}");
                let _ = network.node.run(["curl", "--silent", "--max-time", "60", &url]);
            }
            let served = network.curl("http://203.0.113.10/").is_ok();
            served && prometheus.count(expression).is_ok_and(|series| series > 0)
        });
        answered.with_context(|| format!("no series for {expression}"))?;
    }

    let rules = || -> Result<Vec<Value>> {
        let rules = prometheus.get("rules", &[("type", "alert")])?;
        Ok(rules["groups"][0]["rules"].as_array().context("rules")?.clone())
    };
    let count = rules()?.len();
    ensure!(count > 10, "only {count} alerts were found");
    // On a busy machine a scrape may take longer than the second that it is given: then an alert is pending until the
    // next one.
    let mut wrong = Vec::new();
    wait_until("all alerts are evaluated, and inactive on a healthy node", SOON, || {
        wrong = rules().unwrap_or_default();
        let are_known = wrong.len() == count;
        wrong.retain(|rule| rule["health"] != "ok" || rule["state"] != "inactive");
        are_known && wrong.is_empty()
    })
    .with_context(|| format!("{wrong:#?}"))?;

    // An alert that should be active.
    agent.kill();
    wait_until("MillraceDown is pending", SOON, || {
        let down = "ALERTS{alertname=\"MillraceDown\", alertstate=\"pending\"}";
        prometheus.count(down).is_ok_and(|series| series == 1)
    })
}

#[test]
fn alert_rules_are_valid_and_pass_their_tests() -> Result<()> {
    let Some(promtool) = program("promtool") else { return Ok(()) };
    let (rules, tests) = (deploy("prometheus/rules.yaml"), deploy("prometheus/rules-test.yaml"));
    for (action, file) in [("check", rules), ("test", tests)] {
        let output = Command::new(&promtool).args([action, "rules"]).arg(&file).output()?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stdout).into_owned();
            bail!("{}: {log}{}", file.display(), String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}
