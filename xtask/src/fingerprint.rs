//! Whether anything changed that a build result depends on, by content.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The hash of files, of all files below directories, and of some words.
pub fn of(paths: &[PathBuf], words: &[String]) -> Result<String> {
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

/// Each part with its length, so that no two lists run together alike.
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
    fn it_moves_with_every_content_name_and_word() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("a");
        let all = [directory.path().to_owned()];
        fs::write(&file, "one")?;
        let first = of(&all, &[])?;
        assert_eq!(first, of(&all, &[])?);
        assert_ne!(first, of(&all, &["flag".into()])?);

        fs::write(&file, "two")?;
        assert_ne!(first, of(&all, &[])?);

        fs::write(&file, "one")?;
        fs::rename(&file, directory.path().join("b"))?;
        assert_ne!(first, of(&all, &[])?);
        Ok(())
    }
}
