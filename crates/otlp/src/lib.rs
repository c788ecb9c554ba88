//! Exports spans of requests by OTLP over HTTP, the protocol of OpenTelemetry, to the collector of the settings.
//!
//! - `collector`: where it is, and how it is reached; `connection`: requests to it
//! - `messages`: spans as OTLP has them, by the semantic conventions
//! - `exporter`: the thread that sends them; `backlog`: spans that wait for it; `metrics`: what became of them
//!
//! # Invariants
//! - Nothing waits for the collector. One that is away, slow or replies with nonsense costs spans, and bounded memory.
//! - What the collector sends decides only whether and when spans are sent again. A bounded part of it is read.
//! - Credentials for the collector are read from a file, sent to the collector only, and never logged.

mod backlog;
mod collector;
mod connection;
mod exporter;
mod messages;
mod metrics;

pub use collector::{CollectorSettings, CollectorUrl};
pub use exporter::SpanExporter;
pub use messages::TracedProcess;
pub use metrics::ExportMetrics;
