//! Copies of requests for another server.

use std::cell::Cell;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Method};
use lb_http::RoutePolicy;
use lb_http::auth::Users;
use lb_http::mirror::Mirror;
use lb_http::policy::{BasicAuth, ExternalAuth};
use lb_http::snippet::{HeaderTemplate, SnippetRules};
use lb_http::upstream::UpstreamProtocol;
use lb_proxy::ProxySettings;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::forwarding::echo;
use crate::world::{HOST, World, name, policy_config, upstream, wait_until};

fn mirrored(uri: &str, with_body: bool) -> RoutePolicy {
    let mirror = Mirror {
        upstream: name("mirror", UpstreamProtocol::Http1),
        host: HeaderValue::from_static("mirror.test"),
        uri: uri.into(),
        with_body,
    };
    RoutePolicy { mirror: Some(mirror), ..RoutePolicy::default() }
}

/// Requests for `endpoint` are copied to `mirrors`.
fn copying(
    endpoint: &Endpoint,
    mirrors: &[&Endpoint],
    policy: RoutePolicy,
    change: impl FnOnce(&mut ProxySettings),
) -> World {
    let mut config = policy_config(&[endpoint.address], policy);
    let addresses: Vec<_> = mirrors.iter().map(|mirror| mirror.address).collect();
    config.upstreams.insert(name("mirror", UpstreamProtocol::Http1), upstream(&addresses));
    World::with(config, change)
}

fn counted(world: &World, result: &str) -> u64 {
    let series = format!(
        "mirrored_requests_total{{namespace=\"default\",ingress=\"web\",result=\"{result}\"}} "
    );
    let text = world.metrics();
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
}

fn wait_for_result(world: &World, result: &str, count: u64) {
    wait_until(&format!("copy with result {result}"), || counted(world, result) >= count);
}

#[test]
fn another_server_gets_a_copy_with_the_body() {
    let (endpoint, mirror) = (echo(), echo());
    let policy = mirrored("/copy$request_uri", true);
    let world = copying(&endpoint, &[&mirror], policy, |_| {});
    let mut client = Client::connect(world.http());
    client.send(format!(
        "POST /a?b HTTP/1.1\r\nHost: {HOST}\r\nX-A: 1\r\nX-Mirrored-By: 1\r\nExpect: 100-continue\r\n\
         Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    ));
    assert_eq!(client.response().text(), "POST /a?b HTTP/1.1 hello");
    wait_for_result(&world, "sent", 1);
    let copy = &mirror.requests()[0];
    assert_eq!(copy.line, "POST /copy/a?b HTTP/1.1");
    assert_eq!(copy.body, b"hello");
    assert_eq!(copy.header("content-length"), Some("5"));
    assert_eq!(copy.header("host"), Some("mirror.test"));
    assert_eq!(copy.header("x-a"), Some("1"));
    assert_eq!(copy.header("x-forwarded-host"), Some(HOST));
    assert_eq!(copy.header("expect"), None);

    assert_eq!(client.get(HOST, "/c").text(), "GET /c HTTP/1.1 ");
    wait_for_result(&world, "sent", 2);
    let copy = &mirror.requests()[1];
    assert_eq!((copy.line.as_str(), copy.connection), ("GET /copy/c HTTP/1.1", 0));
    assert_eq!((endpoint.count(), mirror.errors().len()), (2, 0));
}

#[test]
fn a_copy_can_be_without_the_body() {
    let (endpoint, mirror) = (echo(), echo());
    let world = copying(&endpoint, &[&mirror], mirrored("$request_uri", false), |_| {});
    let mut client = Client::connect(world.http());
    client.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 2\r\n\r\nhi"));
    assert_eq!(client.response().status, 200);
    wait_for_result(&world, "sent", 1);
    let copy = &mirror.requests()[0];
    assert_eq!((copy.header("content-length"), copy.body.len()), (Some("0"), 0));
}

#[test]
fn only_requests_with_access_are_copied() {
    let (endpoint, mirror) = (echo(), echo());
    let (users, _) = Users::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
    let basic_auth = Some(BasicAuth { realm: "r".into(), users: Some(Arc::new(users)) });
    let policy = RoutePolicy { basic_auth, ..mirrored("$request_uri", true) };
    let world = copying(&endpoint, &[&mirror], policy, |_| {});
    let mut client = Client::connect(world.http());
    assert_eq!(client.get(HOST, "/refused").status, 401);
    client.send(format!(
        "GET /served HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Basic YW5uOnBhc3N3b3Jk\r\n\r\n"
    ));
    assert_eq!(client.response().status, 200);
    wait_for_result(&world, "sent", 1);
    let lines: Vec<String> = mirror.requests().into_iter().map(|copy| copy.line).collect();
    assert_eq!(lines, ["GET /served HTTP/1.1"]);
}

#[test]
fn copies_have_nothing_that_is_for_endpoints_only() {
    let (endpoint, mirror) = (echo(), echo());
    let server = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 0\r\n\r\n");
        Then::Keep
    });
    let auth = name("auth", UpstreamProtocol::Http1);
    let rules = SnippetRules {
        request_headers: vec![("x-key".parse().unwrap(), HeaderTemplate::text("secret"))],
        ..SnippetRules::default()
    };
    let policy = RoutePolicy {
        snippet: Some(Arc::new(rules)),
        external_auth: Some(ExternalAuth {
            upstream: auth.clone(),
            url: "http://auth.test/".parse().unwrap(),
            method: Method::GET,
            signin: None,
            response_headers: vec!["x-user".parse().unwrap()],
        }),
        ..mirrored("$request_uri", true)
    };
    let mut config = policy_config(&[endpoint.address], policy);
    config.upstreams.insert(name("mirror", UpstreamProtocol::Http1), upstream(&[mirror.address]));
    config.upstreams.insert(auth, upstream(&[server.address]));
    let world = World::start(config);
    let mut client = Client::connect(world.http());
    client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-User: root\r\nX-Key: a\r\n\r\n"));
    assert_eq!(client.response().status, 200);
    wait_for_result(&world, "sent", 1);
    let values = |endpoint: &Endpoint| {
        let request = &endpoint.requests()[0];
        ["x-user", "x-key"].map(|name| request.header(name).map(str::to_owned))
    };
    assert_eq!(values(&endpoint), [Some("ann".to_owned()), Some("secret".to_owned())]);
    assert_eq!(values(&mirror), [None, None]);
    assert_eq!(server.requests()[0].header("x-key"), Some("a"));
}

/// What the server does not take would be kept as long as it likes.
#[test]
fn a_mirror_that_responds_before_it_has_the_body_loses_the_rest() {
    let endpoint = Endpoint::named("a");
    let held = Arc::new(Mutex::new(()));
    let until_the_end = held.lock().unwrap();
    let holding = held.clone();
    let mirror = Endpoint::on_heads(true, move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        drop(holding.lock());
        Then::Close
    });
    // More than sockets buffer.
    let length = 48 << 20;
    let world = copying(&endpoint, &[&mirror], mirrored("$request_uri", true), |settings| {
        settings.limits.mirrored_body = length;
        settings.limits.mirrored_bytes = 2 * length;
        settings.limits.mirrored_bytes_per_namespace = 2 * length;
        settings.limits.mirrored_time = Duration::from_secs(3600);
    });
    let mut client = Client::connect(world.http());
    client.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n"));
    client.send(vec![b'a'; length]);
    assert_eq!(client.response().status, 200);
    wait_for_result(&world, "failed", 1);
    drop(until_the_end);
}

/// The client gets each response while the mirror still holds all copies, and a copy more than that is not made.
#[test]
fn a_mirror_that_never_responds_holds_up_nobody() {
    let endpoint = echo();
    let mirror = Endpoint::on_heads(true, |_, _| Then::Keep);
    let world = copying(&endpoint, &[&mirror], mirrored("$request_uri", true), |settings| {
        settings.limits.mirrored_bytes_per_namespace = 80 << 10;
        settings.limits.mirrored_time = Duration::from_secs(3600);
    });
    let mut client = Client::connect(world.http());
    for _ in 0..20 {
        assert_eq!(client.get(HOST, "/").status, 200);
    }
    wait_for_result(&world, "limit", 18);
    mirror.wait_for(2);
    assert_eq!((mirror.count(), counted(&world, "limit")), (2, 18));
}

#[test]
fn a_mirror_that_fails_changes_no_response() {
    let endpoint = echo();
    let closing = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"nonsense");
        Then::Close
    });
    let world = copying(&endpoint, &[&closing], mirrored("$request_uri", true), |_| {});
    let mut client = Client::connect(world.http());
    assert_eq!(client.get(HOST, "/").status, 200);
    wait_for_result(&world, "failed", 1);

    let slow = Endpoint::on_heads(true, |_, _| Then::Keep);
    let world = copying(&endpoint, &[&slow], mirrored("$request_uri", true), |settings| {
        settings.limits.mirrored_time = Duration::from_millis(1);
    });
    assert_eq!(Client::connect(world.http()).get(HOST, "/").status, 200);
    wait_for_result(&world, "failed", 1);

    let world = copying(&endpoint, &[], mirrored("$request_uri", true), |_| {});
    assert_eq!(Client::connect(world.http()).get(HOST, "/").status, 200);
    wait_for_result(&world, "failed", 1);
}

#[test]
fn large_bodies_and_those_that_break_off_are_not_copied() {
    let (endpoint, mirror) = (echo(), echo());
    let world = copying(&endpoint, &[&mirror], mirrored("$request_uri", true), |settings| {
        settings.limits.mirrored_body = 10;
    });
    let mut client = Client::connect(world.http());
    for body in ["0123456789", "0123456789a"] {
        let length = body.len();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        assert!(client.response().text().ends_with(body));
    }
    wait_for_result(&world, "limit", 1);
    wait_for_result(&world, "sent", 1);
    client.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\nhalf"));
    drop(client);
    wait_for_result(&world, "body", 1);
    assert_eq!(mirror.requests()[0].body, b"0123456789");
    assert_eq!(mirror.count(), 1);
}

/// A tenant can name the proxy itself as the server.
#[test]
fn a_copy_is_not_copied_again() {
    let endpoint = echo();
    let mut policy = mirrored("$request_uri", true);
    policy.mirror.as_mut().unwrap().host = HeaderValue::from_static(HOST);
    let world = copying(&endpoint, &[], policy.clone(), |_| {});
    let mut config = policy_config(&[endpoint.address], policy);
    let itself = name("mirror", UpstreamProtocol::Http1);
    config.upstreams.insert(itself, upstream(&[world.http()]));
    world.config.send(config.into()).unwrap();
    // Once the snapshot is there, each request comes twice.
    let requests = Cell::new(0);
    let results = || counted(&world, "sent") + counted(&world, "failed");
    wait_until("copy", || {
        assert_eq!(Client::connect(world.http()).get(HOST, "/").status, 200);
        requests.set(requests.get() + 1);
        wait_until("result of each request", || results() >= requests.get());
        counted(&world, "sent") > 0
    });
    let (before, copies) = (endpoint.count(), counted(&world, "sent"));
    let mut client = Client::connect(world.http());
    for _ in 0..10 {
        assert_eq!(client.get(HOST, "/").status, 200);
    }
    wait_for_result(&world, "sent", copies + 10);
    assert_eq!(endpoint.count(), before + 20);
    assert_eq!(counted(&world, "sent"), copies + 10);
}
