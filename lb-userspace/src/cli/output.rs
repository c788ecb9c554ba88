//! Tables as kubectl prints them, and the same as JSON or YAML.

use std::io::{self, Write};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    /// A table with more columns
    Wide,
    Json,
    Yaml,
}

/// A row of a table.
pub trait Row: Serialize {
    const HEADERS: &'static [&'static str];
    /// How many of the columns are shown without `-o wide`.
    const NARROW: usize;

    fn cells(&self) -> Vec<String>;
}

pub fn print<R: Row>(rows: &[R], format: Format) -> Result<()> {
    let text = match format {
        Format::Table => table(rows, R::NARROW),
        Format::Wide => table(rows, R::HEADERS.len()),
        Format::Json => serde_json::to_string_pretty(rows)? + "\n",
        Format::Yaml => serde_norway::to_string(rows)?,
    };
    write(&text)
}

pub fn write(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn table<R: Row>(rows: &[R], columns: usize) -> String {
    let headers = R::HEADERS.iter().map(|header| (*header).to_owned()).collect();
    let mut lines: Vec<Vec<String>> = vec![headers];
    lines.extend(rows.iter().map(Row::cells));
    let widths: Vec<usize> = (0..columns)
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    lines.iter().map(|line| align(&line[..columns], &widths)).collect()
}

fn align(cells: &[String], widths: &[usize]) -> String {
    let padded: Vec<String> =
        cells.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
    padded.join("   ").trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Port(&'static str, u16);

    impl Row for Port {
        const HEADERS: &'static [&'static str] = &["NAME", "PORT"];
        const NARROW: usize = 1;

        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_string()]
        }
    }

    #[test]
    fn columns_line_up_and_wide_shows_more() {
        let rows = [Port("a", 80), Port("longer", 8080)];
        assert_eq!(table(&rows, 2), "NAME     PORT\na        80\nlonger   8080\n");
        assert_eq!(table(&rows, 1), "NAME\na\nlonger\n");
    }
}
