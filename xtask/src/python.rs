//! Packages of Python's that some tests use: the Kubernetes project's client, for one of the
//! embedded API, and Helm, for those of the chart.

use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{find, output, root};

/// A package, and what of it is imported.
const PACKAGES: [(&str, &str); 2] =
    [("kubernetes", "kubernetes"), ("helm-python-sdk", "helm_python")];

/// Installs them in an environment of their own, under `target`. The tests do without where that
/// can't be done, so this only says so.
pub fn ensure() {
    for (package, import) in PACKAGES {
        if let Err(error) = install(package, import) {
            eprintln!("{package} can't be installed, its tests will be left out: {error:#}");
        }
    }
}

fn install(package: &str, import: &str) -> Result<()> {
    let environment = root().join("target/python");
    let python = environment.join("bin/python");
    let import = format!("import {import}");
    if output(Command::new(&python).args(["-c", &import])).is_ok() {
        return Ok(());
    }
    eprintln!("installing the Python package {package} in {}", environment.display());
    if !python.exists() {
        let system = find("python3").context("there is no python3")?;
        output(Command::new(system).args(["-m", "venv", "--clear"]).arg(&environment))?;
    }
    output(Command::new(&python).args(["-m", "pip", "install", "--quiet", package]))?;
    Ok(())
}
