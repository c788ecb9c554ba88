//! Metrics of the agent's process, under the names that all Prometheus clients use, and its
//! anonymous memory, for which they have no name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::time::Instant;

use lb_waits::{LongWait, Waits};
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// What is running: the version, with the commit in an image of `cargo xtask image` (`0.1.0-g0123456789ab`). Builds by
/// cargo alone have no commit, so that a commit makes no developer compile everything again.
pub const VERSION: &str = match option_env!("MILLRACE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// A registry with the metrics that every process of Millrace has: its version, and its resources.
pub fn process_registry() -> Registry {
    let mut registry = Registry::default();
    let build = Info::new(vec![("version", VERSION)]);
    registry.register("millrace_build", "What is running", build);
    registry.register_collector(Box::new(ProcessMetrics));
    registry.register_collector(Box::new(WaitMetrics(Waits::of_process())));
    registry
}

/// How long something has been waited for, if that is long.
#[derive(Debug)]
struct WaitMetrics(Waits);

impl Collector for WaitMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "How long this process has been waiting for something, if for more than 5 s";
        let name = "millrace_waiting_seconds";
        let waits = self.0.long(Instant::now());
        if waits.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, seconds) in label_waits(&waits) {
            ConstGauge::new(seconds as f64).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Two waits may have the same labels. Of these the longest counts.
fn label_waits(waits: &[LongWait]) -> BTreeMap<[(&'static str, &str); 2], u64> {
    let mut longest = BTreeMap::new();
    for wait in waits {
        let labels = [("for", wait.resource.name()), ("subject", wait.subject.as_str())];
        let seconds = longest.entry(labels).or_insert(wait.seconds);
        *seconds = wait.seconds.max(*seconds);
    }
    longest
}

#[derive(Debug)]
struct ProcessMetrics;

/// Fields of `/proc/self/stat`, in its own units.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    processor_ticks: u64,
    threads: u64,
    /// Since boot.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    /// Fields are counted from the end of the program's name, which may contain anything.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // As proc(5) counts them: the first one after the name is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            processor_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// The soft limit of this name; `None` if it is unlimited.
fn parse_soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Anonymous memory in bytes: without files and shared maps.
fn parse_anonymous_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
}

/// When the machine booted, in seconds since 1970.
fn parse_boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn read_process_metrics() -> io::Result<Vec<(&'static str, &'static str, MetricType, f64)>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let own_memory = parse_anonymous_memory(&fs::read_to_string("/proc/self/status")?);
    let limits = fs::read_to_string("/proc/self/limits")?;
    let boot = parse_boot_time(&fs::read_to_string("/proc/stat")?);
    let descriptors = fs::read_dir("/proc/self/fd")?.count();
    let (Some(stat), Some(own_memory), Some(boot)) = (ProcessStat::parse(&stat), own_memory, boot)
    else {
        return Err(io::Error::other(
            "/proc/self/stat, /proc/self/status or /proc/stat does not have the format in proc(5)",
        ));
    };
    let ticks = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100) as f64;
    let page = sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or(4_096) as f64;
    let most = |name| parse_soft_limit(&limits, name).map_or(f64::INFINITY, |most| most as f64);
    let gauge = |name, help, value| (name, help, MetricType::Gauge, value);
    Ok(vec![
        (
            "process_cpu_seconds",
            "Time that processors worked for the agent",
            MetricType::Counter,
            stat.processor_ticks as f64 / ticks,
        ),
        gauge(
            "process_resident_memory_bytes",
            "Memory that the agent has before it: its own, its program, and what it has looked at of the maps",
            stat.resident_pages as f64 * page,
        ),
        gauge(
            "millrace_agent_memory_bytes",
            "The agent's own memory, without the maps and its program",
            own_memory as f64,
        ),
        gauge(
            "process_virtual_memory_bytes",
            "The agent's address space",
            stat.virtual_bytes as f64,
        ),
        gauge(
            "process_virtual_memory_max_bytes",
            "What its address space may grow to",
            most("Max address space"),
        ),
        gauge("process_open_fds", "Files and sockets it has open", descriptors as f64),
        gauge("process_max_fds", "Files and sockets it may have open", most("Max open files")),
        gauge("process_threads", "Its threads", stat.threads as f64),
        gauge(
            "process_start_time_seconds",
            "When it was started",
            boot as f64 + stat.start_ticks as f64 / ticks,
        ),
    ])
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = match read_process_metrics() {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "process metrics not read");
                return Ok(());
            }
        };
        for (name, help, kind, value) in read {
            let metric = encoder.encode_descriptor(name, help, None, kind)?;
            match kind {
                MetricType::Counter => ConstCounter::new(value).encode(metric)?,
                _ => ConstGauge::new(value).encode(metric)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_stat_are_parsed() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 0 0 30 12 0 0 20 0 3 0 5000 700000 25 1";
        let expected = ProcessStat {
            processor_ticks: 42,
            threads: 3,
            start_ticks: 5_000,
            virtual_bytes: 700_000,
            resident_pages: 25,
        };
        assert_eq!(ProcessStat::parse(text), Some(expected));
        assert_eq!(ProcessStat::parse("7 (cut) S 1"), None);
    }

    #[test]
    fn limits_are_the_soft_ones() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max address space         unlimited            unlimited            bytes\n\
                      Max open files            1024                 4096                 files\n";
        assert_eq!(parse_soft_limit(limits, "Max open files"), Some(1_024));
        assert_eq!(parse_soft_limit(limits, "Max address space"), None);
        assert_eq!(
            parse_boot_time("cpu 1 2\nbtime 1700000000\nprocesses 3\n"),
            Some(1_700_000_000)
        );
    }

    #[test]
    fn a_long_wait_is_a_metric_until_it_is_over() {
        let waits = Waits::default();
        let mut registry = Registry::default();
        let collector = WaitMetrics(waits.clone());
        registry.register_collector(Box::new(collector));
        let scrape = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let begun = Instant::now().checked_sub(std::time::Duration::from_secs(90)).unwrap();
        let wait = waits.begin_at(begun, lb_waits::Resource::ApiServer, "list of Node objects");
        let _short = waits.begin(lb_waits::Resource::Key, "key");
        let text = scrape();
        let series =
            "millrace_waiting_seconds{for=\"api_server\",subject=\"list of Node objects\"} 9";
        assert!(text.contains(series) && !text.contains("key\""), "{text}");
        drop(wait);
        assert!(!scrape().contains("waiting"));
    }

    #[test]
    fn own_memory_is_anonymous_memory() {
        let status = "VmRSS:\t  350048 kB\nRssAnon:\t    6984 kB\nRssFile:\t  343064 kB\n";
        assert_eq!(parse_anonymous_memory(status), Some(6_984 * 1_024));
        assert_eq!(parse_anonymous_memory("VmRSS:\t  350048 kB\n"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let read = read_process_metrics().unwrap();
        let value = |wanted| read.iter().find(|(name, ..)| *name == wanted).unwrap().3;
        let own = value("millrace_agent_memory_bytes");
        assert!(own > 0.0 && own < value("process_resident_memory_bytes"), "{own}");
        assert!(value("process_open_fds") >= 1.0);
        assert!(value("process_start_time_seconds") > 1e9);
    }
}
