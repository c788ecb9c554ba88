//! Clients that take more than the share of one source, over many connections or streams.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use lb_http::RoutePolicy;
use lb_http::upstream::UpstreamProtocol;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::http2::{body, connect, endpoint, get, run};
use crate::http2_attacks::{DATA, HEADERS, Raw, WINDOW_UPDATE};
use crate::world::{HOST, PATIENCE, World, config, policy_config, protocol_config, wait_until};

/// A client whose windows are this large from the beginning, and never grow.
async fn connect_with_window(to: SocketAddr, octets: u32) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(to).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (sender, connection) =
        builder.initial_window_size(octets).handshake::<_, Bytes>(tcp).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

/// Requests whose responses are never taken. They stay open until the result is dropped.
async fn stall(client: &mut SendRequest<Bytes>, count: usize) -> Vec<ResponseFuture> {
    let mut stalled = Vec::new();
    for _ in 0..count {
        *client = client.clone().ready().await.unwrap();
        stalled.push(client.send_request(get("/"), true).unwrap().0);
    }
    stalled
}

/// As `wait_until`, while the clients' connections stay active.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An endpoint that sends without end.
fn endless() -> Endpoint {
    Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 64 << 10]).is_ok() {}
        Then::Close
    })
}

const BUFFERED: &str = "response_buffer_bytes";
const REFUSED: &str = "cut_off_total{reason=\"requests_per_source\"}";
const SLOW: &str = "cut_off_total{reason=\"slow_reader\"}";

#[test]
fn requests_are_limited_per_source_over_all_its_connections() {
    let endpoint = Endpoint::start(|_, _| Then::Keep);
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.requests_per_source = 3;
    });
    run(async {
        let mut clients = [connect(world.http()).await, connect(world.http()).await];
        let mut stalled = stall(&mut clients[0], 2).await;
        stalled.extend(stall(&mut clients[1], 1).await);
        until("requests", || endpoint.count() == 3).await;
        for client in &clients {
            let mut client = client.clone().ready().await.unwrap();
            let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
            assert_eq!(response.status(), 429);
            assert!(response.headers().contains_key("retry-after"));
        }
        assert_eq!(world.metric(REFUSED), 2);
        // The client's end of a request makes room.
        drop(stalled.pop());
        loop {
            let mut client = clients[1].clone().ready().await.unwrap();
            let response = client.send_request(get("/"), true).unwrap().0;
            if tokio::time::timeout(Duration::from_millis(20), response).await.is_err() {
                break;
            }
        }
    });
}

#[test]
fn clients_of_a_trusted_proxy_count_each_for_itself() {
    let endpoint = Endpoint::start(|_, _| Then::Keep);
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.forwarding.trusted = vec!["127.0.0.0/8".parse().unwrap()];
        settings.limits.requests_per_source = 1;
        settings.limits.connections_per_source = 1;
    });
    let send = |source: &str| {
        let mut client = Client::connect(world.http());
        client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Forwarded-For: {source}\r\n\r\n"));
        client
    };
    let _open = [send("192.0.2.1"), send("192.0.2.2")];
    wait_until("requests", || endpoint.count() == 2);
    assert_eq!(send("192.0.2.1").response().status, 429);
}

#[test]
fn responses_that_are_not_taken_are_bounded_for_each_connection() {
    let endpoint = endless();
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.connection_buffer = 256 << 10;
        settings.limits.source_buffer = 256 << 10;
    });
    run(async {
        // The second connection gets the least: the source's share is used up.
        let mut all = Vec::new();
        for _ in 0..2 {
            let mut client = connect_with_window(world.http(), 1).await;
            all.push((stall(&mut client, 64).await, client));
        }
        until("full buffers", || world.metric(BUFFERED) >= (256 + 63) << 10).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        // Each may exceed its limit by one frame of an endpoint.
        let most = (256 + 64 + 2 * 128) << 10;
        let buffered = world.metric(BUFFERED);
        assert!(buffered <= most, "{buffered} octets");
        drop(all);
    });
    wait_until("free buffers", || world.metric(BUFFERED) == 0);
}

#[test]
fn a_full_buffer_is_emptied_when_the_client_reads() {
    let endpoint = Endpoint::start(|_, stream| {
        respond(stream, &"x".repeat(1 << 20));
        Then::Keep
    });
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.connection_buffer = 64 << 10;
    });
    run(async {
        let mut client = connect(world.http()).await;
        let responses = stall(&mut client, 8).await;
        until("a full buffer", || world.metric(BUFFERED) > 0).await;
        let read =
            |response: ResponseFuture| async { body(response.await.unwrap().into_body()).await };
        let reading: Vec<_> = responses.into_iter().map(|r| tokio::spawn(read(r))).collect();
        for text in reading {
            assert_eq!(text.await.unwrap().0.len(), 1 << 20);
        }
    });
    wait_until("an empty buffer", || world.metric(BUFFERED) == 0);
}

/// The endpoint is done with the response, and so is the exchange: the client is not.
#[test]
fn a_short_response_that_is_not_taken_does_not_hide() {
    let endpoint = Endpoint::named("short");
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.head = Duration::from_millis(100);
        settings.limits.reader_stall = Duration::from_millis(300);
    });
    run(async {
        let mut client = connect_with_window(world.http(), 1).await;
        let stalled = stall(&mut client, 1).await;
        // Other requests of the connection continue.
        while world.metric(SLOW) == 0 {
            let request = Request::head(format!("http://{HOST}/")).body(()).unwrap();
            let Ok(mut ready) = client.clone().ready().await else { break };
            let Ok((response, _)) = ready.send_request(request, true) else { break };
            if response.await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        until("cut off", || world.metric(SLOW) == 1).await;
        drop(stalled);
    });
}

#[test]
fn the_window_for_uploads_is_bounded_for_each_source() {
    let world = World::with(config(&[]), |settings| {
        settings.limits.source_buffer = 512 << 10;
    });
    run(async {
        let (mut first, mut second) =
            (Raw::connect(world.http()).await, Raw::connect(world.http()).await);
        let windows = [window(&mut first).await, window(&mut second).await];
        assert!(windows.contains(&(512 << 10)) && windows.contains(&0xFFFF), "{windows:?}");
    });
}

/// The connection's window as the proxy has opened it when it responds.
async fn window(raw: &mut Raw) -> u32 {
    raw.get().await;
    let mut window = 0xFFFF;
    loop {
        let mut head = [0; 9];
        raw.0.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        raw.0.read_exact(&mut payload).await.unwrap();
        match head[3] {
            WINDOW_UPDATE => window += u32::from_be_bytes(payload.try_into().unwrap()),
            HEADERS => return window,
            _ => {}
        }
    }
}

#[test]
fn clients_that_take_nothing_keep_no_other_request_of_an_http2_endpoint_waiting() {
    let (address, connections) = endpoint(|request, mut respond| async move {
        let head = http::Response::new(());
        let mut to = respond.send_response(head, false).unwrap();
        let size = if request.uri().path() == "/short" { 5 } else { 4 << 20 };
        to.send_data(vec![b'x'; size].into(), true).unwrap();
    });
    let config = protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c);
    let world = World::start(config);
    run(async {
        let mut attacker = connect_with_window(world.http(), 1).await;
        let stalled = stall(&mut attacker, 60).await;
        until("full buffers", || world.metric(BUFFERED) >= 60 << 10).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let response = client.send_request(get("/short"), true).unwrap().0.await.unwrap();
        assert_eq!(body(response.into_body()).await.0, "xxxxx");
        drop(stalled);
    });
    assert_eq!(connections.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Each frame takes memory beyond its octets.
#[test]
fn a_flood_of_tiny_frames_ends_the_connection() {
    // It accepts nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let world = World::start(config(&[listener.local_addr().unwrap()]));
    run(async {
        let mut raw = Raw::connect(world.http()).await;
        assert!(raw.begin_upload().await);
        let mut sent = 0;
        while raw.send(DATA, 0, 1, b"x").await && sent < 512 << 10 {
            sent += 1;
        }
        assert!(sent < 512 << 10, "no limit");
    });
}

/// A compressor takes half a MiB as long as the client likes.
#[test]
fn compressed_responses_that_are_not_taken_are_bounded_for_each_source() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n");
        while stream.write_all(b"all work and no play makes jack a dull boy\n").is_ok() {}
        Then::Close
    });
    let policy = RoutePolicy { compress: true, ..RoutePolicy::default() };
    let world = World::with(policy_config(&[endpoint.address], policy), |settings| {
        settings.forwarding.trusted = vec!["127.0.0.0/8".parse().unwrap()];
        settings.limits.compressions_per_source = 3;
        settings.limits.compressions = 4;
    });
    let get = |source: &str| {
        let mut client = Client::connect(world.http());
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: {HOST}\r\nAccept-Encoding: br\r\nX-Forwarded-For: {source}\r\n\r\n"
        ));
        let head = client.head().unwrap().to_lowercase();
        assert!(
            head.starts_with("http/1.1 200 ") && head.contains("vary: accept-encoding"),
            "{head}"
        );
        (client, head.contains("content-encoding: br"))
    };
    let mut attacker: Vec<_> = (0..5).map(|_| get("192.0.2.1")).collect();
    let is_compressed: Vec<_> = attacker.iter().map(|(_, is_compressed)| *is_compressed).collect();
    assert_eq!(is_compressed, [true, true, true, false, false]);
    let (other, is_compressed) = get("192.0.2.2");
    assert!(is_compressed);
    assert!(!get("192.0.2.3").1);
    drop(other);
    attacker.clear();
    wait_until("free compressors", || get("192.0.2.3").1);
}
