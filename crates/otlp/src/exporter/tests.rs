//! The exporter and collectors of all kinds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::messages::tests::request_span;

/// What a collector does with a request.
#[derive(Clone)]
enum Reply {
    Octets(Vec<u8>),
    /// Then it closes the connection.
    LastOctets(&'static str),
    Hang,
}

/// What a collector has received: heads, and numbers of spans.
#[derive(Clone, Default)]
struct Received {
    requests: Arc<Mutex<Vec<(String, usize)>>>,
    connections: Arc<AtomicUsize>,
}

impl Received {
    fn all(&self) -> Vec<(String, usize)> {
        self.requests.lock().unwrap().clone()
    }

    async fn wait_for(&self, count: usize) {
        while self.all().len() < count {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A collector on this connection; it replies with these in turn, and for ever with the last one.
async fn collect(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    received: Received,
    replies: Vec<Reply>,
) {
    let mut octets = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = octets.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read_buf(&mut octets).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let head = String::from_utf8(octets.drain(..end).collect()).unwrap().to_lowercase();
        let length = head.split_once("content-length: ").unwrap().1;
        let length: usize = length.split_once("\r\n").unwrap().0.parse().unwrap();
        while octets.len() < length {
            stream.read_buf(&mut octets).await.unwrap();
        }
        let message: Vec<u8> = octets.drain(..length).collect();
        let message = ExportTraceServiceRequest::decode(&*message).unwrap();
        let spans = message.resource_spans[0].scope_spans[0].spans.len();
        let number = {
            let mut received = received.requests.lock().unwrap();
            received.push((head, spans));
            received.len() - 1
        };
        let written = match &replies[number.min(replies.len() - 1)] {
            Reply::Octets(octets) => stream.write_all(octets).await,
            Reply::LastOctets(octets) => {
                let _ = stream.write_all(octets.as_bytes()).await;
                return;
            }
            Reply::Hang => std::future::pending().await,
        };
        if written.is_err() {
            return;
        }
    }
}

async fn listen(replies: Vec<Reply>) -> (CollectorSettings, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let all = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            all.connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(collect(stream, all.clone(), replies.clone()));
        }
    });
    (settings(&url), received)
}

fn settings(url: &str) -> CollectorSettings {
    CollectorSettings { url: url.parse().unwrap(), authority_file: None, header_file: None }
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Reply {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    Reply::Octets([head.as_bytes(), body].concat())
}

fn process() -> TracedProcess {
    TracedProcess { service: "edge".to_owned(), version: "1".to_owned(), host: String::new() }
}

fn start(
    collector: CollectorSettings,
    metrics: ExportMetrics,
) -> (SpanExporter, mpsc::Sender<Vec<RequestSpan>>) {
    SpanExporter::start(collector, process(), metrics).unwrap()
}

fn export_to(collector: CollectorSettings) -> ExporterThread {
    let mut export = ExporterThread::new(collector, process(), ExportMetrics::default());
    export.backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    export
}

/// Sends two spans, and returns how many were accepted, rejected and failed.
async fn export_two(export: &mut ExporterThread) -> [u64; 3] {
    export.export_spans(&[request_span(), request_span()]).await;
    export.metrics.counts()
}

#[tokio::test]
async fn spans_are_sent_over_one_connection() {
    let (mut collector, received) = listen(vec![reply("200 OK", "", b"")]).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("headers");
    std::fs::write(&path, "Authorization: Bearer a\nHost: evil\nContent-Type: text/plain").unwrap();
    collector.header_file = Some(path);
    let authority = collector.url.authority.clone();
    let connections = received.connections.clone();
    let mut export = export_to(collector);
    assert_eq!(export_two(&mut export).await, [2, 0, 0]);
    assert_eq!(export_two(&mut export).await, [4, 0, 0]);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    let received = received.all();
    assert_eq!(received.len(), 2);
    let (head, spans) = &received[0];
    assert_eq!(*spans, 4, "of clients and endpoints");
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    for line in ["content-type: application/x-protobuf", "authorization: bearer a"] {
        assert_eq!(head.matches(line).count(), 1, "{head}");
    }
    assert!(head.contains(&format!("host: {authority}\r\n")) && !head.contains("evil"), "{head}");
}

#[tokio::test]
async fn what_the_collector_replies_decides_what_is_sent_again() {
    let partial = |rejected: i64| {
        use opentelemetry_proto::tonic::collector::trace::v1 as collector;
        let part = collector::ExportTracePartialSuccess {
            rejected_spans: rejected,
            error_message: "no".to_owned(),
        };
        let response =
            collector::ExportTraceServiceResponse { partial_success: Some(part) }.encode_to_vec();
        reply("200 OK", "", &response)
    };
    let ok = || reply("200 OK", "", b"");
    let busy = || reply("503 Busy", "", b"later");
    for (replies, counts, requests) in [
        (vec![reply("202 Accepted", "", b"")], [2, 0, 0], 1),
        (vec![reply("200 OK", "", b"nonsense")], [2, 0, 0], 1),
        (vec![partial(1)], [1, 1, 0], 1),
        (vec![partial(i64::MAX)], [0, 2, 0], 1),
        (vec![partial(-5)], [2, 0, 0], 1),
        (vec![busy(), reply("429 Slow", "Retry-After: 0\r\n", b""), ok()], [2, 0, 0], 3),
        (vec![busy()], [0, 0, 2], 5),
        (vec![reply("400 Bad", "", b"")], [0, 2, 0], 1),
        (vec![reply("302 Found", "Location: http://evil.test/\r\n", b"")], [0, 2, 0], 1),
        (vec![Reply::Octets(b"nonsense\r\n\r\n".to_vec()), ok()], [2, 0, 0], 2),
        (
            vec![reply("200 OK", &format!("X: {}\r\n", "a".repeat(1 << 20)), b""), ok()],
            [2, 0, 0],
            2,
        ),
        (vec![Reply::LastOctets(""), ok()], [2, 0, 0], 2),
        (vec![Reply::LastOctets("HTTP/1.1 200"), ok()], [2, 0, 0], 2),
        (vec![Reply::LastOctets("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na")], [2, 0, 0], 1),
        (
            vec![Reply::LastOctets("HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\na"), ok()],
            [2, 0, 0],
            2,
        ),
    ] {
        let (collector, received) = listen(replies.clone()).await;
        let mut export = export_to(collector);
        let shown = match &replies[0] {
            Reply::Octets(octets) => {
                String::from_utf8_lossy(&octets[..octets.len().min(99)]).into_owned()
            }
            Reply::LastOctets(octets) => format!("{octets} and the end"),
            Reply::Hang => unreachable!("of none"),
        };
        assert_eq!(export_two(&mut export).await, counts, "{shown}");
        assert_eq!(received.all().len(), requests, "{shown}");
    }
}

/// A response without end is not read to the end, and its connection not used again.
#[tokio::test]
async fn a_long_response_is_cut_off() {
    let long = reply("200 OK", "", &vec![b'a'; 1 << 20]);
    let (collector, received) = listen(vec![long, reply("200 OK", "", b"")]).await;
    let mut export = export_to(collector);
    assert_eq!(export_two(&mut export).await, [2, 0, 0]);
    assert_eq!(export_two(&mut export).await, [4, 0, 0]);
    assert_eq!(received.all().len(), 2);
}

#[tokio::test]
async fn a_collector_that_hangs_costs_its_spans() {
    let (collector, received) = listen(vec![Reply::Hang]).await;
    let mut export = export_to(collector);
    let connection = CollectorConnection::new(settings("http://127.0.0.1:9"));
    let hanging = std::mem::replace(&mut export.connection, connection);
    export.connection = hanging.with_limit(Duration::from_millis(20));
    assert_eq!(export_two(&mut export).await, [0, 0, 2]);
    assert!(received.all().len() <= 5);
}

/// What waits is bounded: whoever sends is told at once.
#[tokio::test]
async fn a_collector_that_hangs_does_not_fill_the_memory() {
    let (collector, received) = listen(vec![Reply::Hang]).await;
    let (exporter, queue) = start(collector, ExportMetrics::default());
    queue.send(vec![request_span()]).await.unwrap();
    received.wait_for(1).await;
    let long = RequestSpan { path: "a".repeat(100_000), ..request_span() };
    let mut taken = 0;
    for _ in 0..1_000 {
        taken += usize::from(queue.try_send(vec![long.clone()]).is_ok());
        tokio::task::yield_now().await;
    }
    assert!((MOST_QUEUED_BATCHES..500).contains(&taken), "{taken}");
    drop(queue);
    exporter.finish(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn what_is_queued_is_exported_at_the_end() {
    let (collector, received) = listen(vec![reply("200 OK", "", b"")]).await;
    let metrics = ExportMetrics::default();
    let (exporter, queue) = start(collector, metrics.clone());
    for _ in 0..3 {
        queue.send(vec![request_span()]).await.unwrap();
    }
    drop(queue);
    exporter.finish(Duration::from_secs(120)).await;
    assert_eq!(metrics.counts(), [3, 0, 0]);
    assert_eq!(received.all().len(), 1);
}

#[tokio::test]
async fn a_collector_is_verified() {
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let received = Received::default();
    let all = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(collect(stream, all.clone(), vec![reply("200 OK", "", b"")]));
            }
        }
    });
    let mut public = export_to(settings(&url));
    assert_eq!(export_two(&mut public).await, [0, 0, 2]);
    assert!(received.all().is_empty());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, pair.cert.pem()).unwrap();
    let own = |url: &str| {
        export_to(CollectorSettings { authority_file: Some(path.clone()), ..settings(url) })
    };
    let other_name = url.replace("localhost", "127.0.0.1");
    assert_eq!(export_two(&mut own(&other_name)).await, [0, 0, 2]);
    assert!(received.all().is_empty());
    assert_eq!(export_two(&mut own(&url)).await, [2, 0, 0]);
    assert_eq!(received.all().len(), 1);
}

/// A token has expired, and its file was replaced.
#[tokio::test]
async fn headers_are_those_that_the_file_has_now() {
    let unauthorized = reply("401 Unauthorized", "", b"");
    let (mut collector, received) = listen(vec![unauthorized, reply("200 OK", "", b"")]).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("headers");
    collector.header_file = Some(path.clone());
    let mut export = export_to(collector);
    for (token, counts) in [("old", [0, 2, 0]), ("new", [2, 2, 0])] {
        std::fs::write(&path, format!("Authorization: {token}")).unwrap();
        assert_eq!(export_two(&mut export).await, counts);
        let (head, _) = received.all().pop().unwrap();
        assert!(head.contains(&format!("authorization: {token}\r\n")), "{head}");
    }
}

#[tokio::test]
async fn without_its_headers_nothing_is_sent() {
    let (mut collector, received) = listen(vec![reply("200 OK", "", b"")]).await;
    collector.header_file = Some("/nonexistent".into());
    assert_eq!(export_two(&mut export_to(collector)).await, [0, 0, 2]);
    assert!(received.all().is_empty());
}
