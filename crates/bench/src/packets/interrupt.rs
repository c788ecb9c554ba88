//! Ctrl-C between measurements, so that it does not skip the clean-up.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Replaces what Ctrl-C does.
pub fn handle_interrupts() -> Result<()> {
    Ok(ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))?)
}

/// Called between measurements.
pub(crate) fn check_interrupted() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted; everything was cleaned up");
    Ok(())
}
