//! Kubernetes' end-to-end tests of SIG Network, run by ginkgo outside the nodes' subnet.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::results::{Results, SpecResult, TestOutcome};
use crate::cluster::Cluster;
use crate::interrupt::{check_interrupt, is_interrupted};

/// What no cluster of this kind has: providers' own features, SCTP where the kernel lacks it, a way to the internet.
const OTHER_FEATURES: &str = r"\[Feature:(Networking-DNS|Networking-IPv4|Networking-IPv6|Networking-Performance|PerformanceDNS|SCTPConnectivity|KubeProxyNFAcct|OffByDefault)\]";

/// Which specs run.
pub struct Selection<'a> {
    pub focus: Option<&'a str>,
    pub slow: bool,
    pub serial: bool,
    /// Parts of names.
    pub skip: Vec<String>,
}

impl Selection<'_> {
    /// ginkgo's filter by the labels that Kubernetes gives its specs.
    fn label_filter(&self) -> String {
        let serial = if self.serial { "Serial" } else { "!Serial" };
        let slow = if self.slow { "" } else { " && !Slow" };
        format!("sig-network && !Flaky && !Disruptive && {serial}{slow}")
    }
}

/// The images that the tests use.
pub(crate) fn image_names(programs: &Path) -> Result<Vec<String>> {
    let program = programs.join("e2e.test");
    let output = Command::new(&program)
        .arg("--list-images")
        .output()
        .context("e2e.test can't be started")?;
    ensure!(output.status.success(), "e2e.test --list-images ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::trim).filter(|line| line.contains('/')).map(str::to_owned).collect())
}

pub fn run_sig_network(
    cluster: &Cluster,
    selection: &Selection<'_>,
    parallel: usize,
    folder: &Path,
    log: &Path,
) -> Result<Results> {
    let files = cluster.network.topology.directory();
    let report = folder.join("sig-network.json");
    let _ = fs::remove_file(&report);
    let processes = if selection.serial { 1 } else { parallel };
    let mut skip = vec![OTHER_FEATURES.to_owned()];
    skip.extend(selection.skip.iter().map(|name| quote(name)));

    let mut command = cluster.network.client.command(cluster.programs.join("ginkgo"));
    command.arg(format!("--procs={processes}")).args(["--timeout=6h", "--no-color"]);
    command.arg(format!("--label-filter={}", selection.label_filter()));
    if let Some(focus) = selection.focus {
        command.arg(format!("--focus={focus}"));
    }
    for pattern in &skip {
        command.arg(format!("--skip={pattern}"));
    }
    command.arg("--json-report=sig-network.json").arg("--output-dir").arg(folder);
    command.arg(cluster.programs.join("e2e.test")).arg("--");
    command
        .arg(format!("--kubeconfig={}", files.join("admin.kubeconfig").display()))
        .arg(format!("--kubectl-path={}", cluster.programs.join("kubectl").display()))
        .arg(format!("--num-nodes={}", cluster.network.nodes.len()))
        .args(["--provider=local", "--node-os-distro=custom", "--disable-log-dump"]);
    let output = File::create(log).with_context(|| log.display().to_string())?;
    command.current_dir(files).env("HOME", files).env("PATH", path_with(&cluster.programs));
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut ginkgo = command.spawn().context("ginkgo can't be started")?;
    while ginkgo.try_wait()?.is_none() {
        if is_interrupted() {
            let _ = ginkgo.kill();
            let _ = ginkgo.wait();
        }
        check_interrupt()?;
        thread::sleep(Duration::from_millis(200));
    }
    // It fails if a spec failed; the report says which.
    let text = fs::read(&report).with_context(|| {
        format!("ginkgo wrote no report {}; its output is in {}", report.display(), log.display())
    })?;
    parse_report(&serde_json::from_slice(&text)?)
}

fn path_with(programs: &Path) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}:/usr/sbin:/sbin", programs.display())
}

/// A regular expression that matches a text.
fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for character in text.chars() {
        if !character.is_alphanumeric() && character != ' ' {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted
}

/// The specs in a report of ginkgo that were selected.
fn parse_report(report: &Value) -> Result<Results> {
    let suites = report.as_array().context("a report is a list of suites")?;
    let mut results = Results::default();
    for spec in suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten() {
        if spec["LeafNodeType"] != "It" {
            // Failures of what runs before and after all specs.
            if spec["State"] == "failed" {
                let name = spec["LeafNodeType"].as_str().unwrap_or_default().to_owned();
                let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
                results.add("the suite itself", name, Err(anyhow::anyhow!(message.to_owned())));
            }
            continue;
        }
        let message = spec["Failure"]["Message"].as_str().unwrap_or_default().to_owned();
        let outcome = match spec["State"].as_str() {
            Some("passed") => TestOutcome::Passed,
            // Without a message it was not selected.
            Some("skipped") if message.is_empty() => continue,
            Some("skipped") => TestOutcome::Skipped(message),
            Some("pending") => continue,
            _ => TestOutcome::Failed(message),
        };
        let containers = spec["ContainerHierarchyTexts"].as_array();
        let mut texts: Vec<&str> =
            containers.into_iter().flatten().filter_map(Value::as_str).collect();
        let group = texts.first().copied().unwrap_or_default();
        let group = group.trim_start_matches("[sig-network]").trim().to_owned();
        texts.extend(spec["LeafNodeText"].as_str());
        let time = Duration::from_nanos(spec["RunTime"].as_u64().unwrap_or_default());
        results.0.push(SpecResult { group, name: texts.join(" "), outcome, time });
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_selected_specs_are_in_the_results() {
        let spec = |text: &str, state: &str, message: &str| {
            json!({
                "LeafNodeType": "It", "LeafNodeText": text, "State": state, "RunTime": 1_500_000_000,
                "ContainerHierarchyTexts": ["[sig-network] Services"], "Failure": {"Message": message},
            })
        };
        let report = json!([{"SpecReports": [
            spec("works", "passed", ""),
            spec("breaks", "timedout", "too late"),
            spec("is not selected", "skipped", ""),
            spec("needs zones", "skipped", "no zones"),
        ]}]);
        let results = parse_report(&report).unwrap().0;
        let seen: Vec<_> =
            results.iter().map(|each| (each.name.as_str(), each.outcome.clone())).collect();
        assert_eq!(
            seen,
            [
                ("[sig-network] Services works", TestOutcome::Passed),
                ("[sig-network] Services breaks", TestOutcome::Failed("too late".into())),
                ("[sig-network] Services needs zones", TestOutcome::Skipped("no zones".into())),
            ]
        );
        assert_eq!(results[0].group, "Services");
        assert_eq!(results[0].time, Duration::from_millis(1500));
    }

    #[test]
    fn a_focus_adds_no_specs_of_other_groups() {
        let filter = |slow, serial| {
            Selection { focus: Some("DNS"), slow, serial, skip: Vec::new() }.label_filter()
        };
        let base = "sig-network && !Flaky && !Disruptive";
        assert_eq!(filter(false, false), format!("{base} && !Serial && !Slow"));
        assert_eq!(filter(true, false), format!("{base} && !Serial"));
        assert_eq!(filter(true, true), format!("{base} && Serial"));
    }

    #[test]
    fn a_quoted_name_matches_itself_only() {
        assert_eq!(quote("a [Slow] (x)"), r"a \[Slow\] \(x\)");
    }
}
