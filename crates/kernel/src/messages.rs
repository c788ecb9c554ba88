//! Log messages of the programs, by aya-log. They are off by default: then the verifier removes the
//! code that writes them.

use anyhow::{Context, Result};
use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::settings::BpfLogLevel;

impl BpfLogLevel {
    /// As in aya-log.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Error => 1,
            Self::Warn => 2,
            Self::Info => 3,
            Self::Debug => 4,
        }
    }
}

/// The log target of the programs' messages. It passes any level of the agent's log: the level of
/// these messages was chosen when the programs were loaded.
pub const TARGET: &str = "bpf";

/// Writes the programs' messages to the log, as long as the runtime runs.
pub(super) fn log_program_messages(ebpf: &mut Ebpf) -> Result<()> {
    let logger = EbpfLogger::init_with_logger(ebpf, ToLog)
        .context("the programs' messages can't be read")?;
    // SAFETY: the `AsyncFd` owns the logger, whose descriptor therefore stays open, and the same,
    // until both are dropped.
    let mut logger = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE)? };
    tokio::spawn(async move {
        while let Ok(mut ready) = logger.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    });
    Ok(())
}

/// Forwards records of `log` to `tracing`.
struct ToLog;

impl log::Log for ToLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let message = record.args();
        match record.level() {
            log::Level::Error => tracing::error!(target: TARGET, "{message}"),
            log::Level::Warn => tracing::warn!(target: TARGET, "{message}"),
            log::Level::Info => tracing::info!(target: TARGET, "{message}"),
            log::Level::Debug => tracing::debug!(target: TARGET, "{message}"),
            log::Level::Trace => tracing::trace!(target: TARGET, "{message}"),
        }
    }

    fn flush(&self) {}
}
