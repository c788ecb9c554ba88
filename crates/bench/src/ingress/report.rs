//! The results: a table, which is also valid Markdown, and JSON.

use std::fs;
use std::path::{Path, PathBuf};

use crate::figures::{Sample, this_machine};
use crate::tables::{align_table, sample_cell};
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::figure::IngressFigure;
use super::measure::ProxySamples;
use super::proxy::ProxyKind;

pub struct IngressResults {
    pub samples: Vec<(ProxyKind, ProxySamples)>,
    pub rounds: usize,
    /// The share of the machine that other processes used before each round, from 0 to 1.
    pub background: Sample,
    /// What was not measured, and why.
    pub lacking: Vec<String>,
}

/// A line for each figure, a column for each proxy.
pub fn ingress_table(run: &IngressResults) -> String {
    let mut lines = vec![vec![String::new()]];
    lines[0].extend(run.samples.iter().map(|(kind, _)| kind.name().to_owned()));
    for figure in IngressFigure::ALL {
        let mut line = vec![figure.title()];
        let cells = run.samples.iter().map(|(_, samples)| samples.get(&figure));
        line.extend(cells.map(|sample| sample.map_or("-".to_owned(), sample_cell)));
        lines.push(line);
    }
    align_table(&lines)
}

pub(crate) fn ingress_remarks(run: &IngressResults) -> Vec<String> {
    let [median, _, most] = run.background.summary().map(|share| share.unwrap_or(0.0) * 100.0);
    let mut remarks = vec![
        format!("{} rounds, interleaved; ± is half the range", run.rounds),
        format!(
            "other processes used {median:.0} % of this machine before a round (at most {most:.0} %)"
        ),
    ];
    if most > 10.0 {
        remarks.push("the machine was not idle: compare columns, not with other runs".to_owned());
    }
    remarks
}

pub fn ingress_json(run: &IngressResults) -> Value {
    let machine = this_machine();
    let proxies: Vec<Value> =
        run.samples.iter().map(|(kind, samples)| proxy_json(*kind, samples)).collect();
    json!({
        "kernel": machine.kernel, "processor": machine.processor, "commit": machine.commit,
        "rounds": run.rounds, "background": run.background.summary(), "proxies": proxies,
        "not_measured": run.lacking,
    })
}

fn proxy_json(kind: ProxyKind, samples: &ProxySamples) -> Value {
    let mut figures = Map::new();
    for (figure, sample) in samples {
        let [median, least, most] = sample.summary();
        let rounds: Vec<f64> = sample.figures().collect();
        figures.insert(
            figure.key().to_owned(),
            json!({"median": median, "min": least, "max": most, "unit": figure.unit(), "rounds": rounds}),
        );
    }
    json!({"proxy": kind.key(), "figures": figures})
}

/// Writes all files; returns their paths.
pub fn write_ingress_files(
    directory: &Path,
    run: &IngressResults,
    markdown: &str,
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let json = serde_json::to_string_pretty(&ingress_json(run))? + "\n";
    let mut written = Vec::new();
    for (name, text) in [("ingress.json", &*json), ("ingress.md", markdown)] {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        written.push(path);
    }
    Ok(written)
}
