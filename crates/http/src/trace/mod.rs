//! Traces of requests, as OpenTelemetry has them: the context that requests carry (W3C Trace Context), which requests are
//! recorded, and what is recorded about one.
//!
//! Invariants:
//! - A context that cannot be read is as none: the trace begins here.
//! - No client and no namespace decides how many spans are recorded: [`SpanRates`] bounds them.
//! - A span has no credentials: neither query, cookies nor other headers than `Host` and `User-Agent`. Its texts are short.

mod context;
mod rates;
mod sampling;
mod span;
mod span_name;
mod state;

use std::sync::Arc;

pub use context::{TRACEPARENT, TRACESTATE, TraceContext, read_context};
pub use rates::SpanRates;
pub use sampling::{SamplingRatio, SamplingReason, WantedTrace, choose_trace};
pub use span::{EndpointSpan, RequestSpan, shorten_text};
pub use span_name::{SpanName, SpanNameFacts};
pub use state::{MOST_STATE_OCTETS, read_state};

/// What a route says about the traces of its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTracing {
    /// `None`: as the settings say.
    pub is_traced: Option<bool>,
    /// The context of clients is replaced.
    pub distrusts_clients: bool,
    /// `None`: method and path of the rule.
    pub span_name: Option<Arc<SpanName>>,
}
