//! The signals that end a process.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    pub fn new() -> Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
