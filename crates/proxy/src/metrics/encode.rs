//! Adds the workers up for a scrape.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::owner::BUCKETS;
use super::{
    Kinds, LabelValue, Listener, Metrics, MirrorResult, OwnerCounters, UpstreamError,
    WorkerCounters, lock,
};

/// Labels of the owners that have no series of their own, and of requests without a route.
const OTHER: (&str, &str) = ("", "other");
const NONE: (&str, &str) = ("", "");

type Sums = BTreeMap<(String, String), OwnerCounters>;

impl Collector for Metrics {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let workers = self.workers();
        encode_kinds(&mut to, &workers, "connections", "Accepted connections", "listener", |w| {
            &w.connections
        })?;
        encode_open(&mut to, &workers)?;
        let help = "Connections closed before their first request, by the limit that they exceeded";
        encode_kinds(&mut to, &workers, "refused_connections", help, "reason", |w| &w.refused)?;
        let help = "Connections and requests that were ended because a client exceeded a limit";
        encode_kinds(&mut to, &workers, "cut_off", help, "reason", |w| &w.cut_off)?;
        let help = "Responses that wait until clients of HTTP/2 take them";
        to.encode_descriptor("response_buffer", help, Some(&Unit::Bytes), MetricType::Gauge)?
            .encode_gauge(&sum(&workers, |w| &w.buffered))?;
        let help = "TLS handshakes of clients by result";
        encode_kinds(&mut to, &workers, "tls_handshakes", help, "result", |w| &w.handshakes)?;
        let dropped = sum(&workers, |w| &w.log_entries_dropped);
        let help = "Entries of the access log that were dropped because their reader was too slow";
        to.encode_descriptor("access_log_entries_dropped", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, f64>(&dropped, None)?;
        let help =
            "Spans that were dropped because there were too many, or their reader was too slow";
        encode_kinds(&mut to, &workers, "spans_dropped", help, "reason", |w| &w.spans_dropped)?;
        encode_owners(&mut to, &sum_owners(&workers))
    }
}

type Workers = [std::sync::Arc<WorkerCounters>];

fn sum(workers: &Workers, counter: impl Fn(&WorkerCounters) -> &AtomicU64) -> u64 {
    workers.iter().map(|worker| counter(worker).load(Ordering::Relaxed)).sum()
}

fn encode_kinds<K: LabelValue>(
    to: &mut DescriptorEncoder,
    workers: &Workers,
    name: &str,
    help: &str,
    label: &str,
    kinds: impl Fn(&WorkerCounters) -> &Kinds<K>,
) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (kind, value) in K::ALL {
        let count: u64 = workers.iter().map(|worker| kinds(worker).get(*kind)).sum();
        metric
            .encode_family(&[(label, *value)])?
            .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
    }
    Ok(())
}

fn encode_open(to: &mut DescriptorEncoder, workers: &Workers) -> Result<(), Error> {
    let help = "Open connections of clients";
    let mut metric = to.encode_descriptor("open_connections", help, None, MetricType::Gauge)?;
    for (listener, value) in Listener::ALL {
        let open = workers.iter().map(|w| w.open[listener.index()].load(Ordering::Relaxed));
        metric.encode_family(&[("listener", *value)])?.encode_gauge(&open.sum::<i64>())?;
    }
    Ok(())
}

fn sum_owners(workers: &Workers) -> Sums {
    let mut sums = Sums::new();
    let mut add = |namespace: &str, name: &str, counters: &OwnerCounters| {
        sums.entry((namespace.to_owned(), name.to_owned())).or_default().add(counters);
    };
    for worker in workers {
        add(NONE.0, NONE.1, &worker.none);
        add(OTHER.0, OTHER.1, &worker.other);
        for (owner, counters) in lock(&worker.owners).iter() {
            add(&owner.namespace, &owner.name, counters);
        }
    }
    sums
}

fn encode_owners(to: &mut DescriptorEncoder, sums: &Sums) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(
        "requests",
        "Requests by class of status code",
        None,
        MetricType::Counter,
    )?;
    for (owner, counters) in sums {
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().zip(&counters.codes) {
            encode_count(&mut metric, owner, Some(("code", class)), count)?;
        }
    }
    let help = "Time from the head of a request to the end of its response";
    let mut metric = to.encode_descriptor(
        "request_duration",
        help,
        Some(&Unit::Seconds),
        MetricType::Histogram,
    )?;
    for (owner, counters) in sums {
        encode_histogram(&mut metric, owner, counters)?;
    }
    let mut metric = to.encode_descriptor(
        "upstream_errors",
        "Failed tries to get a response from an endpoint",
        None,
        MetricType::Counter,
    )?;
    for (owner, counters) in sums {
        for (kind, value) in UpstreamError::ALL {
            let count = &counters.errors.counts[kind.index()];
            encode_count(&mut metric, owner, Some(("reason", value)), count)?;
        }
    }
    let help = "Copies of requests for the server in mirror-target, of Ingresses that have one";
    let mut metric = to.encode_descriptor("mirrored_requests", help, None, MetricType::Counter)?;
    let is_counted = |counters: &OwnerCounters| {
        counters.mirrored.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    };
    for (owner, counters) in sums.iter().filter(|(_, counters)| is_counted(counters)) {
        for (kind, value) in MirrorResult::ALL {
            let count = &counters.mirrored.counts[kind.index()];
            encode_count(&mut metric, owner, Some(("result", value)), count)?;
        }
    }
    type Field = fn(&OwnerCounters) -> &AtomicU64;
    let fields: [(&str, &str, Field); 4] = [
        ("received_body_bytes", "Octets of request bodies", |c| &c.received),
        ("sent_body_bytes", "Octets of response bodies", |c| &c.sent),
        ("retries", "Requests that were sent again, once for each try", |c| &c.retries),
        ("ejections", "Endpoints that were ejected because their requests failed", |c| {
            &c.ejections
        }),
    ];
    for (name, help, field) in fields {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (owner, counters) in sums {
            encode_count(&mut metric, owner, None, field(counters))?;
        }
    }
    Ok(())
}

fn encode_count(
    metric: &mut MetricEncoder,
    (namespace, name): &(String, String),
    label: Option<(&str, &str)>,
    count: &AtomicU64,
) -> Result<(), Error> {
    let mut labels = vec![("namespace", namespace.as_str()), ("ingress", name.as_str())];
    labels.extend(label);
    let count = count.load(Ordering::Relaxed);
    metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)
}

fn encode_histogram(
    metric: &mut MetricEncoder,
    (namespace, name): &(String, String),
    counters: &OwnerCounters,
) -> Result<(), Error> {
    let bounds = BUCKETS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::MAX]);
    let counts = counters.buckets.iter().map(|count| count.load(Ordering::Relaxed));
    let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
    let seconds = counters.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
    let total = buckets.iter().map(|(_, count)| count).sum();
    metric
        .encode_family(&[("namespace", namespace.as_str()), ("ingress", name.as_str())])?
        .encode_histogram::<NoLabelSet>(seconds, total, &buckets, None)
}
