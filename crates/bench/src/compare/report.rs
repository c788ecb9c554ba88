//! The results: a table, which is also valid Markdown, and JSON.

use std::fs;
use std::path::{Path, PathBuf};

use crate::figures::{Sample, this_machine};
use crate::tables::{align_table, sample_cell};
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::balancer::BalancerKind;
use super::figure::ComparisonFigure;
use super::world::World;

/// The results of a run.
pub struct ComparisonResults<'a> {
    pub worlds: &'a [World],
    pub rounds: usize,
    /// The share of the machine that other processes used before each round, from 0 to 1.
    pub background: &'a Sample,
    /// What was not measured, and why.
    pub lacking: &'a [String],
}

/// A line for each contender and number of Services: medians, and half the range of the rounds.
pub fn comparison_table(run: &ComparisonResults<'_>) -> String {
    let mut lines = vec![vec!["".to_owned(), "Services".to_owned()]];
    lines[0].extend(ComparisonFigure::ALL.map(|figure| figure.heading().to_owned()));
    for world in run.worlds {
        let services = world.services.map_or("-".to_owned(), |number| number.to_string());
        let mut line = vec![world.kind.name().to_owned(), services];
        line.extend(
            ComparisonFigure::ALL
                .map(|figure| world.samples.get(&figure).map_or("-".into(), sample_cell)),
        );
        lines.push(line);
    }
    align_table(&lines)
}

/// The figures of which ratios are printed, with their descriptions.
const RATIOS: [(ComparisonFigure, &str); 6] = [
    (ComparisonFigure::Connections, "new connections"),
    (ComparisonFigure::ConnectionTime, "processor time for one"),
    (ComparisonFigure::ConnectHalf, "time to connect and ask"),
    (ComparisonFigure::KeptHalf, "time to ask"),
    (ComparisonFigure::Stream, "bulk"),
    (ComparisonFigure::Frames, "packets"),
];

/// Millrace compared with each other contender at the highest number of Services. The median of the
/// ratios of each round, because a disturbance affects both.
pub fn compare_with_millrace(worlds: &[World]) -> String {
    let most = worlds.iter().filter_map(|world| world.services).max();
    let is_ours = |world: &&World| matches!(world.kind, BalancerKind::Xdp | BalancerKind::Tc);
    let mut text = String::new();
    for world in worlds.iter().filter(is_ours).filter(|world| world.services == most) {
        for other in worlds.iter().filter(|other| !is_ours(other)) {
            if other.services.is_some() && other.services != most {
                continue;
            }
            let ratios = RATIOS.iter().filter_map(|(figure, words)| {
                let ratio = ratio(world.samples.get(figure)?, other.samples.get(figure)?)?;
                Some(format!("{words} × {ratio:.2}"))
            });
            let ratios = ratios.collect::<Vec<_>>().join(", ");
            text += &format!("- {} / {}: {ratios}\n", world.title(), other.kind.name());
        }
    }
    text
}

fn ratio(ours: &Sample, theirs: &Sample) -> Option<f64> {
    if ours.len() != theirs.len() {
        return Some(ours.summary()[0]? / theirs.summary()[0]?);
    }
    let ratios: Sample = ours.figures().zip(theirs.figures()).map(|(o, t)| o / t).collect();
    ratios.summary()[0]
}

/// Notes below the table.
pub(crate) fn comparison_remarks(run: &ComparisonResults<'_>) -> Vec<String> {
    let [median, _, most] = run.background.summary().map(|share| share.unwrap_or(0.0) * 100.0);
    let failed: u64 = run.worlds.iter().map(|world| world.failed).sum();
    let answered: u64 = run.worlds.iter().map(|world| world.answered).sum();
    let mut remarks = vec![
        format!(
            "{} rounds, interleaved; ± is half of what lies between the least and the most",
            run.rounds
        ),
        format!("{answered} requests were answered, {failed} failed"),
        format!("others used {median:.0} % of this machine before a round (at most {most:.0} %)"),
    ];
    if most > 10.0 {
        remarks
            .push("the machine was not idle: ratios may hold, absolute figures do not".to_owned());
    }
    for world in run.worlds.iter().filter(|world| world.failed > 0) {
        remarks.push(format!(
            "{}: {} of {} requests failed",
            world.title(),
            world.failed,
            world.failed + world.answered
        ));
    }
    remarks
}

pub fn comparison_json(run: &ComparisonResults<'_>) -> Value {
    let machine = this_machine();
    let cases: Vec<Value> = run.worlds.iter().map(case).collect();
    json!({
        "kernel": machine.kernel, "processor": machine.processor,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "commit": machine.commit, "rounds": run.rounds,
        "background": run.background.summary(),
        "cases": cases, "not_measured": run.lacking,
    })
}

fn case(world: &World) -> Value {
    let mut figures = Map::new();
    for (figure, sample) in &world.samples {
        let [median, least, most] = sample.summary();
        let rounds: Vec<f64> = sample.figures().collect();
        figures.insert(
            figure.key().to_owned(),
            json!({"median": median, "min": least, "max": most, "unit": figure.unit(), "rounds": rounds}),
        );
    }
    json!({
        "contender": world.kind.key(), "services": world.services,
        "answered": world.answered, "failed": world.failed, "figures": figures,
    })
}

/// Writes all files; returns their paths.
pub fn write_report_files(
    directory: &Path,
    run: &ComparisonResults<'_>,
    markdown: &str,
    picture: &str,
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let json = serde_json::to_string_pretty(&comparison_json(run))? + "\n";
    let mut written = Vec::new();
    for (name, text) in
        [("compare.json", &*json), ("compare.md", markdown), ("compare.svg", picture)]
    {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rounds() {
        let ours = Sample::from_iter([10.0, 100.0, 12.0]);
        let theirs = Sample::from_iter([5.0, 50.0, 3.0]);
        assert_eq!(ratio(&ours, &theirs), Some(2.0));
    }
}
