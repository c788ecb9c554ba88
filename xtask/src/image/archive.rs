//! Reproducible archives: one owner, one time, and directories that are added with their first
//! file.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use tar::{Builder, EntryType, Header};

pub struct LayerArchive<W: Write> {
    tar: Builder<W>,
    time: u64,
    written: BTreeSet<String>,
}

impl<W: Write> LayerArchive<W> {
    pub fn new(writer: W, time: Timestamp) -> Self {
        // A time before 1970 cannot be stored.
        let time = time.as_second().try_into().unwrap_or(0);
        Self { tar: Builder::new(writer), time, written: BTreeSet::new() }
    }

    /// Adds a file and its parent directories.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory)?;
        }
        self.entry(path, EntryType::Regular, mode, content)
    }

    /// Adds a directory and its parents.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for end in ends {
            if !self.written.contains(&path[..end]) {
                self.entry(&path[..end], EntryType::Directory, 0o755, &[])?;
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Result<W> {
        Ok(self.tar.into_inner()?)
    }

    fn entry(&mut self, path: &str, kind: EntryType, mode: u32, content: &[u8]) -> Result<()> {
        ensure!(!path.is_empty() && !path.starts_with('/'), "{path:?} is not a path in an archive");
        ensure!(self.written.insert(path.to_owned()), "{path} is there twice");
        let mut header = Header::new_ustar();
        header.set_path(path).with_context(|| path.to_owned())?;
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_mtime(self.time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        Ok(self.tar.append(&header, content)?)
    }
}
