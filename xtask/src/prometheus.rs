//! Prometheus, for the tests of alerts and dashboard. Debian's package is unpacked, not installed:
//! tests must not add a service to a machine.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages;
use crate::process::{find_program, read_output, repository_root};

/// Unpacks the package under `target`. Its tests are skipped without it, so failures are only
/// printed.
pub fn ensure_prometheus() {
    if let Err(error) = unpack() {
        eprintln!("cannot install prometheus; skipping the tests of its rules: {error:#}");
    }
}

fn unpack() -> Result<()> {
    let folder = repository_root().join("target/prometheus");
    if folder.join("usr/bin/promtool").is_file() || find_program("promtool").is_some() {
        return Ok(());
    }
    let package = packages::download_package("prometheus", &folder)
        .context("a prometheus on the PATH will do")?;
    read_output(Command::new("dpkg-deb").arg("--extract").args([&package, &folder]))?;
    fs::remove_file(&package).with_context(|| package.display().to_string())
}
