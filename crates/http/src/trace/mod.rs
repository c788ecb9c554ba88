//! Traces of requests, as OpenTelemetry has them: the context that requests carry (W3C Trace Context), which requests are
//! recorded, and what is recorded about one.
//!
//! Invariants:
//! - A context that cannot be read is as none: the trace begins here.
//! - No client and no namespace decides how many spans are recorded: [`SpanRates`] bounds them.
//! - A span has no credentials: neither query, cookies nor other headers than `Host` and `User-Agent`. Its texts are short.

mod context;
mod rates;
mod route_tracing;
mod sampling;
mod span;
mod span_name;
mod state;
mod text;

pub use context::{TRACEPARENT, TRACESTATE, TraceContext, read_context};
pub use rates::SpanRates;
pub use route_tracing::RouteTracing;
pub use sampling::{SamplingRatio, SamplingReason, WantedTrace, choose_trace};
pub use span::{EndpointSpan, RequestSpan};
pub use span_name::{SpanName, SpanNameFacts};
pub use state::{MOST_STATE_OCTETS, read_state};
pub use text::shorten_text;
