//! What a topology shares with its hosts and processes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32};

use anyhow::{Result, ensure};

use super::Id;

/// The parts of a topology that hosts and processes use.
pub(super) struct SharedTopology {
    pub id: Id,
    pub name: String,
    pub directory: PathBuf,
    pub cgroup: PathBuf,
    /// Numbers the log files.
    pub logs: AtomicU32,
    /// Something failed, so logs are printed.
    pub trouble: AtomicBool,
    /// Pin paths of agents that are kept for later agents.
    pub warm: Mutex<BTreeSet<PathBuf>>,
}

/// Names become part of the names of namespaces, files and devices.
pub(super) fn check_name(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    ensure!(
        !name.is_empty() && name.bytes().all(fits) && name.len() <= 60,
        "{name:?} is not a name for a topology or host: use up to 60 letters, digits, - and _"
    );
    Ok(())
}
