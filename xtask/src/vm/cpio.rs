//! Writes initial file systems for the kernel: cpio archives in the format `newc`.
//! <https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const SYMBOLIC_LINK: u32 = 0o120_777;

pub struct CpioArchive {
    file: BufWriter<File>,
    /// Paths that the archive contains.
    written: BTreeSet<String>,
}

impl CpioArchive {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { file: BufWriter::new(file), written: BTreeSet::new() })
    }

    /// Adds an executable file and its parent directories.
    pub fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        self.entry(path, EXECUTABLE, content)
    }

    pub fn link(&mut self, path: &str, to: &str) -> Result<()> {
        self.entry(path, SYMBOLIC_LINK, to.as_bytes())
    }

    /// Adds a copy of a file of this machine.
    pub fn copy(&mut self, from: &Path, to: &str) -> Result<()> {
        if self.written.contains(to) {
            return Ok(());
        }
        let content = fs::read(from).with_context(|| from.display().to_string())?;
        self.file(to, &content)
    }

    pub fn finish(mut self) -> Result<()> {
        self.write("TRAILER!!!", 0, &[])?;
        Ok(self.file.flush()?)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        ensure!(path.starts_with('/'), "{path} is not absolute");
        for (end, _) in path.match_indices('/').skip(1) {
            let directory = &path[..end];
            if self.written.insert(directory.to_owned()) {
                self.write(&directory[1..], DIRECTORY, &[])?;
            }
        }
        if self.written.insert(path.to_owned()) {
            self.write(&path[1..], mode, content)?;
        }
        Ok(())
    }

    fn write(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        // Inode, mode, user, group, links, time, length, device of the file (two numbers), device
        // that it is (two numbers), length of the name with its zero, no checksum.
        let inode = self.written.len() as u32;
        let (length, name_length) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [inode, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        let mut header = String::from("070701");
        for field in fields {
            header += &format!("{field:08x}");
        }
        self.padded(&[header.as_bytes(), name.as_bytes(), &[0]].concat())?;
        self.padded(content)
    }

    /// Headers and contents start at multiples of four.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_first_and_everything_is_padded() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("archive");
        let mut archive = CpioArchive::create(&path)?;
        archive.file("/vm/tests", b"verifier\n")?;
        archive.file("/vm/init", b"x")?;
        archive.link("/bin", "usr/bin")?;
        archive.finish()?;
        let bytes = fs::read(&path)?;
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes)?;
        let at = |what: &str| text.find(what).with_context(|| what.to_owned());
        assert!(at("vm\0")? < at("vm/tests\0")? && at("vm/tests\0")? < at("vm/init\0")?);
        assert_eq!(text.matches("070701").count(), 5, "four entries and the trailer");
        assert!(at("TRAILER!!!")? > at("usr/bin")?);
        Ok(())
    }
}
