//! Ctrl-C: nothing must skip the clean-up.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Replaces the default reaction to Ctrl-C and SIGTERM, which would end this process at once.
pub(crate) fn handle_interrupts() -> Result<()> {
    Ok(ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))?)
}

pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails if there was a Ctrl-C.
pub(crate) fn check_interrupt() -> Result<()> {
    ensure!(!is_interrupted(), "interrupted");
    Ok(())
}
