//! HTTP/2 with clients and with endpoints.

use std::io::{Read, Write};
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
use lb_http::RoutePolicy;
use lb_http::upstream::UpstreamProtocol;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::http2_attacks::{END_HEADERS, END_STREAM, HEADERS};
use crate::world::{HOST, PATIENCE, World, config, protocol_config};

pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("it took too long") });
}

/// A client with prior knowledge.
pub async fn connect(to: SocketAddr) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = h2::client::handshake(tcp).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

pub fn get(path: &str) -> Request<()> {
    Request::get(format!("http://a.test{path}")).body(()).unwrap()
}

pub async fn body(mut stream: RecvStream) -> (String, Option<HeaderMap>) {
    let text = take_data(&mut stream).await;
    (String::from_utf8(text).unwrap(), stream.trailers().await.unwrap())
}

pub async fn take_data(stream: &mut RecvStream) -> Vec<u8> {
    let mut octets = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        let _ = stream.flow_control().release_capacity(data.len());
        octets.extend_from_slice(&data);
    }
    octets
}

/// An endpoint that speaks HTTP/2 without TLS, and the number of its connections.
pub fn endpoint<F>(
    handler: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Clone + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    endpoint_with_streams(100, handler)
}

/// Starts an endpoint that takes this many requests at the same time on a connection.
fn endpoint_with_streams<F>(
    most: u32,
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
                    let mut builder = h2::server::Builder::new();
                    builder.max_concurrent_streams(most);
                    let Ok(mut connection) = builder.handshake(tcp).await else { return };
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
fn cookies_in_headers_of_their_own_are_joined() {
    let endpoint = Endpoint::named("ok");
    let world = World::start(config(&[endpoint.address]));
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let request =
            Request::get("http://a.test/").header("cookie", "a=1").header("cookie", "b=2");
        let request = request.body(()).unwrap();
        assert_eq!(client.send_request(request, true).unwrap().0.await.unwrap().status(), 200);
    });
    assert_eq!(endpoint.requests()[0].header("cookie"), Some("a=1; b=2"));
}

#[test]
fn both_directions_of_a_call_stream_and_trailers_arrive() {
    let (address, connections) = endpoint(echo);
    let world =
        World::start(protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c));
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
                // The endpoint's reply comes while the request is still being sent.
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
    let world =
        World::start(protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c));
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
        let trailers = trailers.unwrap();
        assert_eq!(trailers.len(), 1, "{trailers:?}");
        let sum = trailers.get("x-sum").unwrap().clone();
        let head = Response::builder().header("x-sum", sum).body(()).unwrap();
        respond.send_response(head, false).unwrap().send_data(text.into(), true).unwrap();
    });
    let world =
        World::start(protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c));
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let request = Request::post("http://a.test/").body(()).unwrap();
        let (response, mut to) = client.send_request(request, false).unwrap();
        to.send_data(Bytes::from("abc"), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "6".parse().unwrap());
        // A proxy that merged trailers into headers would take it for the header.
        trailers.insert("x-forwarded-for", "10.0.0.1".parse().unwrap());
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
    let world = World::start(protocol_config(
        &addresses[..1],
        RoutePolicy::default(),
        UpstreamProtocol::H2c,
    ));
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

/// An endpoint that ends its first connection at the second request, which it says it has not processed.
fn goes_away() -> (SocketAddr, Arc<AtomicUsize>) {
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const ACK: u8 = 1;
    const STATUS_200: u8 = 0x88;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    thread::spawn(move || {
        for tcp in listener.incoming() {
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            let mut tcp = tcp.unwrap();
            tcp.read_exact(&mut [0; 24]).unwrap();
            tcp.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            let mut head = [0; 9];
            // To the end of the connection, so that the last frame is not lost by a reset.
            while tcp.read_exact(&mut head).is_ok() {
                let [_, high, low, kind, flags, .., stream] = head;
                let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
                tcp.read_exact(&mut payload).unwrap();
                let reply = match (kind, stream) {
                    (SETTINGS, _) if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[]),
                    (HEADERS, 3) if is_first => frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
                    (HEADERS, _) => frame(HEADERS, END_STREAM | END_HEADERS, stream, &[STATUS_200]),
                    _ => continue,
                };
                tcp.write_all(&reply).unwrap();
            }
        }
    });
    (address, connections)
}

#[test]
fn a_request_that_a_goaway_leaves_out_is_sent_again() {
    let (address, connections) = goes_away();
    let world =
        World::start(protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c));
    let mut client = Client::connect(world.http());
    for _ in 0..3 {
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2);
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

#[test]
fn shutdown_lets_streams_finish_and_sends_goaway() {
    let (address, _) = endpoint(echo);
    let config = protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c);
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
        // No new stream is accepted, but the old one continues.
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

/// Endpoints whose requests end when all of these have come.
fn together(most: u32, requests: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let barrier = Arc::new(tokio::sync::Barrier::new(requests));
    endpoint_with_streams(most, move |_, mut respond| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            respond.send_response(Response::new(()), true).unwrap();
        }
    })
}

async fn all_are_served(world: &World, count: usize) {
    let mut client = connect(world.http()).await;
    let mut responses = Vec::new();
    for _ in 0..count {
        client = client.ready().await.unwrap();
        responses.push(client.send_request(get("/"), true).unwrap().0);
    }
    for response in responses {
        assert_eq!(response.await.unwrap().status(), 200);
    }
}

#[test]
fn an_endpoint_that_takes_few_requests_on_a_connection_gets_more_connections() {
    let (address, connections) = together(2, 7);
    let config = protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c);
    let world = World::start(config);
    run(all_are_served(&world, 7));
    assert_eq!(connections.load(Ordering::SeqCst), 4);
}

#[test]
fn connections_to_an_http2_endpoint_are_bounded() {
    let (address, connections) = together(1, 1);
    let config = protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c);
    let world = World::with(config, |settings| settings.limits.upstream_connections = 2);
    run(all_are_served(&world, 50));
    assert!(connections.load(Ordering::SeqCst) <= 2);
}

#[test]
fn an_http2_endpoint_that_says_nothing_is_given_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut policy = RoutePolicy::default();
    policy.timeouts.connect = Duration::from_millis(200);
    let config = protocol_config(&[silent.local_addr().unwrap()], policy, UpstreamProtocol::H2c);
    let world = World::start(config);
    assert_eq!(Client::connect(world.http()).get(HOST, "/").status, 504);
}

/// A stream of gRPC may be longer than what is allowed for other bodies; nothing else may.
#[test]
fn streams_of_grpc_have_a_limit_of_their_own() {
    let (address, _) = endpoint(echo);
    let upload = async |to: SocketAddr, media: &str| {
        let mut client = connect(to).await.ready().await.unwrap();
        let request = Request::post("http://a.test/").header("te", "trailers");
        let request = request.header("content-type", media).body(()).unwrap();
        let (response, mut upload) = client.send_request(request, false).unwrap();
        for number in 0..4 {
            // The proxy may have ended the stream.
            if upload.send_data(Bytes::from_static(&[b'a'; 1000]), number == 3).is_err() {
                break;
            }
        }
        match response.await {
            Ok(response) if response.status() == 200 => {
                let mut stream = response.into_body();
                let mut octets = 0;
                while let Some(Ok(data)) = stream.data().await {
                    octets += data.len();
                }
                octets
            }
            _ => 0,
        }
    };
    for (max_grpc_body, media, expected) in [
        (None, "application/grpc", 4000),
        (Some(2000), "application/grpc+proto", 2000),
        (None, "application/octet-stream", 2000),
    ] {
        let policy = RoutePolicy { max_body: Some(2000), max_grpc_body, ..RoutePolicy::default() };
        let world = World::start(protocol_config(&[address], policy, UpstreamProtocol::H2c));
        run(async {
            let octets = upload(world.http(), media).await;
            let is_right = if expected == 4000 { octets == 4000 } else { octets <= expected };
            assert!(is_right, "{media}, {max_grpc_body:?}: {octets}");
        });
    }
}
