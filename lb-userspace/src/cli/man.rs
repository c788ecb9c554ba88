use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;

/// One page for the whole and one for each command, as `man` looks for them.
pub fn write(command: Command, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("{} can't be made", directory.display()))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("the pages can't be written to {}", directory.display()))
}
