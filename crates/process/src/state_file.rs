//! A small file in the state directory, for the next start.
//!
//! A state file is input like any other: only a regular file of limited size is read.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use lb_files::write_private_atomically;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

#[derive(Clone, Debug)]
pub struct StateFile {
    directory: PathBuf,
    name: &'static str,
    max_size: u64,
}

impl StateFile {
    pub fn new(directory: &Path, name: &'static str, max_size: u64) -> Self {
        Self { directory: directory.to_owned(), name, max_size }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    /// The file's text; `None` if there is no file.
    pub fn read(&self) -> Result<Option<String>> {
        let mut options = OpenOptions::new();
        // Neither follow a link nor wait for a pipe's writer.
        let file = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(self.path());
        let file: File = match file {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        ensure!(file.metadata()?.is_file(), "not a regular file");
        let mut text = String::new();
        file.take(self.max_size + 1).read_to_string(&mut text)?;
        ensure!(text.len() as u64 <= self.max_size, "larger than {} bytes", self.max_size);
        Ok(Some(text))
    }

    pub fn replace(&self, text: &str) -> Result<()> {
        write_private_atomically(&self.path(), text)?;
        Ok(())
    }
}
