//! Removing entries of maps.

use std::io::ErrorKind;

use anyhow::Result;
use aya::maps::MapError;

/// Removing an entry succeeds if it does not exist.
pub fn ignore_missing(removed: Result<(), MapError>) -> Result<()> {
    match removed {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
