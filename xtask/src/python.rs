//! The Kubernetes project's Python client, for one test of the embedded API.

use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{find, output, root};

const PACKAGE: &str = "kubernetes";

/// Installs it in an environment of its own, under `target`. The test does without where that
/// can't be done, so this only says so.
pub fn ensure() {
    if let Err(error) = install() {
        eprintln!("the Python client can't be installed, its test will be left out: {error:#}");
    }
}

fn install() -> Result<()> {
    let environment = root().join("target/python");
    let python = environment.join("bin/python");
    let import = format!("import {PACKAGE}");
    if python.exists() && output(Command::new(&python).args(["-c", &import])).is_ok() {
        return Ok(());
    }
    let system = find("python3").context("there is no python3")?;
    eprintln!("installing the Python package {PACKAGE} in {}", environment.display());
    output(Command::new(system).args(["-m", "venv", "--clear"]).arg(&environment))?;
    output(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
    Ok(())
}
