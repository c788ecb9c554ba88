//! Writes the access log to stdout, on a thread of its own: a reader that is slow delays no request.

use std::io::{self, BufWriter, Write};
use std::thread;

use clap::ValueEnum;
use lb_proxy::access_log::Batch;
use tokio::sync::mpsc;

/// Batches that wait; further ones are dropped and counted.
const MAX_QUEUED_BATCHES: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AccessLogFormat {
    /// The combined format of nginx and Apache, followed by host, duration, Ingress and endpoint
    #[default]
    Text,
    /// One JSON object per line
    Json,
    Off,
}

/// `None`: no log.
pub(crate) fn start_access_log(format: AccessLogFormat) -> io::Result<Option<mpsc::Sender<Batch>>> {
    let is_json = match format {
        AccessLogFormat::Off => return Ok(None),
        AccessLogFormat::Text => false,
        AccessLogFormat::Json => true,
    };
    let (sender, batches) = mpsc::channel(MAX_QUEUED_BATCHES);
    thread::Builder::new().name("access log".to_owned()).spawn(move || {
        if let Err(error) = write_batches(batches, is_json, io::stdout()) {
            tracing::warn!(%error, "access log not written any more");
        }
    })?;
    Ok(Some(sender))
}

fn write_batches(
    mut batches: mpsc::Receiver<Batch>,
    is_json: bool,
    output: impl Write,
) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    while let Some(batch) = batches.blocking_recv() {
        for entry in batch {
            if is_json {
                writeln!(output, "{}", entry.to_json())?;
            } else {
                writeln!(output, "{entry}")?;
            }
        }
        if batches.is_empty() {
            output.flush()?;
        }
    }
    output.flush()
}
