//! Plots cost against size, both on logarithmic axes: a line with slope 1 is work proportional to the
//! size, a flat line is work that does not depend on it.

use std::fmt::Write;

use super::measure::Measured;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// A line: name, color, and value in microseconds.
type Line = (&'static str, &'static str, fn(&Measured) -> f64);

const LINES: [Line; 4] = [
    ("all programmed", "#1f77b4", |measured| measured.programmed_ms * 1e3),
    ("all, after a restart", "#9467bd", |measured| measured.restart_ms * 1e3),
    ("an endpoint changes", "#ff7f0e", |measured| measured.endpoint_us.median),
    ("a Service is created", "#2ca02c", |measured| measured.creation_us.median),
];

pub fn plot_control_plane(all: &[Measured]) -> String {
    let sizes: Vec<f64> = all.iter().map(|measured| f64::from(measured.services)).collect();
    let costs: Vec<f64> =
        all.iter().flat_map(|measured| LINES.map(|(_, _, cost)| cost(measured))).collect();
    let (x_from, x_to) = decades(&sizes);
    let (y_from, y_to) = decades(&costs);
    let x = |size: f64| LEFT + (size.log10() - x_from) / (x_to - x_from) * (WIDTH - LEFT - RIGHT);
    let y = |cost: f64| {
        HEIGHT - BOTTOM - (cost.log10() - y_from) / (y_to - y_from) * (HEIGHT - TOP - BOTTOM)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Microseconds until a change is active, by number \
         of Services</text>\n"
    );
    let mut add = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(svg, "{line}");
    };
    for decade in y_from as i32..=y_to as i32 {
        let cost = 10f64.powi(decade);
        add(format_args!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{cost}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(cost) + 4.0,
            y = y(cost),
        ));
    }
    for &size in &sizes {
        let below = HEIGHT - BOTTOM + 20.0;
        add(format_args!(
            "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{size}</text>",
            x(size)
        ));
    }
    for (number, (name, colour, cost)) in LINES.into_iter().enumerate() {
        let mut points = String::new();
        for measured in all {
            let (x, y) = (x(f64::from(measured.services)), y(cost(measured)));
            add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        add(format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        ));
        let (at, below) = (WIDTH - RIGHT + 15.0, TOP + 20.0 + number as f64 * 20.0);
        add(format_args!("<text x=\"{at}\" y=\"{below}\" fill=\"{colour}\">{name}</text>"));
    }
    svg + "</svg>\n"
}

/// The exponents of the powers of ten that enclose all values.
fn decades(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::MAX, f64::min).max(1.0).log10().floor();
    let most = values.iter().copied().fold(1.0, f64::max).log10().ceil();
    (least, most.max(least + 1.0))
}
