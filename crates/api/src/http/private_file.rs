//! Keys, and what is registered of them, as files.

use std::path::Path;

use anyhow::{Context, Result};
use lb_files::write_private_atomically;

/// Atomically writes a file that only its owner can read.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    write_private_atomically(path, content)
        .with_context(|| format!("{} can't be written", path.display()))
}
