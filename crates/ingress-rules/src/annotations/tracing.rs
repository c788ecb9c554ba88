//! Traces of requests.

use std::sync::Arc;

use lb_http::trace::SpanName;

use super::values::parse_boolean;
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "tracing",
        &["enable-opentelemetry"],
        "`true`, `false`",
        set_tracing,
        "Whether requests are [traced](ingress-operations.md#tracing)",
    )
    .differs("needs `otlp-endpoint`"),
    Annotation::set(
        "trust-incoming-trace",
        &["opentelemetry-trust-incoming-span"],
        "`true`, `false`",
        set_trust,
        "Whether clients' traces are continued; `true` without it",
    ),
    Annotation::set(
        "span-name",
        &["opentelemetry-operation-name"],
        "text and variables",
        |draft, text| { draft.tracing.span_name = Some(Arc::new(SpanName::parse(text.trim())?)); Ok(()) },
        "Name of spans, with `$request_method`, `$host`, `$uri`, `$location_path`, `$namespace`, `$ingress_name`, `$service_name`",
    )
    .differs("only these; `METHOD PATH` of the rule without it"),
];

/// With a value that cannot be read nothing is recorded.
fn set_tracing(draft: &mut Draft, text: &str) -> Result<(), String> {
    let is_traced = parse_boolean(text);
    draft.tracing.is_traced = Some(is_traced.as_ref().is_ok_and(|is_traced| *is_traced));
    is_traced.map(drop)
}

/// With a value that cannot be read no client is believed.
fn set_trust(draft: &mut Draft, text: &str) -> Result<(), String> {
    let trusts = parse_boolean(text);
    draft.tracing.distrusts_clients = !trusts.as_ref().is_ok_and(|trusts| *trusts);
    trusts.map(drop)
}
