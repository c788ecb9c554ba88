//! Python packages for tests: the Kubernetes client, for the embedded API; Helm, for the chart; clients and servers of
//! gRPC and WebSockets, for the Ingress proxy.

use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{find_program, read_output, repository_root};

/// A package and the module to import.
const PACKAGES: [(&str, &str); 4] = [
    ("kubernetes", "kubernetes"),
    ("helm-python-sdk", "helm_python"),
    ("grpcio", "grpc"),
    ("websockets", "websockets"),
];

/// Installs the packages in a virtual environment under `target`. Their tests are skipped without
/// them, so failures are only printed.
pub fn ensure_python() {
    for (package, import) in PACKAGES {
        if let Err(error) = install_python_package(package, import) {
            eprintln!("{package} can't be installed; its tests are skipped: {error:#}");
        }
    }
}

fn install_python_package(package: &str, import: &str) -> Result<()> {
    let environment = repository_root().join("target/python");
    let python = environment.join("bin/python");
    let import = format!("import {import}");
    if read_output(Command::new(&python).args(["-c", &import])).is_ok() {
        return Ok(());
    }
    eprintln!("installing the Python package {package} in {}", environment.display());
    if !python.exists() {
        let system = find_program("python3").context("there is no python3")?;
        read_output(Command::new(system).args(["-m", "venv", "--clear"]).arg(&environment))?;
    }
    read_output(Command::new(&python).args(["-m", "pip", "install", "--quiet", package]))?;
    Ok(())
}
