//! The only thread that writes. Writes that wait at the same time share one flush, which costs the
//! same for one as for a hundred.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

use anyhow::{Context, Result};
use tokio::sync::{mpsc, oneshot, watch};

use super::disk::Disk;
use super::state::State;
use super::transaction::{Staged, Transaction};

/// The most writes that share a flush.
const BATCH: usize = 256;

/// Runs an operation on top of the staged changes. The caller is notified when the batch is on
/// disk.
pub(super) type Job = Box<dyn FnOnce(&State, &mut Staged) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

/// A write that failed for reasons outside the operation.
#[derive(Debug, Clone)]
pub enum WriteError {
    /// The disk failed. The store is unchanged, and accepts no more writes.
    Disk(String),
    /// The operation panicked. Its changes were dropped.
    Panicked,
    Closed,
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(cause) => write!(
                formatter,
                "the store can't be written any more: {cause}; free some room or mend the disk, \
                 then restart"
            ),
            Self::Panicked => formatter.write_str("the operation failed by a fault of its own"),
            Self::Closed => formatter.write_str("the store has been closed"),
        }
    }
}

pub(super) async fn submit<T, E, F>(
    jobs: &mpsc::UnboundedSender<Job>,
    operation: F,
) -> Result<Result<T, E>, WriteError>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnOnce(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let job: Job = Box::new(move |state, staged| {
        let mut transaction = Transaction::new(state, staged);
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
    jobs.send(job).map_err(|_| WriteError::Closed)?;
    receiver.await.map_err(|_| WriteError::Closed)?
}

/// The thread ends when all senders are dropped.
pub(super) fn start(
    disk: Disk,
    state: Arc<RwLock<State>>,
    announce: watch::Sender<u64>,
) -> Result<mpsc::UnboundedSender<Job>> {
    let (sender, jobs) = mpsc::unbounded_channel();
    thread::Builder::new()
        .name("api-writer".to_owned())
        .spawn(move || write(disk, &state, &announce, jobs))
        .context("the thread that writes the store can't be started")?;
    Ok(sender)
}

fn write(
    mut disk: Disk,
    state: &RwLock<State>,
    announce: &watch::Sender<u64>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
) {
    // After a failure, the contents of the disk are unknown.
    let mut failed: Option<WriteError> = None;
    while let Some(first) = jobs.blocking_recv() {
        let mut staged = Staged::default();
        let mut answers = Vec::new();
        {
            // Readers don't wait: only this thread writes the state, so this lock is shared.
            let state = state.read().unwrap_or_else(PoisonError::into_inner);
            answers.push(first(&state, &mut staged));
            while answers.len() < BATCH
                && let Ok(job) = jobs.try_recv()
            {
                answers.push(job(&state, &mut staged));
            }
            if failed.is_none()
                && !staged.changes.is_empty()
                && let Err(error) = disk.commit(&staged.changes, &state)
            {
                tracing::error!(error = format!("{error:#}"), "changes not written to disk");
                failed = Some(WriteError::Disk(format!("{error:#}")));
            }
        }
        let written = match &failed {
            Some(failed) if !staged.changes.is_empty() => Err(failed.clone()),
            _ => Ok(()),
        };
        if written.is_ok() && !staged.changes.is_empty() {
            let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
            state.publish(staged.changes);
            announce.send_replace(state.revision());
        }
        for answer in answers {
            answer(written.clone());
        }
    }
}
