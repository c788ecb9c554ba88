//! Prints rows like kubectl: as tables, JSON, YAML or names; once, or repeatedly as they change.

use std::collections::HashMap;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// Interval of reading with `--watch`.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, Args)]
pub struct Output {
    /// Output format; JSON and YAML contain all fields
    #[arg(long = "output", short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    pub format: OutputFormat,

    /// Omit the header line
    #[arg(long)]
    pub no_headers: bool,

    /// Keep running, and print each row again when it changes
    #[arg(long, short)]
    pub watch: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    #[default]
    Table,
    /// A table with more columns
    Wide,
    Json,
    Yaml,
    /// Names only, one per line
    Name,
}

/// A row of a table.
pub trait Row: Serialize {
    /// The name of the rows, for the message if there are none.
    const PLURAL: &'static str;
    const HEADERS: &'static [&'static str];
    /// Number of columns without `-o wide`.
    const NARROW: usize;

    fn cells(&self) -> Vec<String>;

    /// The row's unique name.
    fn name(&self) -> String;
}

/// Prints the rows; with `--watch` continues until the reader closes the pipe.
pub fn show_rows<R: Row>(output: &Output, mut read: impl FnMut() -> Result<Vec<R>>) -> Result<()> {
    let mut printer = RowPrinter::new(output);
    let mut rows = read()?;
    if !output.watch {
        return unless_unread(printer.print_all(&rows, &mut io::stdout()));
    }
    loop {
        let text = printer.changed(&rows)?;
        let mut stdout = io::stdout();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        thread::sleep(PAUSE);
        rows = read()?;
    }
}

/// Prints rows once.
pub fn print_rows<R: Row>(rows: &[R], format: OutputFormat) -> Result<()> {
    let mut printer = RowPrinter::new(&Output { format, ..Output::default() });
    unless_unread(printer.print_all(rows, &mut io::stdout()))
}

pub fn write_text(text: &str) -> Result<()> {
    unless_unread(io::stdout().write_all(text.as_bytes()).map_err(Into::into))
}

/// Text that others wrote must not control the terminal.
pub fn escape_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Ignores that the reader has closed the pipe.
pub(crate) fn unless_unread(printed: Result<()>) -> Result<()> {
    match printed {
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        printed => printed,
    }
}

/// Prints a document as JSON or YAML.
pub(crate) fn print_document<T: Serialize>(document: &T, format: OutputFormat) -> Result<()> {
    let text = match format {
        OutputFormat::Yaml => serde_norway::to_string(document)?,
        _ => serde_json::to_string_pretty(document)? + "\n",
    };
    write_text(&text)
}

struct RowPrinter {
    format: OutputFormat,
    headers: bool,
    /// Widths of the columns at first.
    widths: Vec<usize>,
    /// The last output of each row, by name.
    printed: HashMap<String, String>,
}

impl RowPrinter {
    fn new(output: &Output) -> Self {
        let headers = !output.no_headers;
        Self { format: output.format, headers, widths: Vec::new(), printed: HashMap::new() }
    }

    fn print_all<R: Row>(&mut self, rows: &[R], to: &mut impl Write) -> Result<()> {
        match self.format {
            OutputFormat::Json => {
                serde_json::to_writer_pretty(&mut *to, rows)?;
                writeln!(to)?;
            }
            OutputFormat::Yaml => to.write_all(serde_norway::to_string(rows)?.as_bytes())?,
            OutputFormat::Name => {
                rows.iter().try_for_each(|row| writeln!(to, "{}", escape_controls(&row.name())))?;
            }
            OutputFormat::Table | OutputFormat::Wide => {
                if rows.is_empty() {
                    eprintln!("No {} found.", R::PLURAL);
                    return Ok(());
                }
                let cells: Vec<Vec<String>> = rows.iter().map(|row| self.cells(row)).collect();
                to.write_all(self.table::<R>(&cells).as_bytes())?;
            }
        }
        Ok(())
    }

    /// Formats the rows that have changed: as a table, which begins with headers, or each as a
    /// document.
    fn changed<R: Row>(&mut self, rows: &[R]) -> Result<String> {
        let mut changed = Vec::new();
        let mut printed = HashMap::with_capacity(rows.len());
        for row in rows {
            let cells = self.cells(row);
            let text = match self.format {
                OutputFormat::Json => serde_json::to_string_pretty(row)? + "\n",
                OutputFormat::Yaml => format!("---\n{}", serde_norway::to_string(row)?),
                OutputFormat::Name => escape_controls(&row.name()) + "\n",
                OutputFormat::Table | OutputFormat::Wide => cells.join("\t"),
            };
            let name = row.name();
            if self.printed.get(&name) != Some(&text) {
                changed.push((cells, text.clone()));
            }
            printed.insert(name, text);
        }
        self.printed = printed;
        if matches!(self.format, OutputFormat::Table | OutputFormat::Wide) {
            let cells: Vec<Vec<String>> = changed.into_iter().map(|(cells, _)| cells).collect();
            return Ok(if cells.is_empty() { String::new() } else { self.table::<R>(&cells) });
        }
        Ok(changed.into_iter().map(|(_, text)| text).collect())
    }

    fn cells<R: Row>(&self, row: &R) -> Vec<String> {
        let cells = row.cells();
        cells.iter().take(self.columns::<R>()).map(|cell| escape_controls(cell)).collect()
    }

    fn columns<R: Row>(&self) -> usize {
        if self.format == OutputFormat::Wide { R::HEADERS.len() } else { R::NARROW }
    }

    fn table<R: Row>(&mut self, rows: &[Vec<String>]) -> String {
        let headers: Vec<String> =
            R::HEADERS[..self.columns::<R>()].iter().map(|header| (*header).to_owned()).collect();
        let headers = Some(headers).filter(|_| std::mem::take(&mut self.headers));
        let lines: Vec<&Vec<String>> = headers.iter().chain(rows).collect();
        if self.widths.is_empty() {
            let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
            self.widths = (0..self.columns::<R>()).map(|c| width(c).unwrap_or(0)).collect();
        }
        lines.iter().map(|line| align(line, &self.widths)).collect()
    }
}

fn align(cells: &[String], widths: &[usize]) -> String {
    let padded: Vec<String> =
        cells.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
    padded.join("   ").trim_end().to_owned() + "\n"
}

/// Aligns the cells of lines in columns.
pub(crate) fn align_all(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    lines.iter().map(|line| align(line, &widths)).collect()
}

/// Lists the first few, and the number of the others.
pub fn list_first(all: &[String]) -> String {
    match all.len() {
        0 => "<none>".to_owned(),
        1..=3 => all.join(","),
        more => format!("{} + {} more...", all[..3].join(","), more - 3),
    }
}

/// As kubectl prints ages.
pub fn format_age(seconds: u64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let ages = [0, 119, 120, 7_199, 7_200, 172_800].map(format_age);
        assert_eq!(ages, ["0s", "119s", "2m", "119m", "2h", "2d"]);
    }

    #[derive(Clone, Serialize)]
    struct Port {
        name: &'static str,
        number: u16,
    }

    impl Row for Port {
        const PLURAL: &'static str = "ports";
        const HEADERS: &'static [&'static str] = &["NAME", "PORT"];
        const NARROW: usize = 1;

        fn cells(&self) -> Vec<String> {
            vec![self.name.to_owned(), self.number.to_string()]
        }

        fn name(&self) -> String {
            self.name.to_owned()
        }
    }

    const A: Port = Port { name: "a", number: 80 };
    const LONGER: Port = Port { name: "longer", number: 8080 };

    fn printer(format: OutputFormat, no_headers: bool) -> RowPrinter {
        RowPrinter::new(&Output { format, no_headers, watch: true })
    }

    fn printed(format: OutputFormat, no_headers: bool) -> String {
        let mut text = Vec::new();
        printer(format, no_headers).print_all(&[A, LONGER], &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn columns_line_up_and_wide_shows_more() {
        let wide = printed(OutputFormat::Wide, false);
        assert_eq!(wide, "NAME     PORT\na        80\nlonger   8080\n");
        assert_eq!(printed(OutputFormat::Table, false), "NAME\na\nlonger\n");
        assert_eq!(printed(OutputFormat::Wide, true), "a        80\nlonger   8080\n");
    }

    #[test]
    fn what_others_wrote_does_not_control_the_terminal() {
        let evil = Port { name: "a\u{1b}[2J\rb\u{9b}1m", number: 80 };
        for format in [OutputFormat::Table, OutputFormat::Name] {
            let mut text = Vec::new();
            printer(format, true).print_all(std::slice::from_ref(&evil), &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(!text.trim_end_matches('\n').contains(char::is_control), "{text:?}");
            assert!(
                !printer(format, true)
                    .changed(std::slice::from_ref(&evil))
                    .unwrap()
                    .contains('\u{1b}')
            );
        }
    }

    #[test]
    fn machines_get_everything() {
        assert_eq!(printed(OutputFormat::Name, false), "a\nlonger\n");
        let json: serde_json::Value =
            serde_json::from_str(&printed(OutputFormat::Json, false)).unwrap();
        assert_eq!(json[1]["number"], 8080);
        assert!(printed(OutputFormat::Yaml, false).contains("- name: longer\n  number: 8080\n"));
    }

    #[test]
    fn what_is_watched_is_printed_again_when_it_changes() {
        let mut wide = printer(OutputFormat::Wide, false);
        assert_eq!(wide.changed(&[LONGER]).unwrap(), "NAME     PORT\nlonger   8080\n");
        assert_eq!(wide.changed(&[LONGER]).unwrap(), "");
        assert_eq!(wide.changed(&[A, LONGER]).unwrap(), "a        80\n", "columns stay");
        let changed = Port { number: 81, ..A };
        assert_eq!(wide.changed(&[changed.clone(), LONGER]).unwrap(), "a        81\n");
        assert_eq!(wide.changed(&[LONGER]).unwrap(), "");
        assert_eq!(wide.changed(&[changed.clone(), LONGER]).unwrap(), "a        81\n", "is back");
        // The changed column is not visible.
        let mut narrow = printer(OutputFormat::Table, true);
        assert_eq!(narrow.changed(&[A]).unwrap(), "a\n");
        assert_eq!(narrow.changed(std::slice::from_ref(&changed)).unwrap(), "");
        let mut json = printer(OutputFormat::Json, false);
        json.changed(&[A]).unwrap();
        let text = json.changed(&[changed]).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["number"], 81);
    }
}
