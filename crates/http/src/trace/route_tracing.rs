//! What a route says about the traces of its requests.

use std::sync::Arc;

use super::span_name::SpanName;

/// A part of a route's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTracing {
    /// `None`: as the settings say.
    pub is_traced: Option<bool>,
    /// The context of clients is replaced.
    pub distrusts_clients: bool,
    /// `None`: method and path of the rule.
    pub span_name: Option<Arc<SpanName>>,
}
