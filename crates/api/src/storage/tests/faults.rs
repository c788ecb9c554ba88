//! Disks that are full or fail: what was acknowledged stays, nothing else does, and writes resume.

use std::io;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, ReadableDatabase, StorageBackend, TableDefinition};

use super::super::directory::open_private_file;
use super::*;

/// From now on, how many operations of each kind succeed.
#[derive(Debug)]
pub(super) struct Faults {
    writes: AtomicU64,
    flushes: AtomicU64,
    /// How many bytes were read.
    read_bytes: AtomicU64,
}

impl Faults {
    pub fn none() -> Arc<Self> {
        let most = || AtomicU64::new(u64::MAX);
        Arc::new(Self { writes: most(), flushes: most(), read_bytes: AtomicU64::new(0) })
    }

    pub fn repair(&self) {
        self.set(u64::MAX, u64::MAX);
    }

    pub fn set(&self, writes: u64, flushes: u64) {
        self.writes.store(writes, Ordering::SeqCst);
        self.flushes.store(flushes, Ordering::SeqCst);
    }

    fn count(left: &AtomicU64, kind: io::ErrorKind) -> io::Result<()> {
        left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            u64::MAX => Some(left),
            left => left.checked_sub(1),
        })
        .map(drop)
        .map_err(|_| io::Error::new(kind, "injected"))
    }
}

#[derive(Debug)]
struct Faulty {
    inner: FileBackend,
    faults: Arc<Faults>,
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.faults.read_bytes.fetch_add(out.len() as u64, Ordering::SeqCst);
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Faults::count(&self.faults.writes, io::ErrorKind::StorageFull)?;
        self.inner.set_len(len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Faults::count(&self.faults.writes, io::ErrorKind::StorageFull)?;
        self.inner.write(offset, data)
    }

    fn sync_data(&self) -> io::Result<()> {
        Faults::count(&self.faults.flushes, io::ErrorKind::Other)?;
        self.inner.sync_data()
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}

pub(super) fn opener(faults: &Arc<Faults>) -> disk::DatabaseOpener {
    let faults = Arc::clone(faults);
    Box::new(move |path, flush_failed| {
        let inner = FileBackend::new(open_private_file(path)?)?;
        disk::open_database_on(Faulty { inner, faults: Arc::clone(&faults) }, flush_failed)
    })
}

fn open_faulty(directory: &Path, faults: &Arc<Faults>) -> Storage {
    Storage::open_with(directory, WINDOW, opener(faults)).unwrap()
}

async fn try_put(storage: &Storage, key: &str, number: u64) -> Result<(), WriteError> {
    let key = key.to_owned();
    let put = move |transaction: &mut Transaction<'_>| {
        transaction.put(&key, object(&key, number));
        Ok::<_, Infallible>(())
    };
    storage.write(put).await.map(|result| result.unwrap())
}

fn contents(storage: &Storage) -> Vec<(String, u64)> {
    let page = storage.all();
    numbers(&page).into_iter().map(|(key, number)| (key.to_owned(), number)).collect()
}

#[tokio::test]
async fn a_full_disk_fails_writes_and_nothing_else_until_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::none();
    let storage = open_faulty(directory.path(), &faults);
    try_put(&storage, "a/1", 1).await.unwrap();
    faults.set(0, u64::MAX);
    for _ in 0..3 {
        let error = try_put(&storage, "a/2", 2).await.unwrap_err();
        assert!(matches!(error, WriteError::Disk { is_full: true, .. }), "{error}");
        assert!(error.to_string().contains("writes resume"), "{error}");
    }
    assert!(storage.figures().failure.is_some());
    assert_eq!(contents(&storage), [("a/1".to_owned(), 1)]);

    faults.repair();
    storage.try_recover().await;
    assert_eq!(storage.figures().failure, None);
    try_put(&storage, "a/3", 3).await.unwrap();
    let expected = contents(&storage);
    drop(storage);
    assert_eq!(contents(&reopen(directory.path()).await), expected);
}

#[tokio::test]
async fn a_failed_flush_leaves_nothing_behind() {
    // A commit flushes several times: whichever of them fails.
    for flushes in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let faults = Faults::none();
        let storage = open_faulty(directory.path(), &faults);
        try_put(&storage, "a/1", 1).await.unwrap();
        let revision = storage.revision();
        faults.set(u64::MAX, flushes);
        let Err(error) = try_put(&storage, "a/1", 2).await else {
            assert!(flushes > 0, "a commit without a flush");
            continue;
        };
        assert!(matches!(error, WriteError::Disk { is_full: false, .. }), "{error}");
        faults.repair();
        storage.try_recover().await;
        assert_eq!(storage.revision(), revision);
        drop(storage);
        let storage = reopen(directory.path()).await;
        assert_eq!(
            (storage.revision(), contents(&storage)),
            (revision, vec![("a/1".to_owned(), 1)])
        );
    }
}

/// The storage holds each object itself. Pages that the database held beside it took as much memory again.
#[test]
fn pages_of_the_file_are_not_kept_in_memory() {
    const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("table");
    const ENTRIES: u64 = 32;
    const ENTRY: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::none();
    let database = opener(&faults)(&directory.path().join("file"), Arc::default()).unwrap();
    let entry = |number| vec![number as u8; ENTRY];
    for number in 0..ENTRIES {
        let write = database.begin_write().unwrap();
        write.open_table(TABLE).unwrap().insert(number, &*entry(number)).unwrap();
        write.commit().unwrap();
    }
    let before = faults.read_bytes.load(Ordering::SeqCst);
    let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
    for number in 0..ENTRIES {
        assert!(table.get(number).unwrap().unwrap().value() == entry(number));
    }
    let read = faults.read_bytes.load(Ordering::SeqCst) - before;
    let kept = (ENTRIES * ENTRY as u64).saturating_sub(read);
    assert!(kept <= ENTRIES * ENTRY as u64 / 4, "{kept} bytes were in memory");
}

/// After a failed flush the file is written anew. So is that one after another.
#[tokio::test]
async fn each_failed_flush_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::none();
    let (inner, opened) = (opener(&faults), Arc::<Mutex<Vec<String>>>::default());
    let names = Arc::clone(&opened);
    let opener: disk::DatabaseOpener = Box::new(move |path, flush_failed| {
        let name = path.file_name().unwrap().to_str().unwrap();
        names.lock().unwrap().push(name.to_owned());
        inner(path, flush_failed)
    });
    let storage = Storage::open_with(directory.path(), WINDOW, opener).unwrap();
    for number in 1..=3 {
        faults.set(u64::MAX, 0);
        try_put(&storage, "a/1", number).await.unwrap_err();
        faults.repair();
        storage.try_recover().await;
        try_put(&storage, "a/1", number).await.unwrap();
    }
    let new = format!("{}.new", directory::STORE_FILE);
    assert_eq!(*opened.lock().unwrap(), [directory::STORE_FILE, &new, &new, &new]);
    drop(storage);
    assert_eq!(contents(&reopen(directory.path()).await), [("a/1".to_owned(), 3)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whenever the disk fails: what is in memory and what a restart finds are the acknowledged
    /// writes, in the same revisions.
    #[test]
    fn faults_lose_no_acknowledged_write_and_keep_no_other(
        rounds in prop::collection::vec((0..40_u64, 0..8_u64, 1..12_u64), 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let faults = Faults::none();
            let storage = open_faulty(directory.path(), &faults);
            let mut model: BTreeMap<String, u64> = BTreeMap::new();
            let mut number = 0;
            for (writes, flushes, puts) in rounds {
                faults.set(writes, flushes);
                for put in 0..puts {
                    number += 1;
                    let key = format!("a/{}", put % 5);
                    if try_put(&storage, &key, number).await.is_ok() {
                        model.insert(key, number);
                    }
                }
                faults.repair();
                storage.try_recover().await;
                let model: Vec<_> = model.clone().into_iter().collect();
                assert_eq!(contents(&storage), model);
            }
            let (revision, expected) = (storage.revision(), contents(&storage));
            drop(storage);
            let storage = reopen(directory.path()).await;
            assert_eq!((storage.revision(), contents(&storage)), (revision, expected));
        });
    }
}
