//! The terminal in raw mode.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lb_inspect::Sort;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};

use super::rates::Watcher;
use super::screen::{Next, Screen};

/// Longest time until a signal is noticed.
const PATIENCE: Duration = Duration::from_millis(200);

/// Shows rates until the user quits. The terminal is restored at the end, also after a signal or a
/// panic.
pub(crate) fn run_terminal(watcher: &mut Watcher, interval: Duration, sort: Sort) -> Result<()> {
    let interrupted = ending()?;
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let _restored = Restored;
    let mut screen = Screen::new(sort);
    let mut due = Instant::now() + interval;
    while !interrupted.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame))?;
        let wait = due.saturating_duration_since(Instant::now()).min(PATIENCE);
        if event::poll(wait)? {
            // Other events, such as a new size, only need another drawing.
            if let Event::Key(key) = event::read()?
                && screen.press(key) == Next::End
            {
                break;
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            let rates = watcher.look()?;
            if !screen.is_held {
                screen.set(rates);
            }
        }
    }
    Ok(())
}

/// Restores the terminal when it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Returns a flag that is set by SIGTERM and similar signals.
fn ending() -> Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let is_ending = Arc::new(AtomicBool::new(false));
    let (mut terminate, mut hang_up, mut interrupt) = {
        let _inside = runtime.enter();
        let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
        let [terminate, hang_up, interrupt] = kinds.map(signal);
        (terminate?, hang_up?, interrupt?)
    };
    let flag = Arc::clone(&is_ending);
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        flag.store(true, Ordering::Relaxed);
    });
    Ok(is_ending)
}
