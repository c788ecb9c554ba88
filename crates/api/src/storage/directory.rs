//! The data directory. It holds Secrets and keys, so only its owner may enter it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Permissions of others than the owner.
const NON_OWNER_PERMISSIONS: u32 = 0o077;
/// The store.
pub(super) const STORE_FILE: &str = "objects.redb";
/// The last snapshot.
pub const SNAPSHOT_FILE: &str = "snapshot.jsonl";

/// Creates the directory, or takes the permissions of all but its owner away. Never changes a
/// directory that may serve another purpose: one with files, or of another user.
pub(crate) fn make_directory_private(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("data directory {} not created", directory.display()));
    }
    let failed = || format!("data directory {} not usable", directory.display());
    let metadata = fs::metadata(directory).with_context(failed)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & NON_OWNER_PERMISSIONS == 0 {
        return Ok(());
    }
    let is_own = metadata.uid() == nix::unistd::geteuid().as_raw();
    let is_empty = fs::read_dir(directory).with_context(failed)?.next().is_none();
    if !is_own || !is_empty {
        bail!(
            "data directory {} is open to other users (mode {mode:04o}), and has files or another \
             owner: choose a directory of its own with --data-dir, or run: chmod 700 {}",
            directory.display(),
            directory.display()
        );
    }
    fs::set_permissions(directory, Permissions::from_mode(0o700)).with_context(failed)?;
    tracing::info!(directory = %directory.display(), "data directory closed to other users");
    Ok(())
}

/// Opens a file for reading and writing that only its owner can read, and creates it if needed.
pub(crate) fn open_private_file(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    // One that was restored from a backup may be readable by all.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        directory
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_directory_is_private_and_so_is_its_parent() {
        let parent = directory(0o755);
        let path = parent.path().join("a/b");
        make_directory_private(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
    }

    #[test]
    fn an_empty_state_directory_becomes_private() {
        let directory = directory(0o755);
        make_directory_private(directory.path()).unwrap();
        assert_eq!(mode(directory.path()), 0o700);
    }

    #[test]
    fn a_directory_with_files_is_refused_and_unchanged() {
        let directory = directory(0o755);
        fs::write(directory.path().join("holiday.jpg"), "").unwrap();
        let error = make_directory_private(directory.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 700"), "{error}");
        assert_eq!(mode(directory.path()), 0o755);
    }

    #[test]
    fn a_file_that_others_can_read_becomes_private() {
        let directory = directory(0o700);
        let path = directory.path().join("objects.redb");
        open_private_file(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open_private_file(&path).unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o600, "content"));
    }
}
