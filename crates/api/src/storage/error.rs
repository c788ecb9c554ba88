//! Why a write failed.

use std::fmt;
use std::io;

/// A write that failed for reasons outside the operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// The disk failed. The store is unchanged, and the next write tries again.
    Disk {
        cause: String,
        is_full: bool,
    },
    /// The operation panicked. Its changes were dropped.
    Panicked,
    Closed,
}

impl WriteError {
    pub(super) fn disk(error: &anyhow::Error) -> Self {
        let is_full = error.chain().filter_map(io_error).any(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        });
        Self::Disk { cause: format!("{error:#}"), is_full }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { cause, is_full: true } => write!(
                formatter,
                "the disk of the store is full: {cause}; free some room, and writes resume"
            ),
            Self::Disk { cause, is_full: false } => write!(
                formatter,
                "the store can't be written: {cause}; check the disk: writes resume when it works"
            ),
            Self::Panicked => formatter.write_str(
                "the operation failed because of a bug in the server; its log has the panic",
            ),
            Self::Closed => formatter.write_str("the store has been closed"),
        }
    }
}

/// redb's errors do not expose the I/O error as their source.
fn io_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        return Some(error);
    }
    let storage = cause.downcast_ref::<redb::StorageError>().or_else(|| {
        match (
            cause.downcast_ref::<redb::CommitError>(),
            cause.downcast_ref::<redb::TableError>(),
            cause.downcast_ref::<redb::TransactionError>(),
            cause.downcast_ref::<redb::DatabaseError>(),
        ) {
            (Some(redb::CommitError::Storage(error)), ..)
            | (_, Some(redb::TableError::Storage(error)), ..)
            | (_, _, Some(redb::TransactionError::Storage(error)), _)
            | (.., Some(redb::DatabaseError::Storage(error))) => Some(error),
            _ => None,
        }
    })?;
    match storage {
        redb::StorageError::Io(error) => Some(error),
        _ => None,
    }
}
