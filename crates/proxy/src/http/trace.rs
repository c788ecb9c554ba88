//! The trace of one request: what endpoints learn about it, and what is recorded.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use http::header::{HOST, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use lb_http::trace::{
    EndpointSpan, MOST_STATE_OCTETS, RequestSpan, SpanName, SpanNameFacts, TRACEPARENT, TRACESTATE,
    TraceContext, choose_trace, read_context, read_state, shorten_text,
};
use lb_http::{Action, PathPattern, Route};

use crate::client::ClientConnection;

/// What a span has of a text that a client has sent. A host with its port fits.
const MOST_PATH_OCTETS: usize = 1 << 10;
const MOST_OCTETS: usize = 260;

/// A request whose context is not passed on as it came.
pub(crate) struct RequestTrace {
    context: HeaderValue,
    state: Option<HeaderValue>,
    /// Other servers get the context that the route's policy sets.
    is_set_by_route: bool,
    recorded: Option<RecordedSpan>,
}

/// A request that is recorded.
struct RecordedSpan {
    /// As far as it is known when the request comes.
    span: RequestSpan,
    /// Of the span that the endpoint sees.
    endpoint_context: TraceContext,
    /// When the request was sent to the endpoint.
    forwarded: Option<Instant>,
}

/// A request whose route is known.
#[derive(Clone, Copy)]
pub(crate) struct TracedRequest<'a> {
    pub connection: &'a ClientConnection,
    /// The client's address: of the connection, or as a trusted proxy reports it.
    pub client: IpAddr,
    pub started: Instant,
    pub route: &'a Route,
    /// The rule's.
    pub path: &'a PathPattern,
    pub scheme: &'static str,
    pub parts: &'a Parts,
}

/// Decides about the trace of a request. `None`: its context is passed on as it came.
pub(crate) fn begin_trace(request: TracedRequest<'_>) -> Option<Box<RequestTrace>> {
    let TracedRequest { connection, started, route, parts, .. } = request;
    let worker = &connection.worker;
    let spans = worker.spans.as_ref()?;
    let (settings, tracing) = (spans.settings(), &route.policy.tracing);
    if !tracing.is_traced.unwrap_or(settings.by_default) {
        return None;
    }
    let parent = (!tracing.distrusts_clients).then(|| read_context(&parts.headers)).flatten();
    let wanted = choose_trace(parent.as_ref(), settings.ratio, worker.random_pair());
    let is_recorded = wanted.sampled.is_some() && spans.admit(&route.owner.namespace, started);
    if parent.is_some() && !is_recorded {
        return None;
    }
    let context = wanted.context_of(worker.random(), is_recorded);
    let state = parent.and_then(|_| read_state(&parts.headers));
    let recorded = is_recorded.then(|| {
        let span = RequestSpan {
            parent: parent.map(|parent| parent.span),
            state: state.as_ref().map(|state| shorten_text(state.as_bytes(), MOST_STATE_OCTETS)),
            ..describe_request(request, context)
        };
        let endpoint_context = wanted.context_of(worker.random(), true);
        RecordedSpan { span, endpoint_context, forwarded: None }
    });
    let context = context.to_header();
    let is_set_by_route = route.policy.sets_request_header(&TRACEPARENT);
    Some(Box::new(RequestTrace { context, state, is_set_by_route, recorded }))
}

/// What is known when the request comes.
fn describe_request(request: TracedRequest<'_>, context: TraceContext) -> RequestSpan {
    let TracedRequest { connection, client, route, path, scheme, parts, .. } = request;
    let text = |value: &HeaderValue| shorten_text(value.as_bytes(), MOST_OCTETS);
    let header = |name| parts.headers.get(name).map(text);
    let host = header(HOST).or_else(|| Some(parts.uri.authority()?.as_str().to_owned()));
    let method = shorten_text(parts.method.as_str().as_bytes(), MOST_OCTETS);
    let uri = shorten_text(parts.uri.path().as_bytes(), MOST_PATH_OCTETS);
    let rule = shorten_text(path.text().as_bytes(), MOST_PATH_OCTETS);
    let service = match &route.action {
        Action::Forward(upstream) => &*upstream.service,
        Action::Respond { .. } => "",
    };
    let facts = SpanNameFacts {
        method: &method,
        host: host.as_deref().unwrap_or_default(),
        path: &uri,
        route: &rule,
        namespace: &route.owner.namespace,
        ingress: &route.owner.name,
        service,
    };
    let name = match &route.policy.tracing.span_name {
        Some(name) => name.fill(&facts),
        None => SpanName::fill_default(&method, &rule),
    };
    RequestSpan {
        context,
        parent: None,
        state: None,
        name,
        started: SystemTime::UNIX_EPOCH,
        duration: Duration::ZERO,
        scheme,
        user_agent: header(USER_AGENT),
        version: match parts.version {
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2",
            _ => "1.1",
        },
        client,
        peer: connection.peer,
        owner: route.owner.clone(),
        status: None,
        reason: None,
        received: 0,
        sent: 0,
        endpoint: None,
        method,
        path: uri,
        host,
        route: rule,
    }
}

impl RequestTrace {
    /// Replaces the client's context: the request comes from this proxy's span.
    pub fn insert_context(&self, headers: &mut HeaderMap) {
        if self.is_set_by_route {
            return;
        }
        headers.insert(TRACEPARENT, self.context.clone());
        match &self.state {
            Some(state) => drop(headers.insert(TRACESTATE, state.clone())),
            None => drop(headers.remove(TRACESTATE)),
        }
    }

    /// The request is sent to endpoints now: it comes from a span of its own.
    pub fn begin_endpoint_span(&mut self, headers: &mut HeaderMap) {
        let Some(recorded) = &mut self.recorded else { return };
        if !self.is_set_by_route {
            headers.insert(TRACEPARENT, recorded.endpoint_context.to_header());
        }
        recorded.forwarded = Some(Instant::now());
    }

    /// The request has ended; returns its span, if it is recorded.
    pub fn end_span(self, end: &RequestEnd) -> Option<RequestSpan> {
        let RecordedSpan { mut span, endpoint_context, forwarded } = self.recorded?;
        span.duration = end.duration;
        span.started = SystemTime::now() - end.duration;
        span.status = end.status.map(|status| status.as_u16());
        span.reason = end.reason;
        (span.received, span.sent) = (end.received, end.sent);
        span.endpoint = forwarded.zip(end.endpoint).map(|(at, address)| EndpointSpan {
            span: endpoint_context.span,
            after: at.saturating_duration_since(end.started),
            address,
            tries: end.tries,
        });
        Some(span)
    }
}

/// What is known about a request when it has ended.
pub(crate) struct RequestEnd {
    pub started: Instant,
    pub duration: Duration,
    /// Octets of the request's body.
    pub received: u64,
    /// Octets of the response's body.
    pub sent: u64,
    pub status: Option<StatusCode>,
    pub reason: Option<&'static str>,
    /// The endpoint that replied, or was tried last.
    pub endpoint: Option<SocketAddr>,
    /// Endpoints that were tried.
    pub tries: u32,
}
