//! Routes whose users sign in at an OpenID provider.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use http::Method;
use lb_http::policy::{ExternalAuth, Satisfy};
use lb_http::upstream::UpstreamProtocol;
use lb_http::{RoutePolicy, UpstreamName};
use serde_json::json;

use crate::client::Client;
use crate::endpoint::{Endpoint, Request, Then, respond, respond_with};
use crate::provider::{
    Browser, Provider, behind_tls, behind_tls_for_hanging_provider, sign_in_config, sign_in_policy,
};
use crate::world::{HOST, World, add_host, name, upstream, wait_until};

const DOCUMENT: &str = "/.well-known/openid-configuration";

fn start() -> (Provider, Endpoint, World) {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let world = behind_tls(sign_in_config(&provider, &endpoint));
    (provider, endpoint, world)
}

#[test]
fn a_user_signs_in_is_served_and_signs_out() {
    let (provider, endpoint, mut world) = start();
    let proxy = world.http();
    let mut browser = Browser::default();
    let response = browser.sign_in(proxy, &provider, "/cart?a=b");
    assert_eq!(
        (response.status, response.header("location")),
        (302, Some("https://a.test/cart?a=b"))
    );
    assert_eq!(response.header("cache-control"), Some("no-store"));
    let entry = world.logged(|entry| (entry.status, entry.reason) == (302, Some("oidc")));
    assert_eq!(entry.uri.unwrap(), "/oauth2/callback", "without code and state");
    assert_eq!(endpoint.count(), 0);

    let smuggled =
        "X-User: admin\r\nX_User: admin\r\nX-Role: admin\r\nConnection: x-user, x-role\r\n";
    let response = browser.send(proxy, HOST, "/cart", smuggled);
    assert_eq!(response.status, 200);
    let request = &endpoint.requests()[0];
    assert_eq!(request.header("x-user"), Some("ann"));
    let names: Vec<_> = request.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
    assert!(!names.iter().any(|name| name.contains("role") || name == "cookie"), "{names:?}");
    assert_eq!(provider.asked("/token"), 1);
    // Nothing about the login has to be known for it.
    for path in [DOCUMENT, "/keys", "/token"] {
        provider.fail(path, |_, _| Then::Close);
    }
    assert_eq!(browser.send(proxy, HOST, "/", "").status, 200);

    let response = browser.send(proxy, HOST, "/oauth2/logout", "Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(response.status, 403);
    assert_eq!(browser.send(proxy, HOST, "/", "").status, 200);
    let response = browser.send(proxy, HOST, "/oauth2/logout", "Sec-Fetch-Site: same-origin\r\n");
    let location = response.header("location");
    assert_eq!((response.status, location), (303, Some("https://id.test/end?client_id=shop")));
    assert_eq!(browser.cookie_header(), "");
    assert_eq!(browser.send(proxy, HOST, "/", "").status, 401);
}

#[test]
fn requests_without_a_session_reach_no_endpoint() {
    let (provider, endpoint, world) = start();
    let request = |request: &str| {
        let mut client = Client::connect(world.http());
        client.send(request);
        client.response()
    };
    let secure = "X-Forwarded-Proto: https\r\n";
    for (line, headers, status) in [
        ("GET / HTTP/1.1", format!("{secure}Accept: application/json\r\n"), 401),
        ("GET / HTTP/1.1", secure.to_owned(), 401),
        ("POST / HTTP/1.1", format!("{secure}Accept: text/html\r\nContent-Length: 0\r\n"), 401),
        ("OPTIONS / HTTP/1.1", format!("{secure}Accept: text/html\r\n"), 401),
        ("GET / HTTP/1.1", format!("{secure}Accept: text/html\r\n"), 302),
        ("GET / HTTP/1.1", "Accept: text/html\r\n".to_owned(), 401),
        ("GET /oauth2/callback HTTP/1.1", secure.to_owned(), 400),
        ("GET /oauth2/logout HTTP/1.1", secure.to_owned(), 403),
        (
            "GET / HTTP/1.1",
            format!(
                "{secure}Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            ),
            401,
        ),
    ] {
        let response = request(&format!("{line}\r\nHost: {HOST}\r\n{headers}\r\n"));
        assert_eq!(response.status, status, "{line} {headers}");
        assert_eq!(response.header("cache-control"), Some("no-store"));
    }
    assert_eq!((endpoint.count(), provider.asked("/token")), (0, 0));
}

#[test]
fn a_login_belongs_to_its_browser_and_ends_once() {
    let (provider, endpoint, world) = start();
    let proxy = world.http();
    let (mut victim, mut attacker) = (Browser::default(), Browser::default());
    let (code, state) = provider.sign_in(&victim.begin(proxy, "/"));
    let (other_code, other_state) = provider.sign_in(&attacker.begin(proxy, "/"));
    // What was seen of the victim is worth nothing to the attacker, nor the attacker's to the victim.
    assert_eq!(attacker.clone().callback(proxy, &code, &state).status, 400);
    assert_eq!(Browser::default().callback(proxy, &code, &state).status, 400);
    assert_eq!(victim.clone().callback(proxy, &other_code, &other_state).status, 400);
    assert_eq!(provider.asked("/token"), 0);
    // The victim's code in the attacker's own login: the provider compares the verifier.
    assert_eq!(attacker.callback(proxy, &code, &other_state).status, 400);
    assert_eq!(provider.asked("/token"), 1);
    assert_eq!(attacker.cookie_header(), "", "the login has ended");

    let (code, state) = provider.sign_in(&victim.begin(proxy, "/"));
    let before = victim.clone();
    assert_eq!(victim.callback(proxy, &code, &state).status, 302);
    // Again: without its cookie, and with it.
    let mut again = before.clone();
    assert_eq!(Browser::default().callback(proxy, &code, &state).status, 400);
    assert_eq!(again.callback(proxy, &code, &state).status, 400);
    assert_eq!(endpoint.count(), 0);
    assert_eq!(victim.send(proxy, HOST, "/", "").status, 200);
}

/// The nonce is what is left.
#[test]
fn a_code_of_another_login_is_refused_although_the_provider_ignores_pkce() {
    let (provider, endpoint, mut world) = start();
    provider.forget_pkce();
    let proxy = world.http();
    let (mut victim, mut attacker) = (Browser::default(), Browser::default());
    let (code, _) = provider.sign_in(&victim.begin(proxy, "/"));
    let (_, state) = provider.sign_in(&attacker.begin(proxy, "/"));
    assert_eq!(attacker.callback(proxy, &code, &state).status, 400);
    assert_eq!(world.logged(|entry| entry.status == 400).reason, Some("oidc"));
    assert_eq!((attacker.send(proxy, HOST, "/", "").status, endpoint.count()), (401, 0));
}

#[test]
fn an_id_token_that_is_not_for_this_client_signs_nobody_in() {
    for (name, value) in [
        ("iss", json!("https://evil.test")),
        ("aud", json!("other")),
        ("azp", json!("other")),
        ("exp", json!(1)),
        ("nonce", json!("a")),
        ("sub", json!("ann\r\nX-Role: admin")),
    ] {
        let (provider, endpoint, world) = start();
        provider.change_claim(name, value);
        let mut browser = Browser::default();
        assert_eq!(browser.sign_in(world.http(), &provider, "/").status, 400, "{name}");
        assert_eq!((browser.cookie_header(), endpoint.count()), (String::new(), 0), "{name}");
    }
}

#[test]
fn a_session_counts_for_its_host_and_namespace_only() {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let mut config = sign_in_config(&provider, &endpoint);
    let web = name("web", UpstreamProtocol::Http1);
    add_host(&mut config, "b.test", &web, sign_in_policy("default"));
    add_host(&mut config, "evil.test", &web, sign_in_policy("evil"));
    let world = behind_tls(config);
    let proxy = world.http();
    let mut browser = Browser::default();
    let (code, state) = provider.sign_in(&browser.begin(proxy, "/"));
    let callback = format!("/oauth2/callback?code={code}&state={state}");
    for host in ["b.test", "evil.test"] {
        assert_eq!(browser.clone().send(proxy, host, &callback, "").status, 400, "{host}");
    }
    assert_eq!(provider.asked("/token"), 0);
    assert_eq!(browser.visit(proxy, &callback).status, 302);
    for host in ["b.test", "evil.test"] {
        assert_eq!(browser.clone().send(proxy, host, "/", "").status, 401, "{host}");
    }
    assert_eq!(browser.send(proxy, HOST, "/", "").status, 200);
    // Another Ingress's cookie under the name of this one's.
    let mut of_evil = Browser::default();
    let page = of_evil.send(proxy, "evil.test", "/", "Accept: text/html\r\n");
    let (code, state) = provider.sign_in(page.header("location").unwrap());
    let callback = format!("/oauth2/callback?code={code}&state={state}");
    assert_eq!(of_evil.send(proxy, "evil.test", &callback, "").status, 302);
    let own = browser.cookie_header();
    let (own_name, _) = own.split_once('=').unwrap();
    let (_, value) =
        of_evil.cookie_header().split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())).unwrap();
    let mut client = Client::connect(proxy);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Forwarded-Proto: https\r\nCookie: {own_name}={value}\r\n\r\n"
    ));
    assert_eq!(client.response().status, 401);
}

/// They have no memory of logins, so each can go on with what another has begun.
#[test]
fn replicas_share_logins_and_sessions() {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let worlds = [0, 1].map(|_| behind_tls(sign_in_config(&provider, &endpoint)));
    let [one, other] = [&worlds[0], &worlds[1]].map(World::http);
    let mut browser = Browser::default();
    let (code, state) = provider.sign_in(&browser.begin(one, "/"));
    assert_eq!(browser.callback(other, &code, &state).status, 302);
    assert_eq!(browser.send(one, HOST, "/", "").status, 200);
}

#[test]
fn a_new_key_of_the_provider_is_found() {
    let (provider, _endpoint, world) = start();
    assert_eq!(Browser::default().sign_in(world.http(), &provider, "/").status, 302);
    provider.change_key();
    assert_eq!(Browser::default().sign_in(world.http(), &provider, "/").status, 302);
    assert_eq!(provider.asked("/keys"), 2);
}

/// Whatever the provider does, the route stays closed and its own requests are not in others' way.
#[test]
fn a_provider_with_faults_opens_nothing() {
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(300 << 10));
    for path in [DOCUMENT, "/token", "/keys"] {
        for (status, body) in [
            ("500 Internal Server Error", "{}"),
            ("404 Not Found", "{}"),
            ("302 Found", "{}"),
            ("200 OK", "<html>"),
            ("200 OK", "{}"),
            ("200 OK", r#"{"issuer": "https://evil.test", "keys": []}"#),
            ("200 OK", &huge),
        ] {
            let (provider, endpoint, mut world) = start();
            let mut browser = Browser::default();
            let (status, body) = (status.to_owned(), body.to_owned());
            let text = format!("{path} {status} {body:.40}");
            let fail = || {
                provider.fail(path, move |_, stream| {
                    respond_with(stream, &status, &body);
                    Then::Close
                });
            };
            let response = if path == DOCUMENT {
                fail();
                browser.visit(world.http(), "/")
            } else {
                let (code, state) = provider.sign_in(&browser.begin(world.http(), "/"));
                fail();
                browser.callback(world.http(), &code, &state)
            };
            assert_eq!(response.status, 503, "{text}");
            assert_eq!(world.logged(|entry| entry.status == 503).reason, Some("oidc_provider"));
            assert_eq!((browser.cookie_header(), endpoint.count()), (String::new(), 0), "{text}");
        }
    }
}

#[test]
fn a_provider_that_hangs_delays_no_other_requests() {
    let endless = |_: &Request, stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        // A little, and ever again, until the proxy closes the connection.
        while stream.write_all(b"1\r\n \r\n").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        Then::Close
    };
    let worlds = [DOCUMENT, "/token", "/keys"].map(|path| {
        let (provider, endpoint, before) = start();
        let config = sign_in_config(&provider, &endpoint);
        (path, provider, endpoint, before, behind_tls_for_hanging_provider(config))
    });
    thread::scope(|scope| {
        for (path, provider, endpoint, before, world) in &worlds {
            scope.spawn(move || {
                // While all is well, with another replica.
                let (mut browser, mut signed_in) = (Browser::default(), Browser::default());
                let (code, state) = provider.sign_in(&browser.begin(before.http(), "/"));
                assert_eq!(signed_in.sign_in(before.http(), provider, "/").status, 302);
                let (proxy, asked) = (world.http(), provider.asked(path));
                provider.fail(path, endless);
                thread::scope(|scope| {
                    let waiting = scope.spawn(|| browser.callback(proxy, &code, &state).status);
                    wait_until("a request that hangs", || provider.asked(path) > asked);
                    assert_eq!(Browser::default().send(proxy, HOST, "/", "").status, 401);
                    assert_eq!(signed_in.send(proxy, HOST, "/", "").status, 200);
                    assert_eq!(waiting.join().unwrap(), 503);
                });
                assert_eq!(endpoint.count(), 1);
            });
        }
    });
}

/// All that is restricted must be satisfied, so neither an address nor another server takes the place of signing in.
#[test]
fn no_other_restriction_takes_the_place_of_signing_in() {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let server = Endpoint::start(|_, stream| {
        respond(stream, "");
        Then::Keep
    });
    let auth = name("auth", UpstreamProtocol::Http1);
    let policy = RoutePolicy {
        allowed_sources: vec!["127.0.0.0/8".parse().unwrap()],
        external_auth: Some(ask(&auth)),
        ..sign_in_policy("default")
    };
    let mut config = sign_in_config(&provider, &endpoint);
    add_host(&mut config, HOST, &name("web", UpstreamProtocol::Http1), policy);
    config.upstreams.insert(auth, upstream(&[server.address]));
    let world = behind_tls(config);
    let proxy = world.http();
    let mut browser = Browser::default();
    assert_eq!(browser.send(proxy, HOST, "/", "").status, 401);
    assert_eq!(browser.sign_in(proxy, &provider, "/").status, 302);
    assert_eq!((endpoint.count(), server.count()), (0, 0));
    assert_eq!(browser.send(proxy, HOST, "/", "X-Forwarded-For: 192.0.2.1\r\n").status, 403);
    assert_eq!(browser.send(proxy, HOST, "/", "X-User: admin\r\n").status, 200);
    // The server that is asked learns who has signed in.
    assert_eq!(server.requests()[0].header("x-user"), Some("ann"));
}

/// As with nginx and a server that is asked.
#[test]
fn an_allowed_address_or_a_session_is_enough_if_any_is() {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let mut config = sign_in_config(&provider, &endpoint);
    let policy = RoutePolicy {
        satisfy: Satisfy::Any,
        allowed_sources: vec!["192.0.2.0/24".parse().unwrap()],
        ..sign_in_policy("default")
    };
    add_host(&mut config, HOST, &name("web", UpstreamProtocol::Http1), policy);
    let world = behind_tls(config);
    let proxy = world.http();
    let mut browser = Browser::default();
    let inside = "X-Forwarded-For: 192.0.2.1\r\nX-User: admin\r\n";
    let users = || {
        let user = |request: &Request| request.header("x-user").map(str::to_owned);
        endpoint.requests().iter().map(user).collect::<Vec<_>>()
    };
    assert_eq!(browser.send(proxy, HOST, "/", inside).status, 200);
    assert_eq!(
        browser.send(proxy, HOST, "/", &format!("{inside}Accept: text/html\r\n")).status,
        200
    );
    assert_eq!(users(), [None, None]);
    assert_eq!(browser.cookie_header(), "");
    // The paths of logins are not the endpoint's, wherever the client is.
    assert_eq!(browser.send(proxy, HOST, "/oauth2/callback?code=a&state=b", inside).status, 400);
    assert_eq!(browser.send(proxy, HOST, "/oauth2/logout", inside).status, 403);
    assert_eq!(browser.send(proxy, HOST, "/", "X-User: admin\r\n").status, 401);
    assert_eq!(endpoint.count(), 2);
    assert_eq!(browser.sign_in(proxy, &provider, "/").status, 302);
    assert_eq!(browser.send(proxy, HOST, "/", "X-User: admin\r\n").status, 200);
    assert_eq!(browser.send(proxy, HOST, "/", inside).status, 200);
    let ann = Some("ann".to_owned());
    assert_eq!(users(), [None, None, ann.clone(), ann]);
}

fn ask(auth: &UpstreamName) -> ExternalAuth {
    ExternalAuth {
        upstream: auth.clone(),
        url: "http://auth.test/check".parse().unwrap(),
        method: Method::GET,
        signin: None,
        response_headers: Vec::new(),
    }
}
