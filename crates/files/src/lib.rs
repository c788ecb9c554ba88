//! Files that only their owner can read, and that a crash leaves as they were or as they should be.
//!
//! Invariants:
//! - A file is written beside the one it replaces and flushed, renamed, and then its directory is flushed. So after a
//!   crash of the program or the machine, the path has the complete old or the complete new content; [`replace_private_until_reboot`] promises that for a
//!   crash of the program only.
//! - Its content was never readable by others, whatever a killed program left.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Replaces a file by one with these contents that only its owner can read. Creates missing directories.
pub fn write_private_atomically(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    replace_private(path, |file| file.write_all(contents.as_ref()))
}

/// Replaces a file by one with what `write` writes. If that fails, the file stays as it is.
pub fn replace_private<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    replace(path, write, |file, unfinished| {
        file.sync_all()?;
        rename_durably(unfinished, path)
    })
}

/// Replaces a file as [`replace_private`] does, but waits for no disk: it stays whole if the program crashes. If the machine
/// does, the path may have anything. For large files of which the content serves until the machine restarts.
pub fn replace_private_until_reboot<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    replace(path, write, |_, unfinished| fs::rename(unfinished, path))
}

fn replace<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::result::Result<(), E>,
    put_in_place: impl FnOnce(&File, &Path) -> Result<()>,
) -> std::result::Result<(), E> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory_of(path))?;
    let unfinished = unfinished(path)?;
    let mut file = create_private(&unfinished)?;
    let written = write(&mut file).and_then(|()| Ok(put_in_place(&file, &unfinished)?));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

pub fn create_private(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Renames a file within a directory. When it returns, the new name survives a crash of the machine.
pub fn rename_durably(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)?;
    File::open(directory_of(to))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Hidden, and beside the file: a rename across file systems is not atomic.
fn unfinished(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
    Ok(path.with_file_name(format!(".{}.new", name.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(directory: &Path) -> Vec<String> {
        let name = |entry: Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(directory).unwrap().map(name).collect()
    }

    #[test]
    fn a_file_is_replaced_and_only_its_owner_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/secret");
        for contents in ["longer contents", "new"] {
            write_private_atomically(&path, contents).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(names(path.parent().unwrap()), ["secret"]);
    }

    #[test]
    fn what_a_killed_program_left_is_neither_kept_nor_made_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(unfinished(&path).unwrap(), "what was left").unwrap();
        write_private_atomically(&path, "new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("new", 0o600));
        assert_eq!(names(directory.path()), ["secret"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        write_private_atomically(&path, "old").unwrap();
        let failed = replace_private(&path, |file| {
            file.write_all(b"half")?;
            Err(Error::other("disk full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(directory.path()), ["secret"]);
        assert!(write_private_atomically(Path::new("/"), "").is_err());
    }

    #[test]
    fn a_bare_name_is_a_file_of_the_working_directory() {
        assert_eq!(directory_of(Path::new("kubeconfig")), Path::new("."));
        assert_eq!(unfinished(Path::new("kubeconfig")).unwrap(), Path::new(".kubeconfig.new"));
    }
}
