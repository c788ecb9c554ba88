//! HTTP requests by curl.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Host;

/// curl's own time limit, shorter than that of [`Host::run`], so that errors name the cause.
const LIMIT: Duration = Duration::from_secs(60);

impl Host {
    /// Gets a page. Fails after a time limit, and for HTTP statuses from 400 on.
    pub fn curl(&self, url: &str) -> Result<String> {
        self.curl_with(&[], url)
    }

    /// Gets a page with more arguments for curl.
    pub fn curl_with(&self, arguments: &[&str], url: &str) -> Result<String> {
        let limit = LIMIT.as_secs().to_string();
        let quiet =
            ["curl", "--silent", "--show-error", "--fail", "--globoff", "--max-time", &limit];
        self.run([&quiet[..], arguments, &[url]].concat())
    }

    /// Downloads a page; returns its size in bytes.
    pub fn download(&self, url: &str) -> Result<usize> {
        let size =
            self.curl_with(&["--output", "/dev/null", "--write-out", "%{size_download}"], url)?;
        size.parse().with_context(|| format!("{url}: {size:?}"))
    }
}
