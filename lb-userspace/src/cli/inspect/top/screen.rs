//! The contents of the screen, and the effects of keys. Independent of the terminal.

use lb_inspect::{Rates, Sort, format_short};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table};

use super::rates::{HEADERS, rate_cells};

/// Height of the reasons, with their frame and headers.
const REASONS: u16 = 9;

#[derive(Debug)]
pub(crate) struct Screen {
    rates: Rates,
    sort: Sort,
    shows_backends: bool,
    /// Whether updates are paused.
    pub is_held: bool,
    /// The first visible row.
    first: usize,
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    GoOn,
    End,
}

impl Screen {
    pub fn new(sort: Sort) -> Self {
        let rates = Rates::default();
        Self { rates, sort, shows_backends: false, is_held: false, first: 0 }
    }

    pub fn set(&mut self, rates: Rates) {
        self.rates = rates;
        self.rates.sort(self.sort);
    }

    pub fn press(&mut self, key: KeyEvent) -> Next {
        // Some terminals report releases, too.
        if key.kind == KeyEventKind::Release {
            return Next::GoOn;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            // In raw mode Ctrl-C is no signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Next::End;
            }
            KeyCode::Char('p') => self.sort = Sort::Packets,
            KeyCode::Char('c') => self.sort = Sort::Connections,
            KeyCode::Char('b') => self.sort = Sort::Bytes,
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Tab => {
                self.shows_backends = !self.shows_backends;
                self.first = 0;
            }
            KeyCode::Down => self.first += 1,
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first += 10,
            KeyCode::PageUp => self.first = self.first.saturating_sub(10),
            KeyCode::Home => self.first = 0,
            _ => {}
        }
        self.rates.sort(self.sort);
        Next::GoOn
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let heights = [
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(REASONS),
            Constraint::Length(1),
        ];
        let [top, middle, bottom, foot] = Layout::vertical(heights).areas(frame.area());
        let [new, packets_in, packets_out, bytes_in, bytes_out] = rate_cells(&self.rates.total);
        let held = if self.is_held { "  PAUSED" } else { "" };
        let summary = format!(
            "millrace top: {new} new connections/s, {packets_in} packets/s in, {packets_out} out, \
             {bytes_in} bytes/s in, {bytes_out} out{held}"
        );
        frame.render_widget(Line::from(summary).style(Style::new().bold()), top);

        let rates = if self.shows_backends { &self.rates.backends } else { &self.rates.services };
        // Not past the end, also after rows were removed.
        self.first = self.first.min(rates.len().saturating_sub(1));
        let what = if self.shows_backends { "BACKEND" } else { "SERVICE" };
        let rows = rates
            .iter()
            .skip(self.first)
            .map(|rate| Row::new([vec![rate.name.clone()], rate_cells(rate).to_vec()].concat()));
        let widths = [Constraint::Min(20)].into_iter().chain([Constraint::Length(13); 5]);
        let headers = Row::new([&[what][..], &HEADERS].concat())
            .style(Style::new().add_modifier(Modifier::REVERSED));
        let name = if self.shows_backends { "Backends" } else { "Services" };
        let title = format!(" {name}: {}, by {} ", rates.len(), sorted_by(self.sort));
        let table = Table::new(rows, widths).header(headers).block(Block::bordered().title(title));
        frame.render_widget(table, middle);

        let reasons = self.rates.reasons.iter().map(|reason| {
            let total = reason.total.to_string();
            Row::new([reason.reason.to_owned(), format_short(reason.packets), total])
        });
        let widths = [Constraint::Min(20), Constraint::Length(13), Constraint::Length(20)];
        let headers = Row::new(["REASON", "PACKETS/s", "TOTAL"])
            .style(Style::new().add_modifier(Modifier::REVERSED));
        let block = Block::bordered().title(" Passed unchanged, answered or dropped ");
        frame.render_widget(Table::new(reasons, widths).header(headers).block(block), bottom);
        let keys = "tab Services/backends   p c b n sort   space pause   q quit";
        frame.render_widget(Line::from(keys), foot);
    }
}

fn sorted_by(sort: Sort) -> &'static str {
    match sort {
        Sort::Packets => "packets",
        Sort::Connections => "new connections",
        Sort::Bytes => "bytes",
        Sort::Name => "name",
    }
}

#[cfg(test)]
mod tests {
    use lb_inspect::{Rate, ReasonRate};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn rates() -> Rates {
        let rate = |name: &str, new_flows, forward_packets| Rate {
            name: name.to_owned(),
            new_flows,
            forward_packets,
            ..Rate::default()
        };
        Rates {
            seconds: 1.0,
            total: rate("all", 12.0, 1_500.0),
            services: vec![rate("default/dns", 10.0, 300.0), rate("shop/web", 2.0, 1_200.0)],
            backends: vec![rate("10.244.1.10:8080/TCP", 2.0, 1_200.0)],
            reasons: vec![ReasonRate { reason: "no_backend", packets: 3.0, total: 41 }],
        }
    }

    /// Draws a screen of this size; returns its lines.
    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Next {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn order(screen: &mut Screen) -> Vec<usize> {
        let lines = drawn(screen, 100, 24);
        let line = |name: &str| lines.iter().position(|line| line.contains(name));
        ["default/dns", "shop/web"].map(|name| line(name).expect("it is shown")).into()
    }

    #[test]
    fn services_reasons_and_sums_are_on_one_screen() {
        let mut screen = Screen::new(Sort::Packets);
        screen.set(rates());
        let text = drawn(&mut screen, 100, 24).join("\n");
        for part in [
            "12.0 new connections/s",
            "1.50k packets/s in",
            "Services: 2, by packets",
            "1.20k",
            "no_backend",
            "41",
            "q quit",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("10.244.1.10"));
        press(&mut screen, KeyCode::Tab);
        let text = drawn(&mut screen, 100, 24).join("\n");
        assert!(text.contains("10.244.1.10:8080/TCP") && !text.contains("shop/web"), "{text}");
    }

    #[test]
    fn keys_choose_the_order() {
        let mut screen = Screen::new(Sort::Packets);
        screen.set(rates());
        let is_sorted = |screen: &mut Screen| order(screen).is_sorted();
        assert!(!is_sorted(&mut screen), "web has more packets");
        press(&mut screen, KeyCode::Char('c'));
        assert!(is_sorted(&mut screen), "dns has more new connections");
        press(&mut screen, KeyCode::Char('p'));
        assert!(!is_sorted(&mut screen));
        press(&mut screen, KeyCode::Char('n'));
        assert!(is_sorted(&mut screen));
        screen.set(rates());
        assert!(is_sorted(&mut screen), "and it stays");
    }

    #[test]
    fn some_keys_end_it() {
        let mut screen = Screen::new(Sort::Packets);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Next::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(interrupt), Next::End);
        assert_eq!(press(&mut screen, KeyCode::Char('c')), Next::GoOn);
    }

    #[test]
    fn small_screens_and_scrolling_past_the_end_do_no_harm() {
        let mut screen = Screen::new(Sort::Name);
        screen.set(rates());
        for _ in 0..5 {
            press(&mut screen, KeyCode::PageDown);
        }
        assert!(drawn(&mut screen, 100, 24).join("\n").contains("shop/web"), "the last stays");
        for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
            drawn(&mut screen, width, height);
        }
        screen.set(Rates::default());
        drawn(&mut screen, 80, 24);
    }
}
