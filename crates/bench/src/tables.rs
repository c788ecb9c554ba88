//! Tables of figures, in Markdown.

use crate::figures::Sample;

/// Lines of cells as a Markdown table. The first line has the headings.
pub fn align_table(lines: &[Vec<String>]) -> String {
    let columns = lines[0].len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += &format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        if number == 0 {
            let rules = widths.iter().enumerate().map(|(column, width)| {
                if column == 0 { "-".repeat(*width) } else { "-".repeat(width - 1) + ":" }
            });
            text += &format!("| {} |\n", rules.collect::<Vec<_>>().join(" | "));
        }
    }
    text
}

/// The median, and half the range of the rounds.
pub fn sample_cell(sample: &Sample) -> String {
    let [Some(median), Some(least), Some(most)] = sample.summary() else { return "-".into() };
    if sample.len() == 1 || median == 0.0 {
        return three_digits(median);
    }
    format!("{} ±{:.0} %", three_digits(median), (most - least) / 2.0 / median * 100.0)
}

/// With three significant digits.
pub fn three_digits(figure: f64) -> String {
    match figure.abs() {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_half_the_span() {
        assert_eq!(sample_cell(&Sample::from_iter([90.0, 100.0, 120.0])), "100 ±15 %");
        assert_eq!(sample_cell(&Sample::from_iter([1.234])), "1.23");
        assert_eq!(sample_cell(&Sample::default()), "-");
    }

    #[test]
    fn a_table_is_markdown() {
        let line = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = align_table(&[line(["", "µs"]), line(["tc", "12.0"])]);
        assert_eq!(text, "|    |   µs |\n| -- | ---: |\n| tc | 12.0 |\n");
    }
}
