//! What the policy of a route changes.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderValue, Method, Request};
use lb_http::auth::Users;
use lb_http::policy::{
    AffinityCookie, BasicAuth, Cors, CorsOrigin, CustomErrors, ExternalAuth, RateLimits, Rewrite,
    TlsRedirect,
};
use lb_http::route::{Canary, CanaryHeader, CanaryValue};
use lb_http::upstream::UpstreamProtocol;
use lb_http::{Action, HostPattern, PathPattern, Route, RouteOwner, RoutePolicy, UpstreamName};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::forwarding::echo;
use crate::http2;
use crate::world::{HOST, World, name, policy_config, upstream, wait_until};

#[test]
fn the_path_is_rewritten_and_the_host_replaced() {
    let endpoint = echo();
    let policy = RoutePolicy {
        rewrite: Some(Rewrite { target: "/new".into() }),
        upstream_host: Some(HeaderValue::from_static("inside.test")),
        forwarded_prefix: Some(HeaderValue::from_static("/old")),
        request_headers: vec![("x-team".parse().unwrap(), HeaderValue::from_static("blue"))],
        response_headers: vec![("x-served".parse().unwrap(), HeaderValue::from_static("yes"))],
        ..RoutePolicy::default()
    };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let response = Client::connect(world.http()).get(HOST, "/old/a?q=1");
    assert_eq!(response.text(), "GET /new?q=1 HTTP/1.1 ");
    assert_eq!(response.header("x-served"), Some("yes"));
    let request = &endpoint.requests()[0];
    assert_eq!(request.header("host"), Some("inside.test"));
    assert_eq!(request.header("x-forwarded-host"), Some(HOST));
    assert_eq!(request.header("x-forwarded-prefix"), Some("/old"));
    assert_eq!(request.header("x-team"), Some("blue"));
}

#[test]
fn redirects_and_cors_need_no_endpoint() {
    let policy = RoutePolicy {
        tls_redirect: TlsRedirect::Always,
        cors: Some(Cors {
            origins: vec![CorsOrigin::Exact("https://o.test".into())],
            methods: HeaderValue::from_static("GET"),
            headers: HeaderValue::from_static("X-A"),
            expose: None,
            credentials: false,
            max_age: Duration::from_secs(1),
        }),
        ..RoutePolicy::default()
    };
    let world = World::start(policy_config(&[], policy));
    let mut client = Client::connect(world.http());
    client.send("GET /x HTTP/1.1\r\nHost: a.test\r\nOrigin: https://o.test\r\n\r\n");
    let response = client.response();
    assert_eq!(response.status, 308);
    assert_eq!(response.header("location"), Some("https://a.test/x"));
    assert_eq!(response.header("access-control-allow-origin"), Some("https://o.test"));
}

#[test]
fn an_affinity_cookie_returns_to_its_endpoint() {
    let endpoints = [Endpoint::named("one"), Endpoint::named("two"), Endpoint::named("three")];
    let policy =
        RoutePolicy { affinity: Some(AffinityCookie::named("route")), ..RoutePolicy::default() };
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    let world = World::start(policy_config(&addresses, policy));
    let mut client = Client::connect(world.http());
    let first = client.get(HOST, "/");
    let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    for _ in 0..20 {
        client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\nCookie: {cookie}\r\n\r\n"));
        let response = client.response();
        assert_eq!(response.text(), first.text());
        assert_eq!(response.header("set-cookie"), None);
    }
}

#[test]
fn passwords_are_asked_for() {
    let endpoint = echo();
    // `password`, as `htpasswd -s` writes it.
    let (users, problems) = Users::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
    assert!(problems.is_empty(), "{problems:?}");
    let basic = BasicAuth { realm: "inner \"circle\"".into(), users: Some(Arc::new(users)) };
    let policy = RoutePolicy { basic_auth: Some(basic), ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    let response = client.get(HOST, "/");
    assert_eq!(response.status, 401);
    assert_eq!(response.header("www-authenticate"), Some("Basic realm=\"inner circle\""));
    let request = |password: &str| {
        format!("GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Basic {password}\r\n\r\n")
    };
    client.send(request("YW5uOndyb25n"));
    assert_eq!(client.response().status, 401);
    client.send(request("YW5uOnBhc3N3b3Jk"));
    assert_eq!(client.response().status, 200);
    assert_eq!(endpoint.count(), 1);
}

fn external(server: UpstreamName) -> RoutePolicy {
    let auth = ExternalAuth {
        upstream: server,
        url: "http://auth.test/check".parse().unwrap(),
        method: Method::GET,
        signin: None,
        response_headers: vec!["x-user".parse().unwrap()],
    };
    RoutePolicy { external_auth: Some(auth), ..RoutePolicy::default() }
}

/// Asks `server` before it forwards a request to `endpoint`.
fn asking(server: &Endpoint, endpoint: &Endpoint) -> World {
    let auth = name("auth", UpstreamProtocol::Http1);
    let mut config = policy_config(&[endpoint.address], external(auth.clone()));
    config.upstreams.insert(auth, upstream(&[server.address]));
    World::start(config)
}

#[test]
fn another_server_decides_who_may_pass() {
    let server = Endpoint::start(|request, stream| {
        let text: &[u8] = match request.header("x-token") {
            Some("good") => b"HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 0\r\n\r\n",
            Some("bad") => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
            _ => b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n",
        };
        let _ = stream.write_all(text);
        Then::Keep
    });
    let endpoint = echo();
    let world = asking(&server, &endpoint);
    let mut client = Client::connect(world.http());
    let mut ask = |token: &str| {
        client.send(format!("POST /a?b HTTP/1.1\r\nHost: a.test\r\nX-User: root\r\nX-Token: {token}\r\nContent-Length: 2\r\n\r\nhi"));
        client.response()
    };
    assert_eq!(ask("none").header("www-authenticate"), Some("Bearer"));
    assert_eq!(ask("bad").status, 403);
    assert_eq!(endpoint.count(), 0);
    assert!(ask("good").text().ends_with("hi"));
    assert_eq!(endpoint.requests()[0].header("x-user"), Some("ann"));
    let asked = &server.requests()[2];
    assert_eq!(asked.line, "GET /check HTTP/1.1");
    assert_eq!(asked.header("host"), Some("auth.test"));
    assert_eq!(asked.header("x-original-url"), Some("http://a.test/a?b"));
    assert_eq!(asked.header("x-original-method"), Some("POST"));
    assert_eq!(asked.header("content-length"), None);
}

#[test]
fn the_server_that_decides_sees_the_path_that_the_endpoint_gets() {
    let server = Endpoint::named("yes");
    let endpoint = echo();
    let world = asking(&server, &endpoint);
    let mut client = Client::connect(world.http());
    for _ in 0..2 {
        client.send(
            "GET /public/%2e%2e/admin?a HTTP/1.1\r\nHost: a.test\r\nX-Original-URI: /public\r\n\r\n",
        );
        assert_eq!(client.response().text(), "GET /admin?a HTTP/1.1 ");
    }
    for asked in server.requests() {
        assert_eq!(asked.header("x-original-url"), Some("http://a.test/admin?a"));
        assert_eq!(asked.header("x-auth-request-redirect"), Some("/admin?a"));
        assert_eq!(asked.header("x-original-uri"), None);
        // Its response has a body, and the connection is used again.
        assert_eq!(asked.connection, 0);
    }
}

#[test]
fn a_replaced_error_leaves_the_client_its_endpoint() {
    let own = Endpoint::start(|request, stream| {
        let status = if request.line.starts_with("GET /fail ") { "500 No" } else { "200 OK" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        Then::Keep
    });
    let page = Endpoint::named("page");
    let errors = name("errors", UpstreamProtocol::Http1);
    let custom = CustomErrors { statuses: [500].into(), upstream: errors.clone() };
    let policy = RoutePolicy {
        affinity: Some(AffinityCookie::named("route")),
        errors: Some(custom),
        ..RoutePolicy::default()
    };
    let mut config = policy_config(&[own.address], policy);
    config.upstreams.insert(errors, upstream(&[page.address]));
    let world = World::start(config);
    let mut client = Client::connect(world.http());
    let response = client.get(HOST, "/");
    let pair = response.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    client.send(format!("GET /fail HTTP/1.1\r\nHost: a.test\r\nCookie: {pair}\r\n\r\n"));
    let response = client.response();
    assert_eq!((response.text().as_str(), response.header("set-cookie")), ("page", None));
}

#[test]
fn errors_are_replaced_by_another_service() {
    let failing = Endpoint::start(|_, stream| {
        let _ =
            stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nraw");
        Then::Keep
    });
    let page = Endpoint::start(|request, stream| {
        let code = request.header("x-code").unwrap();
        let text = format!("HTTP/1.1 503 Nice\r\nContent-Length: 8\r\n\r\nnice {code}");
        let _ = stream.write_all(text.as_bytes());
        Then::Keep
    });
    let errors: UpstreamName = name("errors", UpstreamProtocol::Http1);
    let custom = CustomErrors { statuses: [503].into(), upstream: errors.clone() };
    let policy = RoutePolicy { errors: Some(custom), ..RoutePolicy::default() };
    for addresses in [vec![failing.address], vec![]] {
        let mut config = policy_config(&addresses, policy.clone());
        config.upstreams.insert(errors.clone(), upstream(&[page.address]));
        let world = World::start(config);
        let response = Client::connect(world.http()).get(HOST, "/x");
        assert_eq!((response.status, response.text().as_str()), (503, "nice 503"));
        assert_eq!(page.requests().last().unwrap().header("x-original-uri"), Some("/x"));
    }
}

#[test]
fn clients_beyond_their_rate_get_429() {
    let endpoint = echo();
    let limits =
        RateLimits { requests_per_minute: Some(2), burst_multiplier: 1, ..RateLimits::default() };
    let policy = RoutePolicy { limits, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    let statuses: Vec<_> = (0..10).map(|_| client.get(HOST, "/")).collect();
    let refused = statuses.iter().find(|r| r.status == 429).expect("no request was refused");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(statuses[0].status, 200);
    assert_eq!(endpoint.count(), statuses.iter().filter(|r| r.status == 200).count());
}

/// The order of `lb_http::admission`. Everything refuses the request; what does so first gives way, and the next one
/// is seen.
#[test]
fn requests_are_judged_in_the_order_of_admission() {
    let server = Endpoint::start(|request, stream| {
        let status = if request.header("x-token").is_some() { "200 OK" } else { "403 Forbidden" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        Then::Keep
    });
    let (users, _) = Users::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
    let auth = name("auth", UpstreamProtocol::Http1);
    let limits = |concurrent| RateLimits { concurrent, ..RateLimits::default() };
    let policy = RoutePolicy {
        denied_sources: vec!["127.0.0.0/8".parse().unwrap()],
        limits: limits(Some(0)),
        max_body: Some(2),
        basic_auth: Some(BasicAuth { realm: "r".into(), users: Some(Arc::new(users)) }),
        ..external(auth.clone())
    };
    // `/admitted` shows what comes after the route, `/counted` what comes after the rate.
    let admitted = RoutePolicy { denied_sources: Vec::new(), ..policy.clone() };
    let counted = RoutePolicy { limits: limits(Some(100)), ..admitted.clone() };
    let upstream_name = name("web", UpstreamProtocol::Http1);
    let route = |canaries, policy: &RoutePolicy| {
        let owner = RouteOwner { namespace: "default".into(), name: "web".into() };
        let action = Action::Forward(upstream_name.clone());
        Arc::new(Route { owner, action, canaries, policy: Arc::new(policy.clone()) })
    };
    let with_canary = |policy: &RoutePolicy| {
        let canary = Canary {
            header: None,
            cookie: None,
            weight: 1,
            weight_total: 1,
            route: route(Vec::new(), policy),
        };
        route(vec![canary], &RoutePolicy::default())
    };
    let mut config = policy_config(&[], RoutePolicy::default());
    let rules = [("/", &policy), ("/admitted", &admitted), ("/counted", &counted)];
    let rules = rules.map(|(path, policy)| (PathPattern::Prefix(path.into()), with_canary(policy)));
    config.table.set_host(HostPattern::parse(HOST).unwrap(), rules.into());
    config.upstreams.insert(auth, upstream(&[server.address]));
    let world = World::start(config);
    let status = |method: &str, host: &str, path: &str, headers: &str| {
        let mut client = Client::connect(world.http());
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"));
        client.response().status
    };
    let length = "Content-Length: 3\r\n";
    let password = "Authorization: Basic YW5uOnBhc3N3b3Jk\r\n";
    assert_eq!(status("TRACE", "b.test", "/", ""), 405, "form");
    assert_eq!(status("POST", "b.test", "/", length), 404, "rule");
    assert_eq!(status("POST", HOST, "/", length), 403, "policy of the canary");
    assert_eq!(status("POST", HOST, "/admitted", length), 429, "rate");
    assert_eq!(status("POST", HOST, "/counted", length), 413, "length");
    assert_eq!(status("POST", HOST, "/counted", ""), 401, "password");
    assert_eq!(server.count(), 0);
    assert_eq!(status("POST", HOST, "/counted", password), 403, "external check");
    assert_eq!(server.count(), 1);
    let granted = format!("{password}X-Token: good\r\n");
    assert_eq!(status("POST", HOST, "/counted", &granted), 503, "endpoints");
}

/// A client that chooses between the route and its canary must not have two limits.
#[test]
fn a_canary_shares_the_limits_of_its_main_route() {
    let endpoint = echo();
    let limits =
        RateLimits { requests_per_minute: Some(1), burst_multiplier: 1, ..RateLimits::default() };
    let policy = Arc::new(RoutePolicy { limits, ..RoutePolicy::default() });
    let upstream_name = name("web", UpstreamProtocol::Http1);
    let route = |owner: &str, canaries| {
        let owner = RouteOwner { namespace: "default".into(), name: owner.into() };
        let action = Action::Forward(upstream_name.clone());
        Arc::new(Route { owner, action, canaries, policy: policy.clone() })
    };
    let header =
        CanaryHeader { name: "x-canary".parse().unwrap(), value: CanaryValue::AlwaysOrNever };
    let canary = Canary {
        header: Some(header),
        cookie: None,
        weight: 0,
        weight_total: 100,
        route: route("canary", Vec::new()),
    };
    let mut config = policy_config(&[endpoint.address], RoutePolicy::default());
    let host = HostPattern::parse(HOST).unwrap();
    config.table.set_host(host, vec![(PathPattern::Default, route("web", vec![canary]))]);
    let world = World::start(config);
    let mut client = Client::connect(world.http());
    // One, and a burst of one.
    assert_eq!(client.get(HOST, "/").status, 200);
    assert_eq!(client.get(HOST, "/").status, 200);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nX-Canary: always\r\n\r\n");
    assert_eq!(client.response().status, 429);
}

#[test]
fn texts_are_compressed_for_clients_that_accept_it() {
    let text = "all work and no play ".repeat(5_000);
    let copy = text.clone();
    let endpoint = Endpoint::start(move |_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nETag: \"a\"\r\n";
        let length = format!("Content-Length: {}\r\n\r\n", copy.len());
        let _ = stream.write_all([head, &length, &copy].concat().as_bytes());
        Then::Keep
    });
    let policy = RoutePolicy { compress: true, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    for (accepted, coding) in [("gzip, br;q=0", "gzip"), ("gzip, br", "br")] {
        client
            .send(format!("GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: {accepted}\r\n\r\n"));
        let response = client.response();
        assert_eq!(response.header("content-encoding"), Some(coding));
        assert_eq!(response.header("content-length"), None);
        assert_eq!(response.header("etag"), Some("W/\"a\""));
        assert!(response.body.len() < text.len() / 10, "{} octets", response.body.len());
        let mut plain = String::new();
        let mut decoder: Box<dyn Read> = match coding {
            "br" => Box::new(brotli::Decompressor::new(&response.body[..], 4096)),
            _ => Box::new(GzDecoder::new(&response.body[..])),
        };
        decoder.read_to_string(&mut plain).unwrap();
        assert!(plain == text);
    }
    let response = client.get(HOST, "/");
    assert_eq!(response.header("content-encoding"), None);
    assert_eq!(response.header("vary"), Some("Accept-Encoding"));
    assert!(response.text() == text);
}

#[test]
fn a_compressed_response_does_not_wait_for_more() {
    let go = Arc::new(AtomicBool::new(false));
    let allowed = go.clone();
    let endpoint = Endpoint::start(move |_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nfirst, ";
        let _ = stream.write_all(head.as_bytes());
        wait_until("permission", || allowed.load(Ordering::SeqCst));
        let _ = stream.write_all(b"second");
        Then::Close
    });
    let policy = RoutePolicy { compress: true, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    client.send(
        "GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n",
    );
    assert!(client.head().unwrap().contains("content-encoding: gzip"));
    // The size and the octets of the first chunk.
    let mut size = Vec::new();
    while !size.ends_with(b"\r\n") {
        size.extend(client.take(1).unwrap());
    }
    let size = usize::from_str_radix(String::from_utf8(size).unwrap().trim(), 16).unwrap();
    let chunk = client.take(size).unwrap();
    let mut text = [0; 7];
    GzDecoder::new(&chunk[..]).read_exact(&mut text).unwrap();
    assert_eq!(&text, b"first, ");
    go.store(true, Ordering::SeqCst);
    assert!(client.rest().ends_with(b"0\r\n\r\n"));
}

/// The connection to the endpoint serves the next request as soon as the whole body was received.
#[test]
fn a_compressed_response_that_waits_for_its_client_gets_nothing_of_the_next_one() {
    let mut state = 1_u32;
    // Hardly compressible, so that the client's window is used up long before the end.
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 16)
    });
    let text: String = letters.take(56 << 10).collect();
    let large = text.clone();
    let (is_sent, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (was_sent, allowed) = (is_sent.clone(), go.clone());
    let endpoint = Endpoint::start(move |request, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
        if request.line.starts_with("GET /large ") {
            let length = format!("Content-Length: {}\r\n\r\n", large.len());
            let _ = stream.write_all([head, &length, &large].concat().as_bytes());
            was_sent.store(true, Ordering::SeqCst);
        } else {
            let _ = stream.write_all([head, "Content-Length: 10\r\n\r\nfirst"].concat().as_bytes());
            wait_until("permission", || allowed.load(Ordering::SeqCst));
            let _ = stream.write_all(b" last");
        }
        Then::Keep
    });
    let policy = RoutePolicy { compress: true, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    http2::run(async {
        let tcp = TcpStream::connect(world.http()).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(0);
        let (sender, mut connection) = builder.handshake::<_, Bytes>(tcp).await.unwrap();
        let (window, mut windows) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(size) = windows.recv() => connection.set_initial_window_size(size).unwrap(),
                    _ = &mut connection => break,
                }
            }
        });
        let request = Request::get("http://a.test/large").header("accept-encoding", "gzip");
        let mut sender = sender.ready().await.unwrap();
        let response = sender.send_request(request.body(()).unwrap(), true).unwrap().0;
        let mut response = response.await.unwrap();
        assert_eq!(response.headers()["content-encoding"], "gzip");
        wait_until("the response", || is_sent.load(Ordering::SeqCst));
        window.send(1).unwrap();
        let mut compressed = response.body_mut().data().await.unwrap().unwrap().to_vec();

        let mut other = Client::connect(world.http());
        other.send("GET /next HTTP/1.1\r\nHost: a.test\r\n\r\n");
        other.head().unwrap();
        assert_eq!(other.take(5).unwrap(), b"first");
        assert_eq!(endpoint.requests()[1].connection, 0);

        window.send(1 << 20).unwrap();
        let rest = tokio::spawn(async move { http2::take_data(response.body_mut()).await });
        // Until the proxy has compressed all that it has received.
        tokio::time::sleep(Duration::from_millis(300)).await;
        go.store(true, Ordering::SeqCst);
        compressed.extend(rest.await.unwrap());
        let mut plain = String::new();
        GzDecoder::new(&compressed[..]).read_to_string(&mut plain).unwrap();
        assert!(plain == text, "{}", &plain[plain.len() - 20..]);
        assert_eq!(other.take(5).unwrap(), b" last");
    });
}

#[test]
fn another_service_gets_the_requests_while_the_own_one_has_no_endpoints() {
    let (own, other) = (Endpoint::named("own"), Endpoint::named("other"));
    let fallback = name("other", UpstreamProtocol::Http1);
    let policy = RoutePolicy { fallback: Some(fallback.clone()), ..RoutePolicy::default() };
    for (addresses, expected) in [(vec![own.address], "own"), (vec![], "other")] {
        let mut config = policy_config(&addresses, policy.clone());
        config.upstreams.insert(fallback.clone(), upstream(&[other.address]));
        let world = World::start(config);
        assert_eq!(Client::connect(world.http()).get(HOST, "/").text(), expected);
    }
}
