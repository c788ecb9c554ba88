//! etcd for `bench api`, from its Debian package. The package is unpacked, not installed: it would
//! start a server on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{read_output, target_directory};
use crate::{packages, process};

const PACKAGE: &str = "etcd-server";

/// The program, if it can be had. Otherwise prints why not.
pub fn ensure_etcd() -> Option<PathBuf> {
    let unpacked = target_directory().join("etcd");
    let program = unpacked.join("usr/bin/etcd");
    if program.exists() {
        return Some(program);
    }
    if let Some(installed) = process::find_program("etcd") {
        return Some(installed);
    }
    match unpack(&unpacked) {
        Ok(()) => Some(program),
        Err(error) => {
            eprintln!("to be measured without etcd: {error:#}");
            None
        }
    }
}

fn unpack(directory: &Path) -> Result<()> {
    let package = packages::download_package(PACKAGE, directory)?;
    read_output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(directory)).map(drop)
}
