//! The man pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;

/// Writes a page for `millrace` and one for each command, with the names that `man` expects.
pub(crate) fn write_man_pages(command: Command, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("cannot write the manual pages to {}", directory.display()))
}
