//! Plots cost against number of flows, with a line for each case.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::record::CaseRecord;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 12] = [
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
    "#bcbd22", "#17becf", "#000080", "#006400",
];

pub fn write_plot(path: &Path, records: &[CaseRecord]) -> Result<()> {
    fs::write(path, plot_records(records)).with_context(|| path.display().to_string())
}

fn plot_records(records: &[CaseRecord]) -> String {
    let points: Vec<(&str, f64, f64)> = records
        .iter()
        .filter(|record| record.flows > 0 && !record.case.ends_with(".none"))
        .filter_map(|record| Some((record.case.as_str(), f64::from(record.flows), record.net_ns?)))
        .collect();
    let mut names: Vec<&str> = points.iter().map(|point| point.0).collect();
    names.sort_unstable();
    names.dedup();
    let most_flows = points.iter().map(|point| point.1).fold(2.0, f64::max);
    let most_ns = points.iter().map(|point| point.2).fold(50.0, f64::max);
    let top = (most_ns / 50.0).ceil() * 50.0;
    let x = |flows: f64| LEFT + flows.log2() / most_flows.log2() * (WIDTH - LEFT - RIGHT);
    let y = |ns: f64| HEIGHT - BOTTOM - ns / top * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Nanoseconds a packet, over the harness's own \
         cost, by number of live flows</text>\n"
    );
    let mut add = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(svg, "{line}");
    };
    for step in 0..=5 {
        let ns = top * f64::from(step) / 5.0;
        add(format_args!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{ns:.0}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(ns) + 4.0,
            y = y(ns),
        ));
    }
    let mut counts: Vec<f64> = points.iter().map(|point| point.1).collect();
    counts.sort_by(f64::total_cmp);
    counts.dedup();
    for flows in counts {
        add(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{flows}</text>",
            x(flows),
            HEIGHT - BOTTOM + 20.0
        ));
    }
    for (number, name) in names.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let line: Vec<String> = points
            .iter()
            .filter(|point| point.0 == *name)
            .map(|point| format!("{:.1},{:.1}", x(point.1), y(point.2)))
            .collect();
        for (cx, cy) in line.iter().filter_map(|point| point.split_once(',')) {
            add(format_args!("<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        ));
        let (at, below) = (WIDTH - RIGHT + 20.0, TOP + 20.0 + number as f64 * 20.0);
        add(format_args!(
            "<rect x=\"{at}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            below - 6.0,
            at + 20.0,
            below
        ));
    }
    svg + "</svg>\n"
}
