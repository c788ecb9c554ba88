//! Programs of others that cargo builds into `target/tools`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::{cargo, is_missing, read_output, repository_root};

pub fn tools_directory() -> PathBuf {
    repository_root().join("target/tools")
}

/// Builds a program of crates.io, `more` being further arguments of `cargo install`.
pub fn install_program(name: &str, version: &str, more: &[&str]) -> Result<()> {
    eprintln!("building {name} {version}: about a minute, once");
    let build = tools_directory().join(format!("build-{name}"));
    let mut command = cargo();
    command.args(["install", name, "--version", version, "--locked", "--quiet", "--force"]);
    command.args(more).arg("--root").arg(tools_directory()).arg("--target-dir").arg(&build);
    read_output(&mut command).with_context(|| {
        let more: String = more.iter().flat_map(|word| [" ", word]).collect();
        format!(
            "cannot build {name}: this needs network access or a vendored registry. By hand:  \
             cargo install {name} --version {version} --locked{more} --root target/tools"
        )
    })?;
    // Several hundred megabytes that are not needed again.
    match fs::remove_dir_all(&build) {
        Err(error) if !is_missing(&error) => Err(error).context(build.display().to_string()),
        _ => Ok(()),
    }
}
