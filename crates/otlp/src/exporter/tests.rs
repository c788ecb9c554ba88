//! The exporter and collectors of all kinds.

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

/// What a collector has received: heads, and numbers of spans.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(String, usize)>>>);

impl Received {
    fn all(&self) -> Vec<(String, usize)> {
        self.0.lock().unwrap().clone()
    }
}

/// A collector on this connection; it replies with these octets in turn, and for ever with the last ones.
async fn collect(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    received: Received,
    replies: Vec<Vec<u8>>,
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
            let mut received = received.0.lock().unwrap();
            received.push((head, spans));
            received.len() - 1
        };
        let reply = &replies[number.min(replies.len() - 1)];
        if reply.is_empty() || stream.write_all(reply).await.is_err() {
            // It hangs.
            std::future::pending().await
        }
    }
}

async fn listen(replies: Vec<Vec<u8>>) -> (CollectorSettings, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let all = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(collect(stream, all.clone(), replies.clone()));
        }
    });
    (settings(&url), received)
}

fn settings(url: &str) -> CollectorSettings {
    CollectorSettings { url: url.parse().unwrap(), authority_file: None, header_file: None }
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn export_to(collector: CollectorSettings) -> SpanExport {
    let process =
        TracedProcess { service: "edge".to_owned(), version: "1".to_owned(), host: String::new() };
    let mut export = SpanExport::new(collector, process, ExportMetrics::default());
    export.backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    export
}

/// Sends two spans, and returns how many were accepted, rejected and failed.
async fn export_two(export: &mut SpanExport) -> [u64; 3] {
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
    let mut export = export_to(collector);
    assert_eq!(export_two(&mut export).await, [2, 0, 0]);
    assert_eq!(export_two(&mut export).await, [4, 0, 0]);
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
        (vec![b"nonsense\r\n\r\n".to_vec(), ok()], [2, 0, 0], 2),
    ] {
        let (collector, received) = listen(replies.clone()).await;
        let mut export = export_to(collector);
        let shown = String::from_utf8_lossy(&replies[0]).into_owned();
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
    let (collector, received) = listen(vec![Vec::new()]).await;
    let mut export = export_to(collector);
    let connection = CollectorConnection::new(settings("http://127.0.0.1:9"));
    let hanging = std::mem::replace(&mut export.connection, connection);
    export.connection = hanging.with_limit(Duration::from_millis(20));
    assert_eq!(export_two(&mut export).await, [0, 0, 2]);
    assert!(received.all().len() <= 5);
}

/// The queue is bounded: whoever sends is told at once that it is full.
#[tokio::test]
async fn a_full_queue_takes_no_more() {
    let (collector, received) = listen(vec![Vec::new()]).await;
    let process =
        TracedProcess { service: "a".to_owned(), version: "1".to_owned(), host: String::new() };
    let (_exporter, queue) =
        SpanExporter::start(collector, process, ExportMetrics::default()).unwrap();
    queue.send(vec![request_span(); MOST_SPANS]).await.unwrap();
    while received.all().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    let taken = (0..1000).filter(|_| queue.try_send(vec![request_span()]).is_ok()).count();
    assert_eq!(taken, MOST_QUEUED_BATCHES);
}

#[tokio::test]
async fn what_is_queued_is_exported_at_the_end() {
    let (collector, received) = listen(vec![reply("200 OK", "", b"")]).await;
    let process =
        TracedProcess { service: "a".to_owned(), version: "1".to_owned(), host: String::new() };
    let metrics = ExportMetrics::default();
    let (exporter, queue) = SpanExporter::start(collector, process, metrics.clone()).unwrap();
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
    let mut own = export_to(CollectorSettings { authority_file: Some(path), ..settings(&url) });
    assert_eq!(export_two(&mut own).await, [2, 0, 0]);
    assert_eq!(received.all().len(), 1);
}

#[tokio::test]
async fn without_its_headers_nothing_is_sent() {
    let (mut collector, received) = listen(vec![reply("200 OK", "", b"")]).await;
    collector.header_file = Some("/nonexistent".into());
    assert_eq!(export_two(&mut export_to(collector)).await, [0, 0, 2]);
    assert!(received.all().is_empty());
}
