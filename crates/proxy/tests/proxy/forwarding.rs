//! What happens to a request on its way to an endpoint and back.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use lb_http::path::Slashes;
use lb_http::policy::{Timeouts, TlsRedirect};
use lb_http::upstream::UpstreamProtocol;
use lb_http::{IngressTable, RoutePolicy};

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::tls::{connect, trusting};
use crate::world::{
    HOST, World, add_host, add_rules, config, hosts, name, policy_config, self_signed, terminate,
    upstream, wait_until,
};

/// An address where nothing listens: not one that the kernel chooses, which another test may get.
pub const CLOSED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

pub fn echo() -> Endpoint {
    Endpoint::start(|request, stream| {
        let body = String::from_utf8_lossy(&request.body);
        respond(stream, &format!("{} {}", request.line, body));
        Then::Keep
    })
}

#[test]
fn requests_are_forwarded_on_kept_connections() {
    let endpoint = echo();
    let mut world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    for number in 0..5 {
        let path = format!("/p{number}?q=1");
        assert_eq!(client.get("A.Test:80", &path).text(), format!("GET {path} HTTP/1.1 "));
    }
    assert_eq!(endpoint.requests().last().unwrap().connection, 0);
    let entry = world.logged(|entry| entry.uri.as_ref().is_some_and(|uri| uri == "/p4?q=1"));
    assert_eq!((entry.status, entry.tries, entry.endpoint), (200, 1, Some(endpoint.address)));
    assert_eq!(entry.reason, None);
    let requests = "requests_total{namespace=\"default\",ingress=\"web\",code=\"2xx\"}";
    assert_eq!(world.metric(requests), 5);
    assert_eq!(world.metric("open_connections{listener=\"http\"}"), 1);
    drop(client);
    wait_until("closed connection", || world.metric("open_connections{listener=\"http\"}") == 0);
}

/// In a cluster the proxy listens on other ports than clients connect to. Endpoints build URLs from the port.
#[test]
fn endpoints_learn_the_port_that_clients_connect_to() {
    let endpoint = Endpoint::start(|request, stream| {
        respond(stream, request.header("x-forwarded-port").unwrap());
        Then::Keep
    });
    let pair = self_signed(&[HOST]);
    let policy = RoutePolicy { tls_redirect: TlsRedirect::Never, ..RoutePolicy::default() };
    let mut config = policy_config(&[endpoint.address], policy);
    config.tls = hosts(&[(HOST, &terminate(&pair))]);
    let world = World::start(config.clone());
    assert_eq!(Client::connect(world.http()).get(HOST, "/").text(), "80");
    let mut client = connect(world.https(), &trusting(&[&pair], None), HOST).unwrap();
    assert_eq!(client.get(HOST, "/").text(), "443");

    let world = World::with(config, |settings| (settings.http_port, settings.tls_port) = (81, 444));
    assert_eq!(Client::connect(world.http()).get(HOST, "/").text(), "81");
    let mut client = connect(world.https(), &trusting(&[&pair], None), HOST).unwrap();
    assert_eq!(client.get(HOST, "/").text(), "444");
}

#[test]
fn a_restricted_path_is_closed_in_every_form() {
    let endpoint = echo();
    let is_open = |slashes, path: &str| {
        let mut config = config(&[endpoint.address]);
        config.table = IngressTable::new(slashes);
        let closed = RoutePolicy {
            denied_sources: vec!["127.0.0.0/8".parse().unwrap()],
            ..RoutePolicy::default()
        };
        let rules = vec![("/", RoutePolicy::default()), ("/admin", closed)];
        add_rules(&mut config, HOST, &name("web", UpstreamProtocol::Http1), rules);
        let response = Client::connect(World::start(config).http()).get(HOST, path);
        (response.status == 200).then(|| response.text())
    };
    for form in ["/admin", "//admin/x", "/x/..///admin", "/%61dmin", "/.//%61dmin//x"] {
        assert_eq!(is_open(Slashes::Merged, form), None, "{form}");
    }
    // The endpoint gets the slashes that the client sent, however they were compared.
    let sent = Some("GET //open//x HTTP/1.1 ".to_owned());
    assert_eq!(is_open(Slashes::Merged, "//open//x"), sent);
    assert_eq!(is_open(Slashes::AsSent, "//admin"), Some("GET //admin HTTP/1.1 ".to_owned()));
    assert_eq!(is_open(Slashes::AsSent, "/admin//x"), None);
}

#[test]
fn bodies_pass_in_both_directions() {
    let endpoint = echo();
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello");
    assert!(client.response().text().ends_with("hello"));
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
    assert!(client.response().text().ends_with("abcde"));
    let large = "x".repeat(3 << 20);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n",
        large.len()
    ));
    client.send(&large);
    assert!(client.response().text().ends_with(&large));
}

#[test]
fn a_body_is_passed_on_before_it_is_complete() {
    // The endpoint sends each octet back that it gets, and the client waits for it before it sends the next one.
    let endpoint = Endpoint::on_heads(true, |request, stream| {
        let mut reader = Client::after(&request.body, stream.try_clone().unwrap());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..3 {
            let octet = reader.take(6).unwrap();
            let _ = stream.write_all(&octet);
        }
        let _ = stream.write_all(b"0\r\n\r\n");
        Then::Close
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("1\r\na\r\n");
    assert!(client.head().unwrap().starts_with("HTTP/1.1 200 OK"));
    assert_eq!(client.take(6).unwrap(), b"1\r\na\r\n");
    for octet in ["b", "c"] {
        client.send(format!("1\r\n{octet}\r\n"));
        assert_eq!(client.take(6).unwrap(), format!("1\r\n{octet}\r\n").as_bytes());
    }
}

#[test]
fn bodies_above_the_limit_are_refused() {
    let endpoint = echo();
    let policy = RoutePolicy { max_body: Some(10), ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\n0123456789");
    assert_eq!(client.response().status, 200);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 11\r\n\r\n");
    assert_eq!(client.response().status, 413);
    assert!(client.is_closed());
    let mut client = Client::connect(world.http());
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n01234567\r\n8\r\n01234567\r\n0\r\n\r\n");
    assert_eq!(client.response().status, 413);
    assert_eq!(endpoint.count(), 1);
}

#[test]
fn a_client_that_expects_100_sends_its_body_when_the_endpoint_wants_it() {
    let endpoint = Endpoint::on_heads(true, |request, stream| {
        assert_eq!(request.header("expect"), Some("100-continue"));
        if request.line.starts_with("POST /no ") {
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
            return Then::Close;
        }
        let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        let body = Client::after(&request.body, stream.try_clone().unwrap()).take(2).unwrap();
        respond(stream, std::str::from_utf8(&body).unwrap());
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let head = |path| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
    };
    let mut client = Client::connect(world.http());
    client.send(head("/yes"));
    assert!(client.head().unwrap().starts_with("HTTP/1.1 100 "));
    client.send("ok");
    assert_eq!(client.response().text(), "ok");

    let mut client = Client::connect(world.http());
    client.send(head("/no"));
    assert!(client.head().unwrap().starts_with("HTTP/1.1 403 "));
    assert!(client.rest().is_empty());
}

#[test]
fn a_body_that_nobody_wants_leaves_no_connection_to_the_endpoint() {
    let is_closed = Arc::new(AtomicBool::new(false));
    let closed = is_closed.clone();
    let endpoint = Endpoint::on_heads(true, move |_, stream| {
        // It keeps the connection, and waits for the body.
        let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read(&mut [0]);
        closed.store(true, Ordering::SeqCst);
        Then::Close
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(
        "POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    assert_eq!(client.response().status, 403);
    drop(client);
    wait_until("end of the endpoint's connection", || is_closed.load(Ordering::SeqCst));
}

#[test]
fn an_endpoint_without_interim_responses_gets_an_expected_body_after_a_moment() {
    let endpoint = echo();
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(
        "POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    assert!(client.head().unwrap().starts_with("HTTP/1.1 100 "));
    client.send("ok");
    assert!(client.response().text().ends_with("ok"));
}

#[test]
fn failures_have_their_statuses() {
    let silent = Endpoint::start(|_, _| {
        std::thread::sleep(Duration::from_secs(5));
        Then::Close
    });
    let closing = Endpoint::start(|_, _| Then::Close);
    let short = Timeouts { read: Duration::from_millis(100), ..Timeouts::default() };
    let long = Timeouts::default();
    let cases: [(&str, Vec<SocketAddr>, Timeouts, u16, &str); 4] = [
        ("nothing listens", vec![CLOSED], long, 502, "endpoint_connect"),
        ("closes", vec![closing.address], long, 502, "endpoint_closed"),
        ("is silent", vec![silent.address], short, 504, "endpoint_timeout"),
        ("no endpoint", vec![], long, 503, "no_endpoint"),
    ];
    for (case, addresses, timeouts, status, reason) in cases {
        let policy = RoutePolicy { timeouts, ..RoutePolicy::default() };
        let mut world = World::start(policy_config(&addresses, policy));
        let mut client = Client::connect(world.http());
        assert_eq!(client.get(HOST, "/").status, status, "{case}");
        assert_eq!(world.logged(|_| true).reason, Some(reason), "{case}");
    }
    let mut unknown = config(&[silent.address]);
    unknown.upstreams.clear();
    let world = World::start(unknown);
    let mut client = Client::connect(world.http());
    assert_eq!(client.get(HOST, "/").status, 503);
    assert_eq!(client.get("b.test", "/").status, 404);
}

#[test]
fn the_log_counts_what_was_sent() {
    let mut world = World::start(config(&[]));
    let mut client = Client::connect(world.http());
    for (method, sent) in [("GET", 14), ("HEAD", 0)] {
        client.send(format!("{method} /missing HTTP/1.1\r\nHost: b.test\r\n\r\n"));
        assert!(client.head().unwrap().starts_with("HTTP/1.1 404 "));
        client.take(sent).unwrap();
        let entry = world.logged(|_| true);
        assert_eq!((entry.sent, entry.reason), (sent as u64, Some("no_route")), "{method}");
    }
}

#[test]
fn a_response_that_stops_is_not_passed_on_as_complete() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbeginning");
        Then::Close
    });
    let mut world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(client.head().unwrap().starts_with("HTTP/1.1 200 OK"));
    assert_eq!(client.rest(), b"beginning");
    let entry = world.logged(|_| true);
    assert_eq!((entry.reason, entry.sent), (Some("endpoint_closed"), 9));
}

#[test]
fn a_response_without_a_length_ends_with_the_endpoints_connection() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nall of it");
        Then::Close
    });
    let world = World::start(config(&[endpoint.address]));
    assert_eq!(Client::connect(world.http()).get(HOST, "/").text(), "all of it");
}

#[test]
fn heads_and_empty_responses_have_no_body() {
    let endpoint = Endpoint::start(|request, stream| {
        let text: &[u8] = match request.line.as_str() {
            "HEAD /a HTTP/1.1" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            "GET /none HTTP/1.1" => b"HTTP/1.1 204 No Content\r\n\r\n",
            _ => b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
        };
        let _ = stream.write_all(text);
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send("HEAD /a HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(client.head().unwrap().contains("content-length: 5"));
    assert_eq!(client.get(HOST, "/none").status, 204);
    assert_eq!(client.get(HOST, "/same").status, 304);
    assert_eq!(endpoint.requests().last().unwrap().connection, 0);
}

#[test]
fn a_client_of_http_1_0_is_served() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        );
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send("GET / HTTP/1.0\r\nHost: a.test\r\n\r\n");
    let head = client.head().unwrap();
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(client.rest(), b"ok");
}

#[test]
fn hosts_have_routes_of_their_own() {
    let (a, b) = (Endpoint::named("a"), Endpoint::named("b"));
    let mut config = config(&[a.address]);
    let other = name("other", UpstreamProtocol::Http1);
    add_host(&mut config, "b.test", &other, RoutePolicy::default());
    config.upstreams.insert(other, upstream(&[b.address]));
    let world = World::start(config);
    let mut client = Client::connect(world.http());
    assert_eq!(client.get("a.test", "/").text(), "a");
    assert_eq!(client.get("B.test:80", "/").text(), "b");
    assert_eq!(client.get("c.test", "/").status, StatusCode::NOT_FOUND.as_u16());
}
