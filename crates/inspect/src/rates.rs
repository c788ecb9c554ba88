//! Rates per second: the difference of two readings of the counters.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::reading::Reading;
use super::{Selector, Traffic};

/// The counters at one time.
#[derive(Clone, Debug, Default)]
pub struct CounterSample {
    services: BTreeMap<String, Traffic>,
    backends: BTreeMap<String, Traffic>,
    reasons: Vec<(&'static str, u64)>,
}

/// Rates per second between two samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    pub seconds: f64,
    /// The sum over all Services.
    pub total: Rate,
    pub services: Vec<Rate>,
    pub backends: Vec<Rate>,
    /// Reasons that were counted, the most frequent first.
    pub reasons: Vec<ReasonRate>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    pub name: String,
    pub new_flows: f64,
    /// Forward: from clients to backends.
    pub forward_packets: f64,
    pub reverse_packets: f64,
    pub forward_bytes: f64,
    pub reverse_bytes: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonRate {
    pub reason: &'static str,
    pub packets: f64,
    /// The counter's value.
    pub total: u64,
}

/// Sort key of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Packets per second, both directions
    #[default]
    Packets,
    /// New connections per second
    Connections,
    /// Bytes per second, both directions
    Bytes,
    /// Name of the Service or backend
    Name,
}

impl CounterSample {
    /// Counters of the selected Services and their backends.
    pub fn of(reading: &Reading, reasons: Vec<(&'static str, u64)>, selector: &Selector) -> Self {
        let mut sample = Self { reasons, ..Self::default() };
        for (index, owner) in &reading.service_ports {
            if selector.matches(&owner.service) {
                let traffic = reading.service_traffic.get(index).copied().unwrap_or_default();
                let service = sample.services.entry(owner.service.to_string()).or_default();
                *service = Traffic::sum([*service, traffic]);
            }
        }
        for backend in super::list_backends(reading, selector) {
            let name = format!("{}/{}", backend.address, backend.protocol);
            sample.backends.insert(name, backend.traffic);
        }
        sample
    }
}

impl Rates {
    pub fn between(before: &CounterSample, after: &CounterSample, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let rates = |before: &BTreeMap<String, Traffic>, after: &BTreeMap<String, Traffic>| {
            let rate = |(name, traffic): (&String, &Traffic)| {
                Rate::between(name, before.get(name), traffic, seconds)
            };
            after.iter().map(rate).collect::<Vec<_>>()
        };
        let services = rates(&before.services, &after.services);
        let old: BTreeMap<_, _> = before.reasons.iter().copied().collect();
        let reason = |&(reason, total): &(&'static str, u64)| {
            let new = total.saturating_sub(old.get(reason).copied().unwrap_or(0));
            ReasonRate { reason, packets: new as f64 / seconds, total }
        };
        let mut reasons: Vec<ReasonRate> =
            after.reasons.iter().map(reason).filter(|reason| reason.total > 0).collect();
        reasons.sort_by(|one, other| {
            other.packets.total_cmp(&one.packets).then(other.total.cmp(&one.total))
        });
        Self {
            seconds,
            total: Rate::sum(&services),
            services,
            backends: rates(&before.backends, &after.backends),
            reasons,
        }
    }

    pub fn sort(&mut self, by: Sort) {
        for rates in [&mut self.services, &mut self.backends] {
            // Equal ones stay in the order of names.
            rates.sort_by(|one, other| one.name.cmp(&other.name));
            match by {
                Sort::Name => {}
                by => rates.sort_by(|one, other| other.key(by).total_cmp(&one.key(by))),
            }
        }
    }
}

impl Rate {
    fn between(name: &str, before: Option<&Traffic>, after: &Traffic, seconds: f64) -> Self {
        let none = Traffic::default();
        // Counters restart at zero when their index gets another owner: then all was counted since.
        let before = before.filter(|before| before.new_flows <= after.new_flows).unwrap_or(&none);
        let rate = |of: fn(&Traffic) -> u64| of(after).saturating_sub(of(before)) as f64 / seconds;
        Self {
            name: name.to_owned(),
            new_flows: rate(|t| t.new_flows),
            forward_packets: rate(|t| t.forward_packets),
            reverse_packets: rate(|t| t.reverse_packets),
            forward_bytes: rate(|t| t.forward_bytes),
            reverse_bytes: rate(|t| t.reverse_bytes),
        }
    }

    fn sum(rates: &[Self]) -> Self {
        // The sum of an empty iterator is -0.
        let sum = |of: fn(&Self) -> f64| 0.0 + rates.iter().map(of).sum::<f64>();
        Self {
            name: "all".to_owned(),
            new_flows: sum(|rate| rate.new_flows),
            forward_packets: sum(|rate| rate.forward_packets),
            reverse_packets: sum(|rate| rate.reverse_packets),
            forward_bytes: sum(|rate| rate.forward_bytes),
            reverse_bytes: sum(|rate| rate.reverse_bytes),
        }
    }

    fn key(&self, by: Sort) -> f64 {
        match by {
            Sort::Packets => self.forward_packets + self.reverse_packets,
            Sort::Connections => self.new_flows,
            Sort::Bytes => self.forward_bytes + self.reverse_bytes,
            Sort::Name => 0.0,
        }
    }
}

/// Formats with three digits and a unit, such as `12.3k`.
pub fn format_short(number: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let mut number = number;
    let mut unit = 0;
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = match number {
        0.0 => 0,
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_not_negative() {
        assert!(Rate::sum(&[]).forward_packets.is_sign_positive());
    }

    fn sample(traffic: &[(&str, u64, u64)], drops: u64) -> CounterSample {
        let counted = |&(name, new_flows, packets): &(&str, u64, u64)| {
            let traffic = Traffic {
                new_flows,
                forward_packets: packets,
                forward_bytes: packets * 100,
                ..Traffic::default()
            };
            (name.to_owned(), traffic)
        };
        let services: BTreeMap<_, _> = traffic.iter().map(counted).collect();
        let reasons = vec![("no_backend", drops), ("malformed", 7), ("no_route", 0)];
        CounterSample { backends: services.clone(), services, reasons }
    }

    #[test]
    fn rates_are_what_was_counted_between_a_second() {
        let before = sample(&[("a/web", 10, 100), ("a/api", 5, 50)], 3);
        let after = sample(&[("a/web", 14, 300), ("a/api", 105, 52), ("a/new", 2, 4)], 9);
        let mut rates = Rates::between(&before, &after, Duration::from_secs(2));
        rates.sort(Sort::Packets);
        let names = |rates: &Rates| -> Vec<String> {
            rates.services.iter().map(|rate| rate.name.clone()).collect()
        };
        assert_eq!(names(&rates), ["a/web", "a/new", "a/api"]);
        let web = &rates.services[0];
        assert_eq!((web.new_flows, web.forward_packets, web.forward_bytes), (2.0, 100.0, 10_000.0));
        assert_eq!(rates.total.new_flows, 53.0);
        rates.sort(Sort::Connections);
        assert_eq!(names(&rates), ["a/api", "a/web", "a/new"]);
        rates.sort(Sort::Name);
        assert_eq!(names(&rates), ["a/api", "a/new", "a/web"]);
        let reasons: Vec<_> = rates.reasons.iter().map(|r| (r.reason, r.packets)).collect();
        assert_eq!(reasons, [("no_backend", 3.0), ("malformed", 0.0)], "those that were met");
    }

    #[test]
    fn counters_that_began_anew_are_not_negative() {
        let rates = Rates::between(
            &sample(&[("a/web", 1000, 5000)], 0),
            &sample(&[("a/web", 10, 60)], 0),
            Duration::from_secs(1),
        );
        assert_eq!((rates.total.new_flows, rates.total.forward_packets), (10.0, 60.0));
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.5, 9.99, 12.34, 999.0, 999.6, 12_345.0, 4.2e9, 7e15].map(format_short);
        assert_eq!(shown, ["0", "0.50", "9.99", "12.3", "999", "1.00k", "12.3k", "4.20G", "7000T"]);
    }
}
