//! Traces: what endpoints learn about them, which requests are recorded, and what the collector gets.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method};
use lb_http::RoutePolicy;
use lb_http::mirror::Mirror;
use lb_http::policy::ExternalAuth;
use lb_http::trace::{RequestSpan, RouteTracing, SpanName};
use lb_http::upstream::UpstreamProtocol;
use lb_otlp::{CollectorSettings, ExportMetrics, SpanExporter, TracedProcess};
use lb_proxy::TraceSettings;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use crate::client::Client;
use crate::endpoint::{Endpoint, Request, Then, respond};
use crate::forwarding::echo;
use crate::shutdown::block_on;
use crate::world::{HOST, PATIENCE, World, config, name, policy_config, upstream, wait_until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// What the proxy records.
struct Recorded(mpsc::Receiver<Vec<RequestSpan>>);

impl Recorded {
    /// The next spans, in the order of their ends.
    fn take(&mut self, count: usize) -> Vec<RequestSpan> {
        let start = Instant::now();
        let mut spans = Vec::new();
        while spans.len() < count {
            spans.extend(self.0.try_recv().unwrap_or_default());
            assert!(start.elapsed() < PATIENCE, "{count} spans, of which came {spans:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(spans.len(), count);
        spans
    }
}

fn traces(ratio: &str) -> (TraceSettings, Recorded) {
    let (spans, recorded) = mpsc::channel(100);
    let ratio = ratio.parse().unwrap();
    let settings = TraceSettings { by_default: true, ratio, most_per_second: 1_000_000, spans };
    (settings, Recorded(recorded))
}

/// A proxy that traces requests for the endpoint, of which it records a share.
fn tracing(endpoint: &Endpoint, policy: RoutePolicy, ratio: &str) -> (World, Recorded) {
    let (traces, recorded) = traces(ratio);
    let world = World::with(policy_config(&[endpoint.address], policy), |settings| {
        settings.traces = Some(traces);
    });
    (world, recorded)
}

fn get_with(client: &mut Client, lines: &str) {
    client.send(format!("GET /a?b=secret HTTP/1.1\r\nHost: {HOST}\r\n{lines}\r\n"));
    assert_eq!(client.response().status, 200);
}

/// Trace, span and flags of the context that came.
fn context(request: &Request) -> (String, String, String) {
    let text = request.header("traceparent").unwrap();
    let fields: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags] = fields[..] else { panic!("{text}") };
    assert_eq!((version, trace.len(), span.len()), ("00", 32, 16), "{text}");
    (trace.to_owned(), span.to_owned(), flags.to_owned())
}

fn hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Spans, and their octets.
type Collected = (Vec<Span>, Vec<u8>);

/// A collector that keeps all that it gets.
fn collector() -> (Endpoint, Arc<Mutex<Collected>>) {
    let all: Arc<Mutex<Collected>> = Arc::default();
    let kept = all.clone();
    let endpoint = Endpoint::start(move |request, stream| {
        let message = ExportTraceServiceRequest::decode(&*request.body).unwrap();
        let mut kept = kept.lock().unwrap();
        let resources = message.resource_spans.into_iter();
        kept.0.extend(resources.flat_map(|of| of.scope_spans).flat_map(|of| of.spans));
        kept.1.extend_from_slice(&request.body);
        respond(stream, "");
        Then::Keep
    });
    (endpoint, all)
}

fn export_to(collector: &Endpoint) -> (SpanExporter, mpsc::Sender<Vec<RequestSpan>>) {
    let settings = CollectorSettings {
        url: format!("http://{}", collector.address).parse().unwrap(),
        authority_file: None,
        header_file: None,
    };
    let process =
        TracedProcess { service: "edge".to_owned(), version: "1".to_owned(), host: String::new() };
    SpanExporter::start(settings, process, ExportMetrics::default()).unwrap()
}

#[test]
fn a_trace_is_begun_and_its_spans_reach_the_collector() {
    let (endpoint, (collector, collected)) = (echo(), collector());
    let (_exporter, spans) = export_to(&collector);
    let (traces, _) = traces("1");
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.traces = Some(TraceSettings { spans, ..traces });
    });
    let mut client = Client::connect(world.http());
    get_with(
        &mut client,
        "User-Agent: test\r\nAuthorization: Bearer secret\r\nCookie: a=secret\r\n\
         Tracestate: evil=1\r\nConnection: traceparent\r\n",
    );
    let (trace, span, flags) = context(&endpoint.requests()[0]);
    assert_eq!(flags, "03");
    assert_eq!(endpoint.requests()[0].header("tracestate"), None, "of no trace");
    wait_until("spans", || !collected.lock().unwrap().0.is_empty());
    let (spans, octets) = collected.lock().unwrap().clone();
    let [server, client] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*server.name, &*client.name), ("GET /", "GET"));
    assert_eq!([&server.trace_id, &client.trace_id].map(|id| hexadecimal(id)), [&*trace, &trace]);
    assert_eq!(hexadecimal(&client.span_id), span, "the endpoint's parent");
    assert_eq!(client.parent_span_id, server.span_id);
    assert!(server.parent_span_id.is_empty());
    assert!(server.start_time_unix_nano <= client.start_time_unix_nano);
    assert!(client.start_time_unix_nano < server.end_time_unix_nano);
    let contains = |text: &str| octets.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(contains("/a") && contains("user_agent.original"));
    assert!(!contains("secret"));
    assert_eq!(collector.requests()[0].line, "POST /v1/traces HTTP/1.1");
}

#[test]
fn a_clients_trace_is_continued_as_it_wants() {
    let endpoint = echo();
    let (world, mut recorded) = tracing(&endpoint, RoutePolicy::default(), "0");
    let mut client = Client::connect(world.http());
    let (sampled, unsampled) = (format!("00-{TRACE}-{SPAN}-01"), format!("00-{TRACE}-{SPAN}-00"));
    get_with(&mut client, &format!("Traceparent: {sampled}\r\nTracestate: a=1, b=2\r\n"));
    get_with(&mut client, &format!("Traceparent: {unsampled}\r\nTracestate: a=1, b=2\r\n"));
    // Neither is a context.
    get_with(&mut client, "Traceparent: 00-0-0-01\r\nTracestate: a=1\r\n");
    get_with(&mut client, &format!("Traceparent: {sampled}\r\nTraceparent: {sampled}\r\n"));
    let requests = endpoint.requests();

    let (trace, span, flags) = context(&requests[0]);
    assert_eq!((&*trace, &*flags), (TRACE, "01"));
    assert_eq!(requests[0].header("tracestate"), Some("a=1,b=2"));
    let recorded = recorded.take(1).remove(0);
    assert_eq!(format!("{:032x}", recorded.context.trace), TRACE);
    assert_eq!(recorded.parent.map(|span| format!("{span:016x}")).as_deref(), Some(SPAN));
    assert_eq!(recorded.state.as_deref(), Some("a=1,b=2"));
    let client_span = recorded.endpoint.unwrap().span;
    assert_eq!(format!("{client_span:016x}"), span);
    assert_ne!(client_span, recorded.context.span);
    assert_eq!((recorded.path.as_str(), recorded.status), ("/a", Some(200)));

    assert_eq!(requests[1].header("traceparent"), Some(&*unsampled));
    assert_eq!(requests[1].header("tracestate"), Some("a=1, b=2"));
    for request in &requests[2..] {
        let (trace, _, flags) = context(request);
        assert_eq!(flags, "02", "endpoints are not to record it either");
        assert_ne!(trace, TRACE);
        assert_eq!(request.header("tracestate"), None);
    }
}

#[test]
fn routes_decide_whether_and_how_they_are_traced() {
    let endpoint = echo();
    let with = |tracing| RoutePolicy { tracing, ..RoutePolicy::default() };
    let sampled = format!("Traceparent: 00-{TRACE}-{SPAN}-01\r\nTracestate: a=1\r\n");
    for (is_traced, by_default, is_recorded) in [
        (None, true, true),
        (None, false, false),
        (Some(true), false, true),
        (Some(false), true, false),
    ] {
        let (traces, mut recorded) = traces("1");
        let policy = with(RouteTracing { is_traced, ..RouteTracing::default() });
        let world = World::with(policy_config(&[endpoint.address], policy), |settings| {
            settings.traces = Some(TraceSettings { by_default, ..traces });
        });
        get_with(&mut Client::connect(world.http()), &sampled);
        let (_, span, _) = context(endpoint.requests().last().unwrap());
        assert_eq!(span != SPAN, is_recorded);
        if is_recorded {
            recorded.take(1);
        }
    }
    let own = "00-11111111111111111111111111111111-2222222222222222-00";
    let policy = RoutePolicy {
        request_headers: vec![("traceparent".parse().unwrap(), HeaderValue::from_static(own))],
        ..RoutePolicy::default()
    };
    let (world, mut recorded) = tracing(&endpoint, policy, "1");
    get_with(&mut Client::connect(world.http()), &sampled);
    assert_eq!(endpoint.requests().last().unwrap().header("traceparent"), Some(own));
    assert!(recorded.take(1)[0].endpoint.is_some());
    let tracing_of_route = RouteTracing {
        distrusts_clients: true,
        span_name: Some(Arc::new(SpanName::parse("$namespace $uri").unwrap())),
        ..RouteTracing::default()
    };
    let (world, mut recorded) = tracing(&endpoint, with(tracing_of_route), "1");
    get_with(&mut Client::connect(world.http()), &sampled);
    let request = endpoint.requests().pop().unwrap();
    assert_ne!(context(&request).0, TRACE);
    assert_eq!(request.header("tracestate"), None);
    let span = recorded.take(1).remove(0);
    assert_eq!((&*span.name, span.parent), ("default /a", None));
}

#[test]
fn without_a_collector_contexts_are_passed_on_as_they_came() {
    let endpoint = echo();
    let world = World::start(config(&[endpoint.address]));
    get_with(&mut Client::connect(world.http()), "Traceparent: 00-x\r\nTracestate: a\r\n");
    let request = &endpoint.requests()[0];
    assert_eq!(request.header("traceparent"), Some("00-x"));
    assert_eq!(request.header("tracestate"), Some("a"));
}

/// Long texts, those that control a terminal, and more members of `tracestate` than are passed on.
#[test]
fn whatever_a_client_sends_is_recorded_in_few_octets() {
    let endpoint = echo();
    let span_name = Some(Arc::new(SpanName::parse(&"$uri".repeat(64)).unwrap()));
    let tracing_of_route = RouteTracing { span_name, ..RouteTracing::default() };
    let policy = RoutePolicy { tracing: tracing_of_route, ..RoutePolicy::default() };
    let (world, mut recorded) = tracing(&endpoint, policy, "0");
    let path = "/a%20b".repeat(1_000);
    let member = format!("a={}", "b".repeat(120));
    let state = vec![member.as_str(); 32].join(",");
    let mut client = Client::connect(world.http());
    let agent = format!("x\t{}", "\u{9b}1m".repeat(1_000));
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: {agent}\r\n\
         Traceparent: 00-{TRACE}-{SPAN}-01\r\nTracestate: {state}\r\n\r\n"
    ));
    assert_eq!(client.response().status, 200);
    let sent = endpoint.requests().pop().unwrap();
    assert_eq!(sent.header("tracestate"), Some(&*[member.as_str(); 4].join(",")));
    let span = recorded.take(1).remove(0);
    assert!(span.octets() <= 4096, "{} octets: {span:?}", span.octets());
    assert_eq!((span.path.len(), span.name.len()), (1024, 256));
    let agent = span.user_agent.unwrap();
    assert!(agent.starts_with("x\u{fffd}") && !agent.contains(char::is_control), "{agent:?}");
}

/// As many contexts as fit a head, and states that are none.
#[test]
fn floods_of_contexts_begin_a_trace() {
    let endpoint = echo();
    let (world, mut recorded) = tracing(&endpoint, RoutePolicy::default(), "1");
    let mut client = Client::connect(world.http());
    let sampled = format!("Traceparent: 00-{TRACE}-{SPAN}-01\r\n");
    for lines in [
        sampled.repeat(50),
        format!("{sampled}Traceparent: \r\n"),
        format!("Traceparent: {}\r\n", "0".repeat(10_000)),
        "Traceparent:\r\n".to_owned(),
    ] {
        get_with(&mut client, &format!("{lines}Tracestate: a=1\r\n"));
        let request = endpoint.requests().pop().unwrap();
        assert_ne!(context(&request).0, TRACE);
        assert_eq!(request.header("tracestate"), None);
        assert_eq!(recorded.take(1)[0].parent, None);
    }
    for state in [",".repeat(10_000), "a=1,".repeat(2_000), "=".repeat(10_000), "a".to_owned()] {
        get_with(&mut client, &format!("{sampled}Tracestate: {state}\r\n"));
        let request = endpoint.requests().pop().unwrap();
        assert_eq!(context(&request).0, TRACE);
        assert_eq!(request.header("tracestate"), None);
        assert_eq!(recorded.take(1)[0].state, None);
    }
}

/// Whoever exports them waits until there will be none.
#[test]
fn the_last_spans_leave_when_the_proxy_ends() {
    let endpoint = echo();
    let (mut world, mut recorded) = tracing(&endpoint, RoutePolicy::default(), "1");
    get_with(&mut Client::connect(world.http()), "");
    block_on(world.proxy.take().unwrap().shutdown());
    assert_eq!(recorded.take(1)[0].status, Some(200));
    assert_eq!(recorded.0.try_recv(), Err(TryRecvError::Disconnected));
}

/// Only the endpoint's requests come from the span of the endpoint, which there may never be.
#[test]
fn other_servers_are_called_by_the_proxys_span() {
    let (endpoint, mirror, auth) = (echo(), echo(), echo());
    let [mirror_name, auth_name] =
        ["mirror", "auth"].map(|service| name(service, UpstreamProtocol::Http1));
    let policy = RoutePolicy {
        mirror: Some(Mirror {
            upstream: mirror_name.clone(),
            host: HeaderValue::from_static("mirror.test"),
            uri: "/".into(),
            with_body: false,
        }),
        external_auth: Some(ExternalAuth {
            upstream: auth_name.clone(),
            url: "http://auth.test/".parse().unwrap(),
            method: Method::GET,
            signin: None,
            response_headers: Vec::new(),
        }),
        ..RoutePolicy::default()
    };
    let mut config = policy_config(&[endpoint.address], policy);
    config.upstreams.insert(mirror_name, upstream(&[mirror.address]));
    config.upstreams.insert(auth_name, upstream(&[auth.address]));
    let (traces, mut recorded) = traces("1");
    let world = World::with(config, |settings| settings.traces = Some(traces));
    get_with(&mut Client::connect(world.http()), "");
    mirror.wait_for(1);
    let span = recorded.take(1).remove(0);
    let own = format!("{:016x}", span.context.span);
    let of_endpoint = format!("{:016x}", span.endpoint.unwrap().span);
    for (server, expected) in [(&auth, &own), (&mirror, &own), (&endpoint, &of_endpoint)] {
        assert_eq!(context(&server.requests()[0]).1, *expected);
    }
}

#[test]
fn a_request_without_endpoint_has_a_span_with_the_reason() {
    let (traces, mut recorded) = traces("1");
    let world = World::with(config(&[]), |settings| settings.traces = Some(traces));
    let mut client = Client::connect(world.http());
    assert_eq!(client.get(HOST, "/").status, 503);
    // No rule, no namespace, no trace.
    assert_eq!(client.get("unknown.test", "/").status, 404);
    let span = recorded.take(1).remove(0);
    assert_eq!((span.status, span.reason), (Some(503), Some("no_endpoint")));
    assert!(span.endpoint.is_none());
}

/// All clients want to be recorded; their requests are served, and their traces continue without the proxy.
#[test]
fn clients_cannot_have_everything_recorded() {
    let endpoint = echo();
    let (traces, _recorded) = traces("0");
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.traces = Some(TraceSettings { most_per_second: 1, ..traces });
    });
    let mut client = Client::connect(world.http());
    let dropped = || world.metric("spans_dropped_total{reason=\"rate\"}");
    let start = Instant::now();
    while dropped() < 3 {
        get_with(&mut client, &format!("Traceparent: 00-{TRACE}-{SPAN}-01\r\n"));
        assert!(start.elapsed() < PATIENCE);
    }
    let requests = endpoint.requests();
    let passed_on = requests.iter().filter(|request| context(request).1 == SPAN).count();
    assert_eq!(passed_on as u64, dropped());
    assert!(passed_on < requests.len());
}

#[test]
fn a_collector_that_hangs_costs_spans_and_no_request() {
    let endpoint = echo();
    let collector = Endpoint::on_heads(true, |_, _| Then::Keep);
    let (_exporter, spans) = export_to(&collector);
    let (traces, _) = traces("1");
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.traces = Some(TraceSettings { spans, ..traces });
    });
    let mut client = Client::connect(world.http());
    get_with(&mut client, "");
    collector.wait_for(1);
    for _ in 0..100 {
        get_with(&mut client, "");
    }
}

#[test]
fn spans_that_do_not_fit_the_queue_are_dropped_and_counted() {
    let endpoint = echo();
    let (traces, _) = traces("1");
    let (spans, _full) = mpsc::channel(1);
    spans.try_send(Vec::new()).unwrap();
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.traces = Some(TraceSettings { spans, ..traces });
    });
    let mut client = Client::connect(world.http());
    for _ in 0..100 {
        get_with(&mut client, "");
    }
    let dropped = || world.metric("spans_dropped_total{reason=\"queue\"}");
    wait_until("dropped spans", || dropped() == 100);
}
