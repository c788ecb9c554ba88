//! Whether the inputs of a build have changed: sources by content, programs and results by size and
//! time, because those are large.

use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// What a result was built from, and with what.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp {
    inputs: String,
    /// For messages.
    pub builder: String,
    files: Vec<FileState>,
}

#[derive(Debug, PartialEq, Eq)]
struct FileState {
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    path: PathBuf,
}

impl Stamp {
    /// `files`: the programs that built the result, and the result.
    pub fn new(inputs: String, builder: String, files: &[PathBuf]) -> Result<Self> {
        let states = files.iter().map(|file| FileState::of(file)).collect::<Result<_>>()?;
        Ok(Self { inputs, builder, files: states })
    }

    /// Whether nothing has changed.
    pub fn holds(&self, inputs: &str) -> bool {
        let unchanged = |file: &FileState| FileState::of(&file.path).is_ok_and(|now| now == *file);
        self.inputs == inputs && self.files.iter().all(unchanged)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (inputs, builder) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        Some(Self { inputs, builder, files: lines.map(FileState::parse).collect::<Option<_>>()? })
    }
}

impl Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}", self.inputs, self.builder)?;
        for FileState { size, modified: (seconds, nanoseconds), path } in &self.files {
            writeln!(f, "{size} {seconds} {nanoseconds} {}", path.display())?;
        }
        Ok(())
    }
}

impl FileState {
    fn of(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { size: metadata.size(), modified, path: path.to_owned() })
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let size = words.next()?.parse().ok()?;
        let modified = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { size, modified, path: words.next()?.into() })
    }
}

/// The hash of files, of all files below directories, and of strings.
pub fn fingerprint_of(paths: &[PathBuf], words: &[&str]) -> Result<String> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    files.sort();

    let mut hash = Sha256::new();
    for file in &files {
        let content = fs::read(file).with_context(|| file.display().to_string())?;
        add(&mut hash, file.to_string_lossy().as_bytes());
        add(&mut hash, &content);
    }
    for word in words {
        add(&mut hash, word.as_bytes());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Adds a part with its length, so that different lists of parts have different hashes.
fn add(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_le_bytes());
    hash.update(part);
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_every_content_name_and_word() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("a");
        let all = [directory.path().to_owned()];
        fs::write(&file, "one")?;
        let first = fingerprint_of(&all, &[])?;
        assert_eq!(first, fingerprint_of(&all, &[])?);
        assert_ne!(first, fingerprint_of(&all, &["flag"])?);

        fs::write(&file, "two")?;
        assert_ne!(first, fingerprint_of(&all, &[])?);

        fs::write(&file, "one")?;
        fs::rename(&file, directory.path().join("b"))?;
        assert_ne!(first, fingerprint_of(&all, &[])?);
        Ok(())
    }

    #[test]
    fn a_stamp_holds_until_an_input_or_a_file_changes() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let compiler = directory.path().join("a compiler");
        fs::write(&compiler, "1.96")?;
        let stamp = Stamp::new(
            "abc".to_owned(),
            "a compiler, 1.96".to_owned(),
            std::slice::from_ref(&compiler),
        )?;
        assert!(stamp.holds("abc"));
        assert!(!stamp.holds("abd"));
        assert_eq!(Stamp::parse(&stamp.to_string()).as_ref(), Some(&stamp));

        fs::write(&compiler, "1.96.1")?;
        assert!(!stamp.holds("abc"), "another compiler");
        fs::remove_file(&compiler)?;
        assert!(!stamp.holds("abc"), "no compiler");
        Ok(())
    }

    #[test]
    fn a_broken_stamp_is_none() {
        for text in ["", "only inputs", "inputs\nbuilder\nnonsense"] {
            assert_eq!(Stamp::parse(text), None, "{text}");
        }
    }
}
