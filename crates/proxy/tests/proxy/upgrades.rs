//! Connections that change their protocol.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use lb_http::RoutePolicy;
use lb_http::policy::Timeouts;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::http2::{connect, run};
use crate::world::{World, config, policy_config, wait_until};

/// Agrees to every upgrade and sends all octets back.
pub fn echo_after_upgrade() -> Endpoint {
    Endpoint::start(|request, stream| {
        assert_eq!(request.header("connection"), Some("upgrade"));
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nhello ",
        );
        let mut octets = [0; 1024];
        while let Ok(count) = stream.read(&mut octets) {
            if count == 0 || stream.write_all(&octets[..count]).is_err() {
                break;
            }
        }
        Then::Close
    })
}

pub fn upgrade(client: &mut Client) -> String {
    client.send("GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n");
    client.head().unwrap()
}

#[test]
fn octets_pass_in_both_directions_after_the_endpoints_101() {
    let endpoint = echo_after_upgrade();
    let mut world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    let head = upgrade(&mut client);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("upgrade: websocket") && head.contains("sec-websocket-accept: x"));
    assert_eq!(client.take(6).unwrap(), b"hello ");
    client.send("GET /not-a-request HTTP/1.1\r\n\r\n");
    assert_eq!(client.take(31).unwrap(), b"GET /not-a-request HTTP/1.1\r\n\r\n");
    assert_eq!(endpoint.count(), 1);
    assert_eq!(world.metric("open_connections{listener=\"http\"}"), 1);
    drop(client);
    let entry = world.logged(|_| true);
    assert_eq!((entry.status, entry.received, entry.sent), (101, 31, 37));
    wait_until("end", || world.metric("open_connections{listener=\"http\"}") == 0);
}

#[test]
fn octets_that_come_with_the_request_wait_for_the_endpoints_101() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\nno");
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(
        "GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
         GET /next HTTP/1.1\r\nHost: a.test\r\n\r\n",
    );
    assert_eq!(client.response().status, 400);
    assert_eq!(client.response().status, 400);
    let lines: Vec<_> = endpoint.requests().into_iter().map(|request| request.line).collect();
    assert_eq!(lines, ["GET /ws HTTP/1.1", "GET /next HTTP/1.1"]);
}

#[test]
fn upgrades_to_http2_are_not_forwarded() {
    let endpoint = Endpoint::named("plain");
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n");
    assert_eq!(client.response().text(), "plain");
    let request = &endpoint.requests()[0];
    for name in ["upgrade", "connection", "http2-settings"] {
        assert_eq!(request.header(name), None);
    }
}

#[test]
fn a_silent_tunnel_ends_after_the_read_limit() {
    let endpoint = echo_after_upgrade();
    let timeouts = Timeouts { read: Duration::from_millis(200), ..Timeouts::default() };
    let policy = RoutePolicy { timeouts, ..RoutePolicy::default() };
    let mut world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    upgrade(&mut client);
    assert_eq!(client.rest(), b"hello ");
    assert_eq!(world.logged(|_| true).reason, Some("tunnel_idle"));
}

#[test]
fn a_new_snapshot_ends_no_tunnel() {
    let endpoint = echo_after_upgrade();
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    upgrade(&mut client);
    assert_eq!(client.take(6).unwrap(), b"hello ");
    let other = Endpoint::named("other");
    world.config.send_replace(Arc::new(config(&[other.address])));
    wait_until("the new endpoint", || {
        Client::connect(world.http()).get("a.test", "/").text() == "other"
    });
    client.send("still here");
    assert_eq!(client.take(10).unwrap(), b"still here");
}

/// CONNECT with `:protocol` (RFC 8441).
fn websocket_over_http2(path: &str) -> http::Request<()> {
    let uri = format!("http://a.test{path}");
    let mut request = http::Request::connect(uri).header("sec-websocket-version", "13");
    let extensions = request.extensions_mut().unwrap();
    extensions.insert(h2::ext::Protocol::from_static("websocket"));
    request.body(()).unwrap()
}

/// A client that knows that the proxy takes such requests.
async fn connect_extended(world: &World) -> h2::client::SendRequest<bytes::Bytes> {
    let client = connect(world.http()).await.ready().await.unwrap();
    while !client.is_extended_connect_protocol_enabled() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client
}

#[test]
fn octets_of_a_websocket_over_http2_pass_in_both_directions() {
    let endpoint = echo_after_upgrade();
    let mut world = World::start(config(&[endpoint.address]));
    run(async {
        let mut client = connect_extended(&world).await;
        let request = websocket_over_http2("/ws");
        let (response, mut to) = client.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("sec-websocket-accept"));
        let mut from = response.into_body();
        assert_eq!(from.data().await.unwrap().unwrap(), "hello ");
        to.send_data("GET /not-a-request HTTP/1.1".into(), true).unwrap();
        assert_eq!(from.data().await.unwrap().unwrap(), "GET /not-a-request HTTP/1.1");
    });
    let request = &endpoint.requests()[0];
    assert_eq!(request.line, "GET /ws HTTP/1.1");
    assert_eq!(request.header("upgrade"), Some("websocket"));
    assert_eq!(request.header("sec-websocket-version"), Some("13"));
    assert_eq!(request.header("sec-websocket-key").map(str::len), Some(24));
    let entry = world.logged(|_| true);
    assert_eq!((entry.status, entry.received, entry.sent), (200, 27, 33));
    assert_eq!(endpoint.count(), 1);
}

#[test]
fn only_the_endpoints_101_opens_a_websocket_over_http2() {
    let endpoint = Endpoint::start(|request, stream| {
        let status = if request.line.contains("/200 ") { "200 OK" } else { "403 No" };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
        let _ = stream.write_all(head.as_bytes());
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    run(async {
        for (path, status) in [("/200", 502), ("/403", 403)] {
            let mut client = connect_extended(&world).await;
            let request = websocket_over_http2(path);
            let (response, _to) = client.send_request(request, false).unwrap();
            assert_eq!(response.await.unwrap().status(), status);
        }
    });
    assert_eq!(endpoint.count(), 2);
}

#[test]
fn other_tunnels_over_http2_are_refused() {
    let endpoint = echo_after_upgrade();
    let world = World::start(config(&[endpoint.address]));
    run(async {
        let mut client = connect_extended(&world).await;
        let mut request = websocket_over_http2("/");
        request.extensions_mut().insert(h2::ext::Protocol::from_static("connect-udp"));
        let mut with_length = websocket_over_http2("/");
        with_length.headers_mut().insert("content-length", 5.into());
        let (response, _to) = client.send_request(request, false).unwrap();
        assert_eq!(response.await.unwrap().status(), 405);
        client = client.ready().await.unwrap();
        let (response, _to) = client.send_request(with_length, false).unwrap();
        assert!(response.await.is_err());
    });
    assert_eq!(endpoint.count(), 0);
}
