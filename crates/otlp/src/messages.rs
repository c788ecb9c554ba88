//! Spans as OTLP has them. Names of attributes are those of OpenTelemetry's semantic conventions for HTTP, except for
//! `millrace.`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::uri::Authority;
use lb_http::trace::{EndpointSpan, RequestSpan};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

/// The process that the spans come from.
#[derive(Clone, Debug)]
pub struct TracedProcess {
    /// `service.name`.
    pub service: String,
    pub version: String,
    /// Empty: unknown.
    pub host: String,
}

/// Methods that are in spans as they are: clients can invent others without end.
const METHODS: [&str; 9] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
/// Flags of a span whose parent is known to be another process's, or of this one.
const HAS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

pub(crate) fn export_request(
    process: &TracedProcess,
    spans: &[RequestSpan],
) -> ExportTraceServiceRequest {
    let mut resource = Attributes::default();
    resource.text("service.name", &process.service);
    resource.text("service.version", &process.version);
    if !process.host.is_empty() {
        resource.text("host.name", &process.host);
    }
    let scope = InstrumentationScope {
        name: "millrace".to_owned(),
        version: process.version.clone(),
        ..InstrumentationScope::default()
    };
    let mut all = Vec::with_capacity(2 * spans.len());
    for span in spans {
        all.push(server_span(span));
        all.extend(span.endpoint.as_ref().map(|endpoint| client_span(span, endpoint)));
    }
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes: resource.0, ..Resource::default() }),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans: all,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

/// The request as the client sees it.
fn server_span(span: &RequestSpan) -> Span {
    let mut attributes = Attributes::default();
    attributes.method(&span.method);
    attributes.text("url.path", &span.path);
    attributes.text("url.scheme", span.scheme);
    if !span.route.is_empty() {
        attributes.text("http.route", &span.route);
    }
    if let Some(host) = &span.host {
        attributes.host(host);
    }
    attributes.text("client.address", &span.client.to_string());
    attributes.text("network.peer.address", &span.peer.ip().to_canonical().to_string());
    attributes.number("network.peer.port", span.peer.port().into());
    attributes.text("network.protocol.version", span.version);
    if let Some(agent) = &span.user_agent {
        attributes.text("user_agent.original", agent);
    }
    attributes.number("http.request.body.size", number(span.received));
    attributes.number("http.response.body.size", number(span.sent));
    attributes.text("millrace.ingress", &span.owner.to_string());
    if let Some(reason) = span.reason {
        attributes.text("millrace.reason", reason);
    }
    // What a client does wrong is no error of the server.
    let is_error = span.status.is_none_or(|status| status >= 500);
    let status = attributes.outcome(span, is_error);
    Span {
        span_id: span.context.span.get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |id| id.get().to_be_bytes().to_vec()),
        flags: u32::from(span.context.flags())
            | HAS_REMOTE
            | if span.parent.is_some() { IS_REMOTE } else { 0 },
        name: span.name.clone(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanoseconds(span.started),
        attributes: attributes.0,
        status: Some(status),
        ..of_trace(span)
    }
}

/// The request as the endpoint sees it: all tries together.
fn client_span(span: &RequestSpan, endpoint: &EndpointSpan) -> Span {
    let mut attributes = Attributes::default();
    attributes.method(&span.method);
    let address = endpoint.address.ip().to_canonical().to_string();
    attributes.text("server.address", &address);
    attributes.number("server.port", endpoint.address.port().into());
    attributes.text("network.peer.address", &address);
    attributes.number("network.peer.port", endpoint.address.port().into());
    if endpoint.tries > 1 {
        attributes.number("http.request.resend_count", i64::from(endpoint.tries) - 1);
    }
    let is_error = span.status.is_none_or(|status| status >= 400);
    let status = attributes.outcome(span, is_error);
    Span {
        span_id: endpoint.span.get().to_be_bytes().to_vec(),
        parent_span_id: span.context.span.get().to_be_bytes().to_vec(),
        flags: u32::from(span.context.flags()) | HAS_REMOTE,
        name: known_method(&span.method).unwrap_or("HTTP").to_owned(),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: nanoseconds(span.started + endpoint.after),
        attributes: attributes.0,
        status: Some(status),
        ..of_trace(span)
    }
}

/// What both spans of a request have.
fn of_trace(span: &RequestSpan) -> Span {
    Span {
        trace_id: span.context.trace.get().to_be_bytes().to_vec(),
        trace_state: span.state.clone().unwrap_or_default(),
        end_time_unix_nano: nanoseconds(span.started + span.duration),
        ..Span::default()
    }
}

fn known_method(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == method)
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn number(octets: u64) -> i64 {
    i64::try_from(octets).unwrap_or(i64::MAX)
}

#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, key: &str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    }

    fn text(&mut self, key: &str, value: &str) {
        self.add(key, Value::StringValue(value.to_owned()));
    }

    fn number(&mut self, key: &str, value: i64) {
        self.add(key, Value::IntValue(value));
    }

    fn method(&mut self, method: &str) {
        match known_method(method) {
            Some(known) => self.text("http.request.method", known),
            None => {
                self.text("http.request.method", "_OTHER");
                self.text("http.request.method_original", method);
            }
        }
    }

    /// The server that the client has named.
    fn host(&mut self, host: &str) {
        let authority = host.parse::<Authority>().ok();
        // A user would be a credential; requests with one are refused.
        if let Some(authority) = authority.filter(|authority| !authority.as_str().contains('@')) {
            self.text("server.address", authority.host().trim_matches(['[', ']']));
            if let Some(port) = authority.port_u16() {
                self.number("server.port", port.into());
            }
        }
    }

    /// Adds how the request ended.
    fn outcome(&mut self, span: &RequestSpan, is_error: bool) -> Status {
        if let Some(status) = span.status {
            self.number("http.response.status_code", status.into());
        }
        // A response that was cut off has the status of a complete one.
        let is_cut_off = span.status.is_some_and(|status| status < 400)
            && matches!(span.reason, Some("client_closed" | "tunnel_failed"));
        if !is_error && !is_cut_off {
            return Status::default();
        }
        let status = span.status.map(|status| status.to_string());
        let kind = span.reason.map(str::to_owned).or(status).unwrap_or_default();
        self.text("error.type", &kind);
        Status { code: StatusCode::Error.into(), message: String::new() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::{NonZeroU64, NonZeroU128};

    use lb_http::RouteOwner;
    use lb_http::trace::TraceContext;

    use super::*;

    pub(crate) fn request_span() -> RequestSpan {
        RequestSpan {
            context: TraceContext {
                trace: NonZeroU128::new(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c).unwrap(),
                span: NonZeroU64::new(0xb7ad_6b71_6920_3331).unwrap(),
                is_sampled: true,
                is_random: false,
            },
            parent: NonZeroU64::new(7),
            state: Some("foo=1".to_owned()),
            name: "GET /cart".to_owned(),
            started: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            duration: Duration::from_millis(3),
            method: "GET".to_owned(),
            path: "/cart/1".to_owned(),
            scheme: "https",
            host: Some("shop.test:8443".to_owned()),
            user_agent: Some("curl/8".to_owned()),
            version: "1.1",
            client: [192, 0, 2, 1].into(),
            peer: ([198, 51, 100, 1], 4711).into(),
            owner: RouteOwner { namespace: "shop".into(), name: "web".into() },
            route: "/cart".to_owned(),
            status: Some(200),
            reason: None,
            received: 1,
            sent: 12,
            endpoint: Some(EndpointSpan {
                span: NonZeroU64::new(9).unwrap(),
                after: Duration::from_millis(1),
                address: ([10, 0, 0, 1], 8080).into(),
                tries: 2,
            }),
        }
    }

    fn spans(span: &RequestSpan) -> Vec<Span> {
        let process = TracedProcess {
            service: "edge".to_owned(),
            version: "1".to_owned(),
            host: "node-1".to_owned(),
        };
        let mut request = export_request(&process, std::slice::from_ref(span));
        let mut resource = request.resource_spans.pop().unwrap();
        let attributes = texts(&resource.resource.unwrap().attributes);
        assert_eq!(attributes, "service.name=edge service.version=1 host.name=node-1");
        resource.scope_spans.pop().unwrap().spans
    }

    fn texts(attributes: &[KeyValue]) -> String {
        let text = |attribute: &KeyValue| match attribute.value.clone().unwrap().value.unwrap() {
            Value::StringValue(text) => format!("{}={text}", attribute.key),
            Value::IntValue(number) => format!("{}={number}", attribute.key),
            other => panic!("{other:?}"),
        };
        attributes.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_request_is_a_server_span_and_one_for_endpoints() {
        let spans = spans(&request_span());
        let [server, client] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(server.trace_id.len(), 16);
        assert_eq!(server.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!(server.span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        assert_eq!(server.parent_span_id, 7_u64.to_be_bytes());
        assert_eq!((server.flags, client.flags), (0x301, 0x101));
        assert_eq!((&*server.name, &*client.name), ("GET /cart", "GET"));
        assert_eq!((server.kind, client.kind), (2, 3));
        assert_eq!(server.start_time_unix_nano, 1_700_000_000_000_000_000);
        assert_eq!(client.start_time_unix_nano, 1_700_000_000_001_000_000);
        assert_eq!(server.end_time_unix_nano, 1_700_000_000_003_000_000);
        assert_eq!(server.trace_state, "foo=1");
        assert_eq!(
            texts(&server.attributes),
            "http.request.method=GET url.path=/cart/1 url.scheme=https http.route=/cart \
             server.address=shop.test server.port=8443 client.address=192.0.2.1 \
             network.peer.address=198.51.100.1 network.peer.port=4711 network.protocol.version=1.1 \
             user_agent.original=curl/8 http.request.body.size=1 http.response.body.size=12 \
             millrace.ingress=shop/web http.response.status_code=200"
        );
        assert_eq!(client.trace_id, server.trace_id);
        assert_eq!(client.parent_span_id, server.span_id);
        assert_eq!(client.span_id, 9_u64.to_be_bytes());
        assert_eq!(client.end_time_unix_nano, server.end_time_unix_nano);
        assert_eq!(
            texts(&client.attributes),
            "http.request.method=GET server.address=10.0.0.1 server.port=8080 \
             network.peer.address=10.0.0.1 network.peer.port=8080 http.request.resend_count=1 \
             http.response.status_code=200"
        );
        assert_eq!(server.status, Some(Status::default()));
    }

    #[test]
    fn errors_are_the_servers() {
        for (status, reason, kind, server, client) in [
            (Some(200), None, None, 0, 0),
            (Some(404), None, Some("404"), 0, 2),
            (Some(500), None, Some("500"), 2, 2),
            (Some(502), Some("endpoint_connect"), Some("endpoint_connect"), 2, 2),
            (Some(401), Some("jwt"), Some("jwt"), 0, 2),
            (Some(200), Some("client_closed"), Some("client_closed"), 2, 2),
            (None, Some("client_closed"), Some("client_closed"), 2, 2),
        ] {
            let spans = spans(&RequestSpan { status, reason, ..request_span() });
            let codes = spans.iter().map(|span| span.status.as_ref().unwrap().code);
            assert_eq!(codes.collect::<Vec<_>>(), [server, client], "{status:?} {reason:?}");
            let text = texts(&spans[1].attributes);
            assert_eq!(text.split_once("error.type=").map(|(_, kind)| kind), kind);
        }
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let span = RequestSpan {
            parent: None,
            state: None,
            host: Some("ann:secret@a".to_owned()),
            user_agent: None,
            method: "BREW".to_owned(),
            route: String::new(),
            endpoint: None,
            started: UNIX_EPOCH - Duration::from_secs(1),
            ..request_span()
        };
        let spans = spans(&span);
        let [server] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((server.parent_span_id.len(), server.flags), (0, 0x101));
        assert_eq!(server.start_time_unix_nano, 0);
        let text = texts(&server.attributes);
        assert!(text.starts_with("http.request.method=_OTHER http.request.method_original=BREW "));
        for absent in ["secret", "server.", "http.route", "user_agent"] {
            assert!(!text.contains(absent), "{text}");
        }
    }
}
