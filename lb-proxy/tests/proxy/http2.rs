//! HTTP/2 with clients and with endpoints, and what attacks through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use lb_http::Policy;
use lb_http::upstream::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::world::{HOST, PATIENCE, World, config, protocol_config, wait_until};

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("it took too long") });
}

/// A client with prior knowledge.
async fn connect(to: SocketAddr) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = h2::client::handshake(tcp).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://a.test{path}")).body(()).unwrap()
}

async fn body(mut stream: RecvStream) -> (String, Option<HeaderMap>) {
    let mut text = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        let _ = stream.flow_control().release_capacity(data.len());
        text.extend_from_slice(&data);
    }
    (String::from_utf8(text).unwrap(), stream.trailers().await.unwrap())
}

/// An endpoint that speaks HTTP/2 without TLS, and the number of its connections.
fn endpoint<F>(
    handler: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Clone + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (to_test, address) = std::sync::mpsc::channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            to_test.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let handler = handler.clone();
                tokio::spawn(async move {
                    let Ok(mut connection) = h2::server::handshake(tcp).await else { return };
                    while let Some(Ok((request, response))) = connection.accept().await {
                        tokio::spawn(handler(request, response));
                    }
                });
            }
        });
    });
    (address.recv().unwrap(), connections)
}

/// Sends every octet back, and trailers with their number, as a streaming gRPC server does.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    assert_eq!(request.uri().authority().unwrap(), HOST);
    assert_eq!(request.headers().get("te").unwrap(), "trailers");
    let head = Response::builder().header("trailer", "grpc-status, octets").body(()).unwrap();
    let mut to = respond.send_response(head, false).unwrap();
    let mut from = request.into_body();
    let mut octets = 0;
    while let Some(Ok(data)) = from.data().await {
        octets += data.len();
        let _ = from.flow_control().release_capacity(data.len());
        to.send_data(data, false).unwrap();
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    trailers.insert("octets", octets.into());
    trailers.insert("content-length", "7".parse().unwrap());
    to.send_trailers(trailers).unwrap();
}

#[test]
fn requests_of_one_connection_are_served_at_the_same_time() {
    let endpoint = Endpoint::start(|request, stream| {
        respond(stream, &request.line);
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let responses: Vec<_> =
            (0..50).map(|n| client.send_request(get(&format!("/{n}")), true).unwrap().0).collect();
        for (number, response) in responses.into_iter().enumerate() {
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(body(response.into_body()).await.0, format!("GET /{number} HTTP/1.1"));
        }
    });
    assert_eq!(endpoint.requests()[0].header("host"), Some(HOST));
    assert_eq!(endpoint.errors(), Vec::<String>::new());
}

#[test]
fn both_directions_of_a_call_stream_and_trailers_arrive() {
    let (address, connections) = endpoint(echo);
    let world = World::start(protocol_config(&[address], Policy::default(), Protocol::H2c));
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let mut calls = Vec::new();
        for _ in 0..10 {
            let request = Request::post("http://a.test/pkg.Service/Call")
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            client = client.ready().await.unwrap();
            calls.push(client.send_request(request.body(()).unwrap(), false).unwrap());
        }
        for (response, mut to) in calls {
            let mut from = None;
            let mut response = Some(response);
            for message in ["one", "two", "three"] {
                to.send_data(Bytes::from(message), false).unwrap();
                if let Some(response) = response.take() {
                    from = Some(response.await.unwrap().into_body());
                }
                // The endpoint's reply comes while the request goes on.
                let from: &mut RecvStream = from.as_mut().unwrap();
                assert_eq!(from.data().await.unwrap().unwrap(), message);
            }
            to.send_data(Bytes::new(), true).unwrap();
            let (rest, trailers) = body(from.unwrap()).await;
            let trailers = trailers.unwrap();
            assert_eq!(rest, "");
            assert_eq!(trailers.get("grpc-status").unwrap(), "0");
            assert_eq!(trailers.get("octets").unwrap(), "11");
            assert_eq!(trailers.get("content-length"), None);
        }
    });
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_client_of_http1_gets_trailers_that_it_accepts() {
    let (address, _) = endpoint(echo);
    let world = World::start(protocol_config(&[address], Policy::default(), Protocol::H2c));
    let mut client = Client::connect(world.http());
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nContent-Length: 3\r\n\r\nabc");
    let response = client.response();
    assert_eq!(response.text(), "abc");
    let mut trailers = response.trailers;
    trailers.sort();
    let expected = [("grpc-status", "0"), ("octets", "3")];
    assert_eq!(trailers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn trailers_of_a_request_arrive() {
    let (address, _) = endpoint(|request, mut respond| async move {
        let (text, trailers) = body(request.into_body()).await;
        let sum = trailers.unwrap().get("x-sum").unwrap().clone();
        let head = Response::builder().header("x-sum", sum).body(()).unwrap();
        respond.send_response(head, false).unwrap().send_data(text.into(), true).unwrap();
    });
    let world = World::start(protocol_config(&[address], Policy::default(), Protocol::H2c));
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let request = Request::post("http://a.test/").body(()).unwrap();
        let (response, mut to) = client.send_request(request, false).unwrap();
        to.send_data(Bytes::from("abc"), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "6".parse().unwrap());
        to.send_trailers(trailers).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers().get("x-sum").unwrap(), "6");
        assert_eq!(body(response.into_body()).await.0, "abc");
    });
}

#[test]
fn a_refused_stream_is_sent_again() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let (address, _) = endpoint(move |_, mut respond: SendResponse<Bytes>| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            if number == 0 {
                respond.send_reset(Reason::REFUSED_STREAM);
                return;
            }
            let mut to = respond.send_response(Response::new(()), false).unwrap();
            to.send_data(Bytes::from("second"), true).unwrap();
        }
    });
    let addresses = [address, address];
    let world = World::start(protocol_config(&addresses[..1], Policy::default(), Protocol::H2c));
    run(async {
        // The first request makes the connection known, so that the refusal meets a used one.
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let status = |client: &mut SendRequest<Bytes>, method: &str| {
            let request = Request::builder().method(method).uri("http://a.test/").body(());
            client.send_request(request.unwrap(), true).unwrap().0
        };
        // There is no other endpoint for the first one.
        assert_eq!(status(&mut client, "POST").await.unwrap().status(), 502);
        seen.store(0, Ordering::SeqCst);
        assert_eq!(status(&mut client, "POST").await.unwrap().status(), 200);
    });
}

#[test]
fn contradictory_requests_are_refused() {
    let endpoint = Endpoint::named("a");
    let world = World::start(config(&[endpoint.address]));
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        for header in [("host", "b.test"), ("transfer-encoding", "chunked"), ("connection", "x")] {
            let request = Request::get("http://a.test/").header(header.0, header.1).body(());
            // The client library refuses some of these itself.
            let Ok((response, _)) = client.send_request(request.unwrap(), true) else { continue };
            match response.await {
                Ok(response) => assert_eq!(response.status(), 400, "{header:?}"),
                Err(error) => {
                    assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR), "{header:?}")
                }
            }
        }
    });
    assert_eq!(endpoint.count(), 0);
}

/// Frames of HTTP/2, by hand.
struct Raw(TcpStream);

impl Raw {
    async fn connect(to: SocketAddr) -> Self {
        let mut tcp = TcpStream::connect(to).await.unwrap();
        tcp.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        Self(tcp)
    }

    /// Whether the frame could be written.
    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await.is_ok()
    }

    /// Reads until the proxy closes the connection. Returns the reason of its GOAWAY.
    async fn goaway(mut self) -> Option<u32> {
        let mut octets = Vec::new();
        let _ = self.0.read_to_end(&mut octets).await;
        let mut rest = &octets[..];
        let mut reason = None;
        while rest.len() >= 9 {
            let length =
                usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
            let Some(payload) = rest.get(9..9 + length) else { break };
            if rest[3] == 7 {
                reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
            }
            rest = &rest[9 + length..];
        }
        reason
    }
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

/// `GET / http a.test`, without compression.
fn request_block() -> Vec<u8> {
    // Indexed :method GET, :scheme http and :path /; literal :authority.
    [&[0x82, 0x86, 0x84, 0x01, 6][..], b"a.test"].concat()
}

#[test]
fn a_flood_of_resets_ends_the_connection() {
    // It never replies, so every request that arrives stays there until it is reset.
    let endpoint = Endpoint::start(|_, _| Then::Keep);
    let world = World::start(config(&[endpoint.address]));
    run(async {
        let mut raw = Raw::connect(world.http()).await;
        for number in 0..5_000 {
            let stream = number * 2 + 1;
            let flags = END_STREAM | END_HEADERS;
            if !raw.send(HEADERS, flags, stream, &request_block()).await
                || !raw.send(RST_STREAM, 0, stream, &8_u32.to_be_bytes()).await
            {
                break;
            }
        }
        let reason = raw.goaway().await;
        assert!(reason.is_none_or(|reason| reason == ENHANCE_YOUR_CALM), "{reason:?}");
    });
    assert!(endpoint.count() <= 300, "{} requests", endpoint.count());
}

#[test]
fn resets_that_come_slowly_end_the_connection_too() {
    let endpoint = Endpoint::start(|_, _| Then::Keep);
    let world = World::with(config(&[endpoint.address]), |settings| settings.limits.resets = 5);
    run(async {
        let mut client = connect(world.http()).await;
        let mut number = 0;
        loop {
            client = match client.ready().await {
                Ok(client) => client,
                Err(_) => break,
            };
            let Ok((response, mut stream)) = client.send_request(get("/"), true) else { break };
            number += 1;
            // Only once the endpoint works for it.
            while endpoint.count() < number && world.metric("cut_off_total{reason=\"resets\"}") == 0
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stream.send_reset(Reason::CANCEL);
            drop(response);
            assert!(number < 100, "no limit");
        }
    });
    wait_until("cut off", || world.metric("cut_off_total{reason=\"resets\"}") == 1);
}

#[test]
fn a_client_that_finishes_requests_may_cancel_some() {
    let endpoint = Endpoint::start(|request, stream| {
        if !request.line.starts_with("GET /never ") {
            respond(stream, "ok");
        }
        Then::Keep
    });
    let world = World::with(config(&[endpoint.address]), |settings| settings.limits.resets = 2);
    run(async {
        let mut client = connect(world.http()).await;
        for number in 1..20 {
            client = client.ready().await.unwrap();
            let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
            assert_eq!(body(response.into_body()).await.0, "ok");
            let (response, mut stream) = client.send_request(get("/never"), true).unwrap();
            while endpoint.count() < number * 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stream.send_reset(Reason::CANCEL);
            drop(response);
        }
    });
    assert_eq!(world.metric("cut_off_total{reason=\"resets\"}"), 0);
}

#[test]
fn streams_that_the_client_makes_the_proxy_reset_end_the_connection() {
    let endpoint = Endpoint::start(|_, _| Then::Keep);
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.provoked_resets = 10;
    });
    run(async {
        let mut raw = Raw::connect(world.http()).await;
        for number in 0..5_000 {
            let stream = number * 2 + 1;
            let flags = END_STREAM | END_HEADERS;
            // A window update of 0 is an error of the stream (CVE-2025-8671).
            if !raw.send(HEADERS, flags, stream, &request_block()).await
                || !raw.send(WINDOW_UPDATE, 0, stream, &[0; 4]).await
            {
                break;
            }
        }
        raw.goaway().await;
    });
    assert!(endpoint.count() <= 200, "{} requests", endpoint.count());
}

#[test]
fn a_flood_of_continuations_ends_the_connection() {
    let world = World::start(config(&[]));
    run(async {
        let mut raw = Raw::connect(world.http()).await;
        raw.send(HEADERS, END_STREAM, 1, &request_block()).await;
        // Literals that are not indexed: name `a`, value of 100 octets.
        let header = [&[0, 1, b'a', 100][..], &[b'x'; 100]].concat().repeat(100);
        let mut sent = 0;
        while raw.send(CONTINUATION, 0, 1, &header).await && sent < 10_000 {
            sent += 1;
        }
        assert!(sent < 10_000, "100 MB of headers were accepted");
    });
}

#[test]
fn empty_continuations_end_the_connection() {
    let world = World::start(config(&[]));
    run(async {
        let mut raw = Raw::connect(world.http()).await;
        raw.send(HEADERS, END_STREAM, 1, &request_block()).await;
        let mut sent = 0;
        while raw.send(CONTINUATION, 0, 1, &[]).await && sent < 1_000_000 {
            sent += 1;
        }
        assert!(sent < 1_000_000, "no limit");
    });
}

#[test]
fn a_client_that_does_not_take_its_responses_is_cut_off() {
    let endpoint = Endpoint::start(|_, stream| {
        respond(stream, &"x".repeat(1 << 20));
        Then::Keep
    });
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.reader_stall = Duration::from_millis(200);
    });
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
        // It never releases capacity, but goes on asking.
        let mut stream = response.into_body();
        while let Some(Ok(_)) = stream.data().await {}
    });
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_reader\"}") == 1);
}

#[test]
fn shutdown_lets_streams_finish_and_sends_goaway() {
    let (address, _) = endpoint(echo);
    let config = protocol_config(&[address], Policy::default(), Protocol::H2c);
    let mut world = World::start(config);
    run(async {
        let client = connect(world.http()).await;
        let request = Request::post("http://a.test/").header("te", "trailers").body(()).unwrap();
        let mut client = client.ready().await.unwrap();
        let (response, mut to) = client.send_request(request, false).unwrap();
        to.send_data(Bytes::from("a"), false).unwrap();
        let mut from = response.await.unwrap().into_body();
        assert_eq!(from.data().await.unwrap().unwrap(), "a");
        let proxy = world.proxy.take().unwrap();
        let ended = tokio::spawn(proxy.shutdown());
        // No new stream, but the old one goes on.
        while client.clone().ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        to.send_data(Bytes::from("b"), true).unwrap();
        let (rest, trailers) = body(from).await;
        assert_eq!(rest, "b");
        assert_eq!(trailers.unwrap().get("octets").unwrap(), "2");
        ended.await.unwrap();
    });
}
