//! h2load: requests over HTTP/1.1 and HTTP/2, and how long each takes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ::tests::worlds::topology::Host;
use anyhow::{Context, Result, ensure};

use super::pinned;
use super::proxy::{HOST, ProxyPorts};

/// A load of requests for `/`.
pub struct RequestLoad {
    pub tls: bool,
    pub http2: bool,
    pub clients: u32,
    /// Requests of a client at the same time.
    pub streams: u32,
    pub requests: u64,
    /// Requests per second of each client; `None`: as fast as possible.
    pub rate: Option<u64>,
}

impl RequestLoad {
    /// Returns the requests per second. Fails if a request fails. Writes the time of each request to a file.
    pub fn run(&self, host: &Host, to: &ProxyPorts, times: Option<&Path>) -> Result<f64> {
        let (scheme, port) = if self.tls { ("https", to.https) } else { ("http", to.http) };
        let mut arguments = vec![
            format!("--connect-to=127.0.0.1:{port}"),
            format!("--requests={}", self.requests),
            format!("--clients={}", self.clients),
            format!("--max-concurrent-streams={}", self.streams),
        ];
        if !self.http2 {
            arguments.push("--h1".to_owned());
        }
        arguments.extend(self.rate.map(|rate| format!("--rps={rate}")));
        arguments.extend(times.map(|file| format!("--log-file={}", file.display())));
        arguments.push(format!("{scheme}://{HOST}:{port}/"));
        let text = pinned::run_client(host, "h2load", &arguments)?;
        rate(&text, self.requests).with_context(|| format!("h2load printed:\n{text}"))
    }
}

fn rate(text: &str, requests: u64) -> Result<f64> {
    let succeeded = format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx");
    ensure!(text.contains(&succeeded), "not all {requests} requests succeeded");
    let finished = text.lines().find_map(|line| line.strip_prefix("finished in "));
    let rate = finished.and_then(|line| line.split(", ").nth(1)?.strip_suffix(" req/s"));
    Ok(rate.context("there is no rate")?.parse()?)
}

/// The times of all requests in a log file.
pub fn read_request_times(file: &Path) -> Result<Vec<Duration>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let last = |line: &str| line.split('\t').nth(2)?.parse().ok().map(Duration::from_micros);
    Ok(text.lines().filter_map(last).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_is_an_error() {
        let text = |good: u64, bad: u64| {
            format!(
                "finished in 1.50s, 66666.67 req/s, 8.49MB/s\n\
                 status codes: {good} 2xx, 0 3xx, 0 4xx, {bad} 5xx\n"
            )
        };
        assert!(rate(&text(100, 0), 100).is_ok_and(|rate| rate == 66_666.67));
        assert!(rate(&text(99, 1), 100).is_err());
    }
}
