//! The only thread that writes. Writes that wait at the same time share one flush, which costs the
//! same for one as for a hundred.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::sync::{mpsc, oneshot, watch};

use super::disk::Disk;
use super::error::WriteError;
use super::meter::StorageMeter;
use super::state::StorageState;
use super::stored::StoredChange;
use super::transaction::{StagedChanges, Transaction};

/// The most writes that share a flush.
const MAX_BATCHED_WRITES: usize = 256;

pub(super) enum WriterJob {
    Write(StagedWrite),
    EraseOldSecrets(oneshot::Sender<Result<()>>),
}

/// Runs an operation on top of the staged changes. The caller is notified when the batch is on
/// disk.
type StagedWrite = Box<dyn FnOnce(&StorageState, &mut StagedChanges, u64) -> WriteResponse + Send>;
type WriteResponse = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

pub(super) async fn submit_write<T, E, F>(
    jobs: &mpsc::UnboundedSender<WriterJob>,
    operation: F,
) -> Result<Result<T, E>, WriteError>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnOnce(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let write: StagedWrite = Box::new(move |state, staged, failures| {
        let mut transaction = Transaction::new(state, staged, failures);
        let ran = catch_unwind(AssertUnwindSafe(|| operation(&mut transaction)));
        let own = transaction.into_staged();
        let result = match ran {
            Ok(Ok(value)) => {
                staged.append(own);
                Ok(Ok(value))
            }
            Ok(Err(error)) => Ok(Err(error)),
            Err(_) => Err(WriteError::Panicked),
        };
        Box::new(move |written| {
            // The caller may be gone; the write stays.
            let _ = sender.send(written.and(result));
        })
    });
    jobs.send(WriterJob::Write(write)).map_err(|_| WriteError::Closed)?;
    receiver.await.map_err(|_| WriteError::Closed)?
}

/// The thread ends when all senders are dropped.
pub(super) fn start_writer(
    disk: Disk,
    state: Arc<RwLock<StorageState>>,
    announce: watch::Sender<u64>,
    meter: Arc<StorageMeter>,
) -> Result<mpsc::UnboundedSender<WriterJob>> {
    let (sender, jobs) = mpsc::unbounded_channel();
    let mut writer = Writer { disk, state, announce, meter };
    thread::Builder::new()
        .name("api-writer".to_owned())
        .spawn(move || writer.run(jobs))
        .context("the thread that writes the store can't be started")?;
    Ok(sender)
}

struct Writer {
    disk: Disk,
    state: Arc<RwLock<StorageState>>,
    announce: watch::Sender<u64>,
    meter: Arc<StorageMeter>,
}

impl Writer {
    fn run(&mut self, mut jobs: mpsc::UnboundedReceiver<WriterJob>) {
        while let Some(first) = jobs.blocking_recv() {
            let mut batch = Vec::new();
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    WriterJob::Write(write) => batch.push(write),
                    WriterJob::EraseOldSecrets(done) => {
                        self.write(std::mem::take(&mut batch));
                        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
                        let _ = done.send(self.disk.erase_old_secrets(&state));
                    }
                }
                next = if batch.len() < MAX_BATCHED_WRITES { jobs.try_recv().ok() } else { None };
            }
            self.write(batch);
        }
    }

    fn write(&mut self, batch: Vec<StagedWrite>) {
        let mut staged = StagedChanges::default();
        let failures = self.meter.failures();
        let (responses, written) = {
            // Readers don't wait: only this thread writes the state, so this lock is shared.
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let responses: Vec<WriteResponse> =
                batch.into_iter().map(|job| job(&state, &mut staged, failures)).collect();
            (responses, flush(&mut self.disk, &staged.changes, &state, &self.meter))
        };
        if written.is_ok() && !staged.changes.is_empty() {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            state.publish(staged.changes);
            self.announce.send_replace(state.revision());
        }
        for respond in responses {
            respond(written.clone());
        }
    }
}

/// Recovers from an earlier failure first, also if there is nothing to write.
fn flush(
    disk: &mut Disk,
    changes: &[Arc<StoredChange>],
    state: &StorageState,
    meter: &StorageMeter,
) -> Result<(), WriteError> {
    let begin = Instant::now();
    let recovers = disk.needs_recovery();
    let flushed = match recovers {
        true => disk.recover(state),
        false => Ok(()),
    };
    let flushed = flushed.and_then(|()| disk.commit(changes, state));
    if let Err(error) = flushed {
        let failure = WriteError::disk(&error);
        if !recovers {
            tracing::error!(error = format!("{error:#}"), "changes not written to disk");
        }
        meter.failed(failure.clone());
        return Err(failure);
    }
    if recovers {
        tracing::info!(store = %disk.path().display(), "store recovered");
    }
    meter.flushed((!changes.is_empty()).then(|| begin.elapsed()));
    Ok(())
}
