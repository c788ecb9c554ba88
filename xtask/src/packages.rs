//! Packages of the distribution, installed if a program they bring is missing.

use std::process::Command;
use std::sync::Once;

use anyhow::{Context, Result, bail};

use crate::process::{find, is_root, output};

/// A program, and the Debian package that brings it.
pub struct Program(pub &'static str, pub &'static str);

/// Installs what is missing; does nothing, not even look for updates, if nothing is.
pub fn ensure(programs: &[Program]) -> Result<()> {
    let missing: Vec<&Program> = programs.iter().filter(|p| find(p.0).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|program| program.1).collect();
    install(&packages).with_context(|| {
        let names: Vec<&str> = missing.iter().map(|program| program.0).collect();
        format!("missing: {}. Install them by your distribution's means", names.join(", "))
    })
}

/// Installs Debian packages.
pub fn install(packages: &[&str]) -> Result<()> {
    static UPDATE: Once = Once::new();
    if find("apt-get").is_none() {
        bail!("this is no Debian or Ubuntu, and xtask can't install {}", packages.join(", "));
    }
    eprintln!("installing {}", packages.join(", "));
    let mut updated = Ok(String::new());
    UPDATE.call_once(|| updated = output(apt_get().arg("update")));
    updated.context("the package lists can't be updated")?;
    let mut command = apt_get();
    command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    output(&mut command).map(drop).with_context(|| format!("{} can't be installed", packages.join(", ")))
}

fn apt_get() -> Command {
    let mut command = if is_root() {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--non-interactive", "apt-get"]);
        sudo
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
