//! Clients that misuse HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::endpoint::{Endpoint, Then, respond};
use crate::http2::{body, connect, get, run};
use crate::world::{World, config, wait_until};

/// Frames of HTTP/2, by hand.
pub struct Raw(pub TcpStream);

impl Raw {
    pub async fn connect(to: SocketAddr) -> Self {
        let mut tcp = TcpStream::connect(to).await.unwrap();
        tcp.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        Self(tcp)
    }

    /// Whether the frame could be written.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await.is_ok()
    }

    /// Sends a request, and does not wait for its response.
    pub async fn get(&mut self) {
        assert!(self.send(HEADERS, END_STREAM | END_HEADERS, 1, &request_block()).await);
    }

    /// The head of a request with a body.
    pub async fn begin_upload(&mut self) -> bool {
        let mut block = request_block();
        block[0] = POST;
        self.send(HEADERS, END_HEADERS, 1, &block).await
    }

    /// Sends requests, and a frame after each for its stream, until the proxy no longer reads.
    async fn flood(&mut self, kind: u8, payload: &[u8]) {
        for number in 0..5_000 {
            let stream = number * 2 + 1;
            let flags = END_STREAM | END_HEADERS;
            if !self.send(HEADERS, flags, stream, &request_block()).await
                || !self.send(kind, 0, stream, payload).await
            {
                break;
            }
        }
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

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Indexed :method POST.
const POST: u8 = 0x83;

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
        raw.flood(RST_STREAM, &8_u32.to_be_bytes()).await;
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
            let cut_off = || world.metric("cut_off_total{reason=\"resets\"}") == 1;
            while endpoint.count() < number && !cut_off() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if cut_off() {
                break;
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
        // A window update of 0 is an error of the stream (CVE-2025-8671).
        raw.flood(WINDOW_UPDATE, &[0; 4]).await;
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
        settings.limits.head = Duration::from_millis(100);
        settings.limits.reader_stall = Duration::from_millis(200);
    });
    run(async {
        let mut client = connect(world.http()).await.ready().await.unwrap();
        let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
        // The client never releases capacity, but keeps asking for data.
        let mut stream = response.into_body();
        while let Some(Ok(_)) = stream.data().await {}
    });
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_reader\"}") == 1);
}

#[test]
fn a_client_that_takes_nothing_from_the_beginning_is_cut_off() {
    let endpoint = Endpoint::named("ok");
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.head = Duration::from_millis(100);
        settings.limits.reader_stall = Duration::from_millis(200);
    });
    // A response of the endpoint, and one of the proxy itself.
    for (number, host) in ["a.test", "unknown.test"].into_iter().enumerate() {
        run(async {
            let tcp = TcpStream::connect(world.http()).await.unwrap();
            let mut builder = h2::client::Builder::new();
            let (sender, connection) =
                builder.initial_window_size(0).handshake::<_, Bytes>(tcp).await.unwrap();
            let connection = tokio::spawn(connection);
            let request = Request::get(format!("http://{host}/")).body(()).unwrap();
            let mut sender = sender.ready().await.unwrap();
            let _response = sender.send_request(request, true).unwrap();
            let _ = connection.await;
        });
        let series = "cut_off_total{reason=\"slow_reader\"}";
        wait_until("cut off", || world.metric(series) == number as u64 + 1);
    }
}
