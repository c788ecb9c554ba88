//! Traces of requests.

use std::sync::Arc;

use lb_http::trace::SpanName;

use super::Annotation;
use super::values::parse_boolean;

const NEEDS: &str = "needs the setting `otlp-endpoint`";

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "tracing",
        &["enable-opentelemetry"],
        "`true`, `false`",
        |draft, text| { draft.tracing.is_traced = Some(parse_boolean(text)?); Ok(()) },
        "Whether requests are [traced](ingress-operations.md#tracing)",
    )
    .differs(NEEDS),
    Annotation::set(
        "trust-incoming-trace",
        &["opentelemetry-trust-incoming-span"],
        "`true`, `false`",
        |draft, text| { draft.tracing.distrusts_clients = !parse_boolean(text)?; Ok(()) },
        "Whether traces of clients are continued; they are without it",
    ),
    Annotation::set(
        "span-name",
        &["opentelemetry-operation-name"],
        "text and variables",
        |draft, text| { draft.tracing.span_name = Some(Arc::new(SpanName::parse(text.trim())?)); Ok(()) },
        "Name of spans, with `$request_method`, `$host`, `$uri`, `$location_path`, `$namespace`, `$ingress_name`, `$service_name`",
    )
    .differs("no other variables; method and path of the rule without it"),
];
