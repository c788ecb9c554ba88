//! h2spec against the Ingress proxy, in clear text: over TLS the proxy serves only names that have a certificate, and h2spec
//! sends none.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ingress::{default_backend_replies, prepare_ingresses};
use super::results::{Results, SpecResult, TestOutcome};
use crate::cluster::Cluster;

pub fn run_http2_suite(cluster: &mut Cluster, log: &Path) -> Result<Results> {
    let proxy = prepare_ingresses(cluster)?;
    // No rule has the host that h2spec sends. The proxy's own 404 would precede what some specs send after the headers.
    default_backend_replies(cluster, &proxy)?;
    let report = cluster.network.topology.directory().join("h2spec.xml");
    let mut h2spec = cluster.network.client.command(cluster.programs.join("h2spec"));
    h2spec.args(["--host", &proxy, "--port", "80", "--timeout", "5"]);
    let output =
        h2spec.arg("--junit-report").arg(&report).output().context("h2spec can't be started")?;
    fs::write(log, [&output.stdout[..], &output.stderr[..]].concat())?;
    let text = fs::read_to_string(&report)
        .with_context(|| format!("h2spec wrote no report; its output is in {}", log.display()))?;
    let results = parse_junit(&text);
    ensure!(!results.0.is_empty(), "h2spec ran nothing; its output is in {}", log.display());
    Ok(results)
}

/// Reads h2spec's report: `<testcase package="http2/3.5" classname="Sends ..." time="0.1">`, with an element if it failed.
fn parse_junit(text: &str) -> Results {
    let mut results = Results::default();
    for case in text.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or_default();
        let (head, body) = case.split_once('>').unwrap_or((case, ""));
        let attribute = |name: &str| {
            let (_, after) = head.split_once(&format!("{name}=\""))?;
            Some(unescape(after.split('"').next()?))
        };
        let group = attribute("package").unwrap_or_default();
        let name = format!("{group} {}", attribute("classname").unwrap_or_default());
        let outcome = if body.contains("<skipped") {
            TestOutcome::Skipped(String::new())
        } else if body.contains("<failure") || body.contains("<error") {
            let message = body.split_once('>').map_or(body, |(_, text)| text);
            TestOutcome::Failed(unescape(message.split('<').next().unwrap_or_default()))
        } else {
            TestOutcome::Passed
        };
        let group = group.split('/').next().unwrap_or_default().to_owned();
        results.0.push(SpecResult { group, name, outcome, time: Duration::ZERO });
    }
    results
}

fn unescape(text: &str) -> String {
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&#34;", "\"")
        .replace("&quot;", "\"");
    text.replace("&#39;", "'").replace("&#xA;", "\n").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_h2spec_are_found() {
        let text = "<testsuites><testsuite name=\"1. Starting\" package=\"generic/1\">\
            <testcase package=\"generic/1\" classname=\"Sends a preface\" time=\"0.0010\"></testcase>\
            <testcase package=\"http2/6.9\" classname=\"Sends &#34;0&#34;\" time=\"2.0\"><failure>Timeout</failure></testcase>\
            <testcase package=\"hpack/4\" classname=\"Skips\" time=\"0\"><skipped></skipped></testcase>\
            </testsuite></testsuites>";
        let results = parse_junit(text).0;
        let seen: Vec<_> = results.iter().map(|each| (each.name.as_str(), &each.outcome)).collect();
        assert_eq!(
            seen,
            [
                ("generic/1 Sends a preface", &TestOutcome::Passed),
                ("http2/6.9 Sends \"0\"", &TestOutcome::Failed("Timeout".into())),
                ("hpack/4 Skips", &TestOutcome::Skipped(String::new())),
            ]
        );
        assert_eq!(results[1].group, "http2");
    }
}
