//! The plot: a panel for each figure, a bar for each contender, a line from minimum to maximum.

use std::fmt::Write;

use super::balancer::BalancerKind;
use super::figure::ComparisonFigure;
use super::world::World;
use crate::tables::three_digits;

const PANELS: [ComparisonFigure; 6] = [
    ComparisonFigure::Connections,
    ComparisonFigure::ConnectionTime,
    ComparisonFigure::ConnectHalf,
    ComparisonFigure::KeptHalf,
    ComparisonFigure::DatagramHalf,
    ComparisonFigure::Frames,
];

const WIDTH: f64 = 1180.0;
const TOP: f64 = 50.0;
/// Widths within a panel: the names, the bars, and the space for a figure beside the longest bar.
const NAMES: f64 = 190.0;
const BARS: f64 = 300.0;
const BESIDE: f64 = 60.0;
const HEADING: f64 = 30.0;
const BAR: f64 = 18.0;

// A panel fits into half of the picture.
const _: () = assert!(NAMES + BARS + BESIDE <= WIDTH / 2.0);

pub fn plot_worlds(worlds: &[World]) -> String {
    let height = HEADING + worlds.len() as f64 * BAR + 25.0;
    let whole = TOP + PANELS.len().div_ceil(2) as f64 * height;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {whole}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"17\">The same clients and servers, with different \
         balancers between them</text>\n"
    );
    for (number, figure) in PANELS.into_iter().enumerate() {
        let left = if number % 2 == 0 { 20.0 } else { 20.0 + WIDTH / 2.0 };
        let top = TOP + (number / 2) as f64 * height;
        panel(worlds, figure, left, top, &mut svg);
    }
    svg + "</svg>\n"
}

fn panel(worlds: &[World], figure: ComparisonFigure, left: f64, top: f64, svg: &mut String) {
    let mut add = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(svg, "{line}");
    };
    let summary = |world: &World| world.samples.get(&figure).map(|sample| sample.summary());
    let most = worlds.iter().filter_map(summary).filter_map(|[_, _, most]| most);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| left + NAMES + value / most * BARS;
    add(format_args!(
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        top + 18.0,
        figure.title()
    ));
    for (row, world) in worlds.iter().enumerate() {
        let y = top + HEADING + row as f64 * BAR;
        let (middle, text) = (y + BAR / 2.0 - 2.0, y + BAR / 2.0 + 2.0);
        add(format_args!(
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>",
            left + NAMES - 6.0,
            label(world)
        ));
        let Some([Some(median), Some(least), Some(greatest)]) = summary(world) else {
            add(format_args!(
                "<text x=\"{}\" y=\"{text}\" fill=\"#888\">not measured</text>",
                left + NAMES
            ));
            continue;
        };
        add(format_args!(
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#333\"/>\
             <text x=\"{:.1}\" y=\"{text}\">{}</text>",
            left + NAMES,
            x(median) - left - NAMES,
            BAR - 4.0,
            colour(world.kind),
            x(least),
            x(greatest),
            x(greatest) + 5.0,
            three_digits(median)
        ));
    }
}

fn label(world: &World) -> String {
    match world.services {
        None => world.kind.name().to_owned(),
        Some(number) => format!("{}, {number}", world.kind.name()),
    }
}

fn colour(kind: BalancerKind) -> &'static str {
    match kind {
        BalancerKind::None => "#aaaaaa",
        BalancerKind::Xdp => "#2a8c4a",
        BalancerKind::Tc => "#7cc28f",
        BalancerKind::Nftables => "#4878b8",
        BalancerKind::Iptables => "#8fb0dc",
        BalancerKind::Haproxy => "#d98c3f",
    }
}
