//! Corrupted stores, snapshots and what restores them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::directory::STORE_FILE;
use super::super::disk::open_database;
use super::super::snapshot::{
    SNAPSHOT_FILE, restore_snapshot, restore_snapshot_with, save_snapshot,
};
use super::faults::{Faults, opener};
use super::*;

async fn filled(directory: &Path) -> Storage {
    let storage = open(directory);
    for number in 0..20 {
        put(&storage, &format!("a/{number}"), number).await;
    }
    storage
}

/// The writer thread closes the file shortly after the last handle is dropped.
async fn close(storage: Storage) {
    let path = storage.path.clone();
    drop(storage);
    while let Err(error) = open_database(&path, Arc::default()) {
        assert!(matches!(error, redb::DatabaseError::DatabaseAlreadyOpen), "{error}");
        tokio::task::yield_now().await;
    }
}

fn corrupt(directory: &Path) {
    let path = directory.join(STORE_FILE);
    let mut content = fs::read(&path).unwrap();
    for byte in &mut content[512..] {
        *byte = !*byte;
    }
    fs::write(&path, content).unwrap();
}

#[tokio::test]
async fn a_corrupted_store_is_reported_and_restored_from_its_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let storage = filled(directory.path()).await;
    let expected: Vec<_> = numbers(&storage.all()).iter().map(|(_, number)| *number).collect();
    let revision = storage.revision();
    let snapshot = directory.path().join(SNAPSHOT_FILE);
    save_snapshot(&storage, &snapshot).unwrap();
    assert_eq!(fs::metadata(&snapshot).unwrap().permissions().mode() & 0o777, 0o600);
    close(storage).await;
    corrupt(directory.path());

    let error = format!("{:#}", Storage::open(directory.path(), WINDOW).err().unwrap());
    assert!(error.contains("not readable") && error.contains("standalone restore"), "{error}");
    let count = restore_snapshot(&snapshot, directory.path()).unwrap();
    assert_eq!(count, expected.len());
    let storage = reopen(directory.path()).await;
    let restored: Vec<_> = numbers(&storage.all()).iter().map(|(_, number)| *number).collect();
    assert_eq!(restored, expected);
    // Every client has to list again.
    assert!(storage.revision() > revision);
    assert!(storage.changes("", revision, usize::MAX).is_err());
    assert!(directory.path().join("objects.redb.replaced").exists());
}

/// Else the next start would find no store, begin an empty one, and replace the snapshot by it.
#[tokio::test]
async fn a_failed_restore_changes_nothing_whenever_the_disk_fails() {
    let directory = tempfile::tempdir().unwrap();
    let storage = filled(directory.path()).await;
    let snapshot = directory.path().join(SNAPSHOT_FILE);
    save_snapshot(&storage, &snapshot).unwrap();
    close(storage).await;
    corrupt(directory.path());
    let store = directory.path().join(STORE_FILE);
    let corrupted = fs::read(&store).unwrap();
    let faults = Faults::none();
    let mut failed = 0;
    for writes in (0..).step_by(3) {
        faults.set(writes, u64::MAX);
        if restore_snapshot_with(&snapshot, directory.path(), &opener(&faults)).is_ok() {
            break;
        }
        failed += 1;
        assert!(fs::read(&store).unwrap() == corrupted, "after {writes} writes");
        let mut files: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, [STORE_FILE, SNAPSHOT_FILE], "after {writes} writes");
    }
    assert!(failed > 2, "{failed} restores failed");
    assert!(fs::read(store.with_extension("redb.replaced")).unwrap() == corrupted);
    assert_eq!(reopen(directory.path()).await.count(), 20);
}

#[tokio::test]
async fn without_a_snapshot_the_error_has_another_fix() {
    let directory = tempfile::tempdir().unwrap();
    close(filled(directory.path()).await).await;
    corrupt(directory.path());
    let error = format!("{:#}", Storage::open(directory.path(), WINDOW).err().unwrap());
    assert!(error.contains("move the file away"), "{error}");
}

#[tokio::test]
async fn an_incomplete_or_changed_snapshot_is_refused() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = source.path().join("backup");
    save_snapshot(&filled(source.path()).await, &path).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let cut = good.lines().take(10).collect::<Vec<_>>().join("\n");
    let lacking: String = good.lines().filter(|line| !line.contains("a/7")).collect();
    for bad in [cut, lacking, good.replace("\"number\":7", "\"number\":8"), "{}".to_owned()] {
        fs::write(&path, bad).unwrap();
        assert!(restore_snapshot(&path, target.path()).is_err());
    }
    assert!(!target.path().join(STORE_FILE).exists());
    fs::write(&path, good).unwrap();
    assert_eq!(restore_snapshot(&path, target.path()).unwrap(), 20);
}

#[tokio::test]
async fn a_store_in_use_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let storage = filled(directory.path()).await;
    let path = directory.path().join("backup");
    save_snapshot(&storage, &path).unwrap();
    let error = restore_snapshot(&path, directory.path()).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    assert_eq!(storage.count(), 20);
}

#[tokio::test]
async fn the_store_is_private_even_if_it_was_not() {
    let directory = tempfile::tempdir().unwrap();
    close(filled(directory.path()).await).await;
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let store = directory.path().join(STORE_FILE);
    set_mode(&store, 0o644);
    close(open(directory.path())).await;
    assert_eq!(fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o600);
    // Others could have replaced the files in a directory that is open to them.
    set_mode(directory.path(), 0o755);
    assert!(Storage::open(directory.path(), WINDOW).is_err());
}
