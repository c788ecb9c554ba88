//! Keeps paths of this machine out of what is built: the same source gives the same programs in any
//! directory.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::repository_root;

/// Flags for rustc that replace directories of this machine with short names.
pub fn remap_flags() -> Result<Vec<String>> {
    let folders = [(repository_root().to_owned(), "."), (cargo_home()?, "cargo")];
    let flag = |(from, to): (PathBuf, &str)| format!("--remap-path-prefix={}={to}", from.display());
    Ok(folders.into_iter().map(flag).collect())
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}
