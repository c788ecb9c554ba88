//! The figures of one server, and the table of all.

use std::time::Duration;

use super::load::Load;

pub struct Figures {
    pub created: Writes,
    pub updated: Writes,
    /// One list of all objects.
    pub list: Duration,
    pub list_bytes: usize,
    /// From a write until all watchers have it.
    pub fan_out: Vec<Duration>,
    /// Anonymous memory in bytes, for each object.
    pub memory: u64,
    pub watcher_memory: u64,
}

/// Figures of the embedded API about Services.
pub struct ServiceFigures {
    pub services: usize,
    /// JSON in a list, in bytes for each.
    pub size: usize,
    /// Anonymous memory in bytes, for each.
    pub memory: u64,
    /// One list of all.
    pub list: Duration,
    /// A list of all in pages of 500.
    pub pages: Duration,
    /// A list in pages when half of them were there.
    pub pages_of_half: Duration,
}

pub struct Writes {
    pub took: Duration,
    pub latencies: Vec<Duration>,
}

pub fn print(load: &Load, all: &[(&str, Figures)]) {
    let Load { objects, watchers, clients, .. } = load;
    println!("\n{objects} objects, {clients} requests at a time, {watchers} watches\n");
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    println!("| | {} |", names.join(" | "));
    println!("| --- |{}", " --- |".repeat(all.len()));
    let row = |name: &str, of: &dyn Fn(&Figures) -> String| {
        let cells: Vec<String> = all.iter().map(|(_, figures)| of(figures)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    };
    let rate = |writes: &Writes| {
        format!("{:.0}", writes.latencies.len() as f64 / writes.took.as_secs_f64())
    };
    row("creates a second", &|figures| rate(&figures.created));
    row("create, p50 and p99 ms", &|figures| percentiles(&figures.created.latencies));
    row("updates a second", &|figures| rate(&figures.updated));
    row("update, p50 and p99 ms", &|figures| percentiles(&figures.updated.latencies));
    row("list of all objects, ms", &|figures| milliseconds(figures.list));
    row("size of this list, MB", &|figures| format!("{:.1}", figures.list_bytes as f64 / 1e6));
    row("write until all watches have it, p50 and p99 ms", &|figures| {
        percentiles(&figures.fan_out)
    });
    row("memory of an object, bytes", &|figures| figures.memory.to_string());
    row("memory of a watch, bytes", &|figures| figures.watcher_memory.to_string());
}

pub fn print_services(figures: &ServiceFigures) {
    let ServiceFigures { services, size, memory, list, pages, pages_of_half } = figures;
    println!("\n{services} Services of {size} bytes of JSON\n");
    println!(
        "| list ms | in pages of 500, ms | in pages, half of them, ms | memory of one, bytes |"
    );
    println!("| --- | --- | --- | --- |");
    let [list, pages, half] = [list, pages, pages_of_half].map(|time| milliseconds(*time));
    println!("| {list} | {pages} | {half} | {memory} |");
}

fn percentiles(latencies: &[Duration]) -> String {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let of = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
    format!("{}, {}", milliseconds(of(50)), milliseconds(of(99)))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
