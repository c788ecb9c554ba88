//! `/livez`, `/readyz`, `/metrics` and the backup.

use std::fmt::Write as _;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;

use super::respond::{self, ResponseBody};
use crate::storage::meter::FLUSH_SECONDS_BUCKETS;
use crate::storage::{Storage, snapshot};

const TEXT: &str = "text/plain; charset=utf-8";

/// A failed disk does not make the server dead: it serves reads, and recovers without a restart.
pub(crate) fn respond_live() -> Response<ResponseBody> {
    respond::respond_full(200, TEXT, "ok")
}

/// `verbose` lists the checks even if all succeed, as a real API server does.
pub(crate) fn respond_ready(storage: &Storage, verbose: bool) -> Response<ResponseBody> {
    match storage.figures().failure {
        None if verbose => {
            respond::respond_full(200, TEXT, "[+]ping ok\n[+]storage ok\nreadyz check passed\n")
        }
        None => respond::respond_full(200, TEXT, "ok"),
        Some(failure) => {
            let text = format!("[+]ping ok\n[-]storage failed: {failure}\nreadyz check failed\n");
            respond::respond_full(500, TEXT, text)
        }
    }
}

/// In the text format of Prometheus.
pub(crate) fn respond_metrics(storage: &Storage) -> Response<ResponseBody> {
    let figures = storage.figures();
    let writable = u8::from(figures.failure.is_none());
    let mut text = String::new();
    let mut add = |name: &str, type_: &str, help: &str, value: String| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {type_}\n{name} {value}");
    };
    for (name, type_, help, value) in [
        ("millrace_api_storage_bytes", "gauge", "Size of the store on disk.", storage.size()),
        ("millrace_api_objects", "gauge", "Stored objects.", storage.count() as u64),
        ("millrace_api_revision", "counter", "Revision of the store.", storage.revision()),
        ("millrace_api_storage_writable", "gauge", "1 if writes succeed.", writable.into()),
        (
            "millrace_api_flush_failures_total",
            "counter",
            "Flushes to disk that failed.",
            figures.failures,
        ),
    ] {
        add(name, type_, help, value.to_string());
    }
    let name = "millrace_api_flush_duration_seconds";
    let _ = writeln!(text, "# HELP {name} Time of flushes to disk.\n# TYPE {name} histogram");
    let mut count = 0;
    for (index, flushes) in figures.flushes.iter().enumerate() {
        count += flushes;
        let limit = FLUSH_SECONDS_BUCKETS.get(index).map_or("+Inf".to_owned(), f64::to_string);
        let _ = writeln!(text, "{name}_bucket{{le=\"{limit}\"}} {count}");
    }
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", figures.seconds);
    respond::respond_full(200, "text/plain; version=0.0.4; charset=utf-8", text)
}

pub(crate) fn respond_backup(storage: &Storage) -> Response<ResponseBody> {
    let lines =
        snapshot::snapshot_lines(storage.all()).map(|line| Ok(Frame::data(Bytes::from(line))));
    let mut response = respond::respond_full(200, "application/jsonl", Bytes::new());
    *response.body_mut() = StreamBody::new(stream::iter(lines)).boxed_unsync();
    response
}
