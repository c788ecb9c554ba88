//! Clients that take more than their share.

use std::io::Write;
use std::time::Duration;

use lb_http::RoutePolicy;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::world::{HOST, World, config, policy_config, wait_until};

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_client_that_says_nothing_is_closed() {
    let world = World::with(config(&[]), |settings| settings.limits.handshake = SHORT);
    for address in [world.http(), world.https()] {
        assert!(Client::connect(address).is_closed());
    }
    let refused = "refused_connections_total{reason=\"no_request\"}";
    wait_until("refusals", || world.metric(refused) == 2);
    let late = "tls_handshakes_total{result=\"timeout\"}";
    wait_until("a late handshake", || world.metric(late) == 1);
}

#[test]
fn a_head_that_comes_slowly_is_cut_off() {
    let world = World::with(config(&[]), |settings| settings.limits.head = SHORT);
    let mut client = Client::connect(world.http());
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n");
    while client.try_send("X-A: a\r\n") {
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_head\"}") == 1);
}

#[test]
fn the_second_head_has_the_same_limit_as_the_first() {
    let endpoint = Endpoint::named("a");
    let config = config(&[endpoint.address]);
    let world = World::with(config, |settings| settings.limits.head = SHORT);
    let mut client = Client::connect(world.http());
    client.get(HOST, "/");
    client.send("GET");
    assert!(client.is_closed());
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_head\"}") == 1);
}

#[test]
fn a_head_that_comes_with_the_request_before_it_has_the_same_limit() {
    let endpoint = Endpoint::named("a");
    let config = config(&[endpoint.address]);
    let world = World::with(config, |settings| settings.limits.head = SHORT);
    let mut client = Client::connect(world.http());
    client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\nGET"));
    assert_eq!(client.response().status, 200);
    assert!(client.is_closed());
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_head\"}") == 1);
}

/// Some clients send one after a body (RFC 9112, 2.2).
#[test]
fn an_empty_line_begins_no_head() {
    let endpoint = Endpoint::named("a");
    let config = config(&[endpoint.address]);
    let world = World::with(config, |settings| settings.limits.head = SHORT);
    let mut client = Client::connect(world.http());
    client.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 2\r\n\r\nok"));
    assert_eq!(client.response().status, 200);
    client.send("\r\n");
    std::thread::sleep(SHORT * 5);
    assert_eq!(client.get(HOST, "/").status, 200);
    assert_eq!(world.metric("cut_off_total{reason=\"slow_head\"}"), 0);
}

#[test]
fn an_unused_connection_is_closed() {
    let endpoint = Endpoint::named("a");
    let config = config(&[endpoint.address]);
    let world = World::with(config, |settings| settings.limits.idle = SHORT);
    let mut client = Client::connect(world.http());
    client.get(HOST, "/");
    assert!(client.is_closed());
}

#[test]
fn a_body_that_comes_slowly_is_cut_off() {
    let endpoint = Endpoint::named("a");
    let config = config(&[endpoint.address]);
    let world = World::with(config, |settings| settings.limits.body_stall = SHORT);
    let mut client = Client::connect(world.http());
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(client.response().status, 408);
    assert!(client.is_closed());
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_body\"}") == 1);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        let octets = vec![b'x'; 1 << 20];
        while stream.write_all(&octets).is_ok() {}
        Then::Close
    });
    let config = config(&[endpoint.address]);
    let world = World::with(config, |settings| settings.limits.reader_stall = SHORT);
    let mut client = Client::connect(world.http());
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("cut off", || world.metric("cut_off_total{reason=\"slow_reader\"}") == 1);
    // What waited for the client is gone, too.
    wait_until("end", || world.metric("open_connections{listener=\"http\"}") == 0);
}

#[test]
fn heads_are_limited_in_size_and_number() {
    let world = World::with(config(&[]), |settings| {
        settings.limits.head_bytes = 8 << 10;
        settings.limits.uri_bytes = 1 << 10;
    });
    let status = |text: String| {
        let mut client = Client::connect(world.http());
        client.try_send(text);
        let response = client.response();
        assert!(client.rest().is_empty());
        response.status
    };
    let head = |headers: &str| format!("GET / HTTP/1.1\r\nHost: a.test\r\n{headers}\r\n");
    assert_eq!(status(head(&format!("X-A: {}\r\n", "a".repeat(9 << 10)))), 431);
    assert_eq!(status(head(&"X-A: a\r\n".repeat(101))), 431);
    assert_eq!(
        status(format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "a".repeat(1 << 10))),
        414
    );
}

#[test]
fn connections_are_limited_per_source_and_in_total() {
    let endpoint = Endpoint::named("a");
    for (total, per_source, reason) in [(2, 100, "connections"), (100, 2, "connections_per_source")]
    {
        let world = World::with(config(&[endpoint.address]), |settings| {
            settings.limits.connections = total;
            settings.limits.connections_per_source = per_source;
        });
        let mut first = Client::connect(world.http());
        let mut second = Client::connect(world.http());
        assert_eq!(first.get(HOST, "/").status, 200);
        assert_eq!(second.get(HOST, "/").status, 200);
        assert!(Client::connect(world.http()).is_closed());
        let refused = format!("refused_connections_total{{reason=\"{reason}\"}}");
        wait_until("refusal", || world.metric(&refused) == 1);
        drop(second);
        wait_until("free connection", || {
            let mut client = Client::connect(world.http());
            client.try_send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            client.try_response().is_some()
        });
    }
}

#[test]
fn a_full_access_log_delays_nothing() {
    let endpoint = Endpoint::named("a");
    let (to_log, _full) = tokio::sync::mpsc::channel(1);
    let config = policy_config(&[endpoint.address], RoutePolicy::default());
    let world = World::with(config, |settings| settings.access_log = Some(to_log));
    let mut client = Client::connect(world.http());
    for _ in 0..200 {
        assert_eq!(client.get(HOST, "/").status, 200);
    }
    wait_until("dropped entries", || world.metric("access_log_entries_dropped_total") >= 64);
}
