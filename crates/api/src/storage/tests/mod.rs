mod faults;
mod snapshots;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const WINDOW: ChangeWindow = ChangeWindow { changes: 8, bytes: 1 << 20 };

fn open(directory: &Path) -> Storage {
    Storage::open(directory, WINDOW).unwrap()
}

fn object(name: &str, number: u64) -> Value {
    json!({"metadata": {"name": name}, "number": number})
}

async fn put(storage: &Storage, key: &str, number: u64) -> Arc<StoredObject> {
    let key = key.to_owned();
    let put = move |transaction: &mut Transaction<'_>| {
        Ok::<_, Infallible>(transaction.put(&key, object(&key, number)))
    };
    storage.write(put).await.unwrap().unwrap()
}

async fn delete(storage: &Storage, key: &str) {
    let key = key.to_owned();
    let delete = move |transaction: &mut Transaction<'_>| {
        Ok::<_, Infallible>(transaction.delete(&key).map(|stored| stored.revision))
    };
    storage.write(delete).await.unwrap().unwrap();
}

fn numbers(page: &StoragePage) -> Vec<(&str, u64)> {
    let number = |stored: &StoredObject| stored.object()["number"].as_u64().unwrap();
    page.objects.iter().map(|(key, stored)| (&**key, number(stored))).collect()
}

#[tokio::test]
async fn a_write_increases_the_revision_and_sets_it_in_the_object() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    let first = put(&storage, "a/1", 1).await;
    let second = put(&storage, "b/1", 2).await;
    assert_eq!(second.revision, first.revision + 1);
    assert_eq!(second.metadata()["resourceVersion"], second.revision.to_string());
    assert_eq!(storage.revision(), second.revision);
}

#[tokio::test]
async fn failed_and_discarded_writes_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    let revision = storage.revision();
    let failing = storage.write(|transaction| {
        transaction.put("a/1", object("1", 1));
        Err::<(), _>("no")
    });
    assert_eq!(failing.await.unwrap(), Err("no"));
    let dry = storage.write(|transaction| {
        transaction.discard();
        Ok::<_, Infallible>(transaction.put("a/1", object("1", 1)).revision)
    });
    assert_eq!(dry.await.unwrap(), Ok(revision + 1));
    assert_eq!(storage.revision(), revision);
    assert!(storage.get("a/1").is_none());
}

#[tokio::test]
async fn a_panicking_operation_does_not_affect_others() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    let panicking = storage.write(|transaction| -> Result<(), Infallible> {
        transaction.put("a/1", object("1", 1));
        panic!("on purpose")
    });
    assert!(matches!(panicking.await, Err(WriteError::Panicked)));
    assert!(storage.get("a/1").is_none());
    put(&storage, "a/2", 2).await;
    assert!(storage.get("a/2").is_some());
}

#[tokio::test]
async fn a_list_continues_from_its_revision_while_objects_change() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    for name in ["a/1", "a/2", "a/3"] {
        put(&storage, name, 1).await;
    }
    let revision = storage.revision();
    put(&storage, "a/2", 2).await;
    put(&storage, "a/2", 3).await;
    put(&storage, "a/25", 2).await;
    delete(&storage, "a/3").await;
    let then = storage.list("a/", Some("a/1"), Some(revision), usize::MAX).unwrap();
    assert_eq!(numbers(&then), [("a/2", 1), ("a/3", 1)]);
    let now = storage.list("a/", None, None, usize::MAX).unwrap();
    assert_eq!(numbers(&now), [("a/1", 1), ("a/2", 3), ("a/25", 2)]);
}

#[tokio::test]
async fn revisions_before_the_window_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    let first = put(&storage, "a/1", 0).await.revision;
    for number in 1..=8 {
        put(&storage, "a/2", number).await;
    }
    assert_eq!(storage.changes("a/", first, usize::MAX).unwrap().0.len(), 8);
    let before_first = storage.changes("a/", first - 1, usize::MAX).unwrap_err();
    assert_eq!(before_first, RevisionGone { oldest: first });
    assert!(storage.list("a/", None, Some(first - 1), usize::MAX).is_err());
    assert_eq!(
        numbers(&storage.list("a/", None, None, usize::MAX).unwrap()),
        [("a/1", 0), ("a/2", 8)]
    );
}

#[tokio::test]
async fn large_changes_make_the_window_shorter() {
    let directory = tempfile::tempdir().unwrap();
    let window = ChangeWindow { changes: 100, bytes: 2000 };
    let storage = Storage::open(directory.path(), window).unwrap();
    let text = "x".repeat(1000);
    for _ in 0..4 {
        let object = json!({"metadata": {}, "text": text});
        let write = move |t: &mut Transaction<'_>| Ok::<_, Infallible>(t.put("a/1", object));
        storage.write(write).await.unwrap().unwrap();
    }
    // A change holds the object before it.
    let revision = storage.revision();
    assert_eq!(storage.changes("a/", revision - 1, usize::MAX).unwrap().0.len(), 1);
    assert!(storage.changes("a/", revision - 2, usize::MAX).is_err());
}

/// After a restart the records share what they did before: each version of an object is there once.
#[tokio::test]
async fn versions_of_an_object_are_shared_between_records_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    for number in 0..4 {
        put(&storage, "a/1", number).await;
    }
    delete(&storage, "a/1").await;
    put(&storage, "a/1", 9).await;
    let revision = storage.revision();
    let check = |storage: &Storage| {
        let (changes, _) = storage.changes("a/", revision - 5, usize::MAX).unwrap();
        assert_eq!(changes.len(), 5);
        for pair in changes.windows(2) {
            let (after, before) = (pair[0].after.as_ref(), pair[1].before.as_ref());
            match (after, before) {
                (Some(after), Some(before)) => assert!(Arc::ptr_eq(after, before)),
                (None, None) => {}
                other => panic!("{other:?}"),
            }
        }
        let last = changes[4].after.clone().unwrap();
        assert!(Arc::ptr_eq(&last, &storage.get("a/1").unwrap()));
    };
    check(&storage);
    drop(storage);
    check(&reopen(directory.path()).await);
}

/// By the sizes of its parts: an object of 1.2 kB has a budget of 2 kB.
#[test]
fn an_object_takes_little_more_memory_than_its_text() {
    let pointers = 2 * size_of::<usize>();
    let key = pointers + "services/default/service-of-a-long-name".len() + pointers;
    let in_map = 2 * (size_of::<StorageKey>() + size_of::<Arc<StoredObject>>());
    let beside_text = size_of::<StoredObject>() + pointers + key + in_map;
    assert!(1_200 + beside_text < 2_000, "{beside_text} bytes beside the text");
    let object = object("x", 1);
    assert_eq!(StoredObject::new(1, &object).text(), object.to_string());
}

/// The file keeps the contents of free pages.
#[tokio::test]
async fn what_secrets_were_is_erased_from_the_store() {
    const KEY: &str = "secrets/default/a";
    const TEXTS: [&str; 3] = ["first-passphrase", "second-passphrase", "of-a-living-secret"];
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    let write = async |key: &'static str, text: &str| {
        let object = json!({"data": text, "metadata": {}});
        let put = move |t: &mut Transaction<'_>| Ok::<_, Infallible>(t.put(key, object));
        storage.write(put).await.unwrap().unwrap();
    };
    write(KEY, TEXTS[0]).await;
    write(KEY, TEXTS[1]).await;
    delete(&storage, KEY).await;
    let contents = || std::fs::read(directory.path().join("objects.redb")).unwrap();
    let contains = |text: &str| contents().windows(text.len()).any(|part| part == text.as_bytes());
    // Some pages may have been used again.
    assert!(TEXTS[..2].iter().any(|text| contains(text)), "there is nothing to erase");
    write("secrets/default/b", TEXTS[2]).await;
    put(&storage, "a/1", 1).await;
    let deleted_at = storage.revision() - 2;
    // Readers of the process still get all changes.
    assert_eq!(storage.changes("secrets/", 1, usize::MAX).unwrap().0.len(), 4);

    storage.erase_old_secrets().await.unwrap();
    assert_eq!(TEXTS.map(contains), [false, false, true]);
    // With nothing to erase the file stays.
    let before = contents();
    storage.erase_old_secrets().await.unwrap();
    assert!(before == contents());
    let last = put(&storage, "a/1", 2).await;
    drop(storage);

    let storage = reopen(directory.path()).await;
    assert_eq!(storage.revision(), last.revision);
    assert!(storage.get("secrets/default/b").is_some() && storage.get(KEY).is_none());
    assert_eq!(storage.changes("", deleted_at, usize::MAX).unwrap().0.len(), 3);
    assert!(storage.changes("", deleted_at - 1, usize::MAX).is_err(), "it needs what is erased");
}

#[test]
fn a_store_can_be_open_only_once() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path());
    let error = Storage::open(directory.path(), WINDOW).err().unwrap().to_string();
    assert!(error.contains("in use by another millrace"), "{error}");
    drop(storage);
}

#[derive(Debug, Clone)]
enum TransactionStep {
    Put(u8),
    Delete(u8),
    Reopen,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Objects, revision and every snapshot in the window match a simple model, for any sequence of
    /// writes and reopenings.
    #[test]
    fn reopening_changes_nothing(steps in prop::collection::vec(prop_oneof![
        6 => (0..6_u8).prop_map(TransactionStep::Put),
        3 => (0..6_u8).prop_map(TransactionStep::Delete),
        1 => Just(TransactionStep::Reopen),
    ], 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let mut storage = Some(open(directory.path()));
            let mut model: BTreeMap<String, u64> = BTreeMap::new();
            let mut snapshots = vec![(storage.as_ref().unwrap().revision(), model.clone())];
            for (number, step) in (0..).zip(steps) {
                let current = storage.as_ref().unwrap();
                match step {
                    TransactionStep::Put(name) => {
                        let key = format!("a/{name}");
                        put(current, &key, number).await;
                        model.insert(key, number);
                    }
                    TransactionStep::Delete(name) => {
                        let key = format!("a/{name}");
                        if model.remove(&key).is_none() {
                            continue;
                        }
                        delete(current, &key).await;
                    }
                    TransactionStep::Reopen => {
                        drop(storage.take());
                        storage = Some(reopen(directory.path()).await);
                        continue;
                    }
                }
                snapshots.push((current.revision(), model.clone()));
            }
            let storage = storage.unwrap();
            assert_eq!(storage.revision(), snapshots.last().unwrap().0);
            for (revision, model) in snapshots.iter().rev().take(WINDOW.changes + 1) {
                let page = storage.list("a/", None, Some(*revision), usize::MAX).unwrap();
                let model: Vec<(&str, u64)> =
                    model.iter().map(|(key, number)| (key.as_str(), *number)).collect();
                assert_eq!(numbers(&page), model, "at {}", revision);
            }
        });
    }
}

/// The writer thread closes the file shortly after the last handle is dropped.
async fn reopen(directory: &Path) -> Storage {
    loop {
        match Storage::open(directory, WINDOW) {
            Ok(storage) => return storage,
            Err(error) if error.to_string().contains("in use") => tokio::task::yield_now().await,
            Err(error) => panic!("{error:#}"),
        }
    }
}
