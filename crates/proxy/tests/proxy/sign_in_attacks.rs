//! What attackers try with logins and sessions of others, beside what [`sign_in`](crate::sign_in) has.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Barrier};
use std::thread;

use http::HeaderValue;
use lb_http::RoutePolicy;
use lb_http::mirror::Mirror;
use lb_http::policy::{ExternalAuth, TlsRedirect};
use lb_http::upstream::UpstreamProtocol;

use crate::client::{Client, Response};
use crate::endpoint::{Endpoint, Request, Then, respond, respond_with};
use crate::provider::{Browser, Forgery, Provider, behind_tls, sign_in_config, sign_in_policy};
use crate::world::{HOST, World, add_host, add_rules, name, policy_config, upstream, wait_until};

fn start() -> (Provider, Endpoint, World) {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let world = behind_tls(sign_in_config(&provider, &endpoint));
    (provider, endpoint, world)
}

#[test]
fn an_id_token_without_the_providers_signature_signs_nobody_in() {
    for forgery in [Forgery::Unsigned, Forgery::PublicKeyAsSecret, Forgery::OwnKey] {
        let (provider, endpoint, world) = start();
        provider.forge(forgery);
        let mut browser = Browser::default();
        let response = browser.sign_in(world.http(), &provider, "/");
        assert_eq!(response.status, 400, "{forgery:?}");
        assert_eq!((browser.cookie_header(), endpoint.count()), (String::new(), 0), "{forgery:?}");
    }
}

/// A link to this host leads to the provider and back, and nowhere else.
#[test]
fn no_link_to_the_host_leads_to_another_one() {
    let (provider, _endpoint, world) = start();
    let proxy = world.http();
    for (target, path) in [
        ("//evil.test/a", "//evil.test/a"),
        ("/%2f/evil.test", "/%2F/evil.test"),
        ("/%5cevil.test", "/%5Cevil.test"),
        ("/a?b=%0d%0aSet-Cookie:%20a=b", "/a?b=%0d%0aSet-Cookie:%20a=b"),
        ("/a?b=https://evil.test", "/a?b=https://evil.test"),
        ("/.evil.test/@evil.test", "/.evil.test/@evil.test"),
        ("https://a.test//evil.test", "//evil.test"),
    ] {
        let response = Browser::default().sign_in(proxy, &provider, target);
        let expected = format!("https://{HOST}{path}");
        let location = response.header("location");
        assert_eq!((response.status, location), (302, Some(&*expected)), "{target}");
        let cookies =
            response.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        assert!(cookies.map(|(_, value)| value).all(|value| value.starts_with("__Host-millrace-")));
    }
    // What is no path, and what is for another host.
    let targets =
        ["/%0d%0aSet-Cookie:%20a=b", "/\t/evil.test", "/../evil.test", "https://evil.test/"];
    let refused = targets.map(|target| {
        let response = Browser::default().visit(proxy, target);
        (response.status, response.header("location").is_some())
    });
    assert_eq!(refused, [(400, false); 4]);
    // A backslash, which browsers take for a slash.
    let response = Browser::default().sign_in(proxy, &provider, "/\\evil.test");
    assert_eq!(response.header("location"), Some("https://a.test/%5Cevil.test"));
    // A state is not where the browser goes.
    for made_up in ["https://evil.test", "/a", "%2F%2Fevil.test"] {
        let response = Browser::default().callback(proxy, "c", made_up);
        assert_eq!((response.status, response.header("location")), (400, None), "{made_up}");
    }
}

#[test]
fn cookies_that_the_proxy_has_not_made_open_nothing() {
    let (provider, endpoint, world) = start();
    let proxy = world.http();
    let mut browser = Browser::default();
    assert_eq!(browser.sign_in(proxy, &provider, "/").status, 302);
    let own = browser.cookie_header();
    let (own_name, value) = own.split_once('=').unwrap();
    let mut other = Browser::default();
    assert_eq!(other.sign_in(proxy, &provider, "/").status, 302);
    let changed = format!("{}A{}", &value[..40], &value[41..]);
    let changed = if changed == value { value.replacen('A', "B", 1) } else { changed };
    let status = |cookies: &str| send_with_cookies(proxy, HOST, "/", cookies).status;
    assert_eq!(status(&own), 200);
    for cookies in [
        format!("{own_name}={changed}"),
        format!("{own_name}={}", &value[1..]),
        format!("{own_name}={value}{value}"),
        format!("{own_name}={}", "A".repeat(20_000)),
        format!("{own_name}="),
        own.to_lowercase(),
        own.replacen("__Host-", "__HOST-", 1),
        own.replacen("__Host-", "", 1),
        // One that an attacker, who has an account, has put beside that of the user.
        format!("{}; {own}", other.cookie_header()),
        format!("{own}; {}", other.cookie_header()),
        format!("{own_name}=; {own}"),
    ] {
        assert_eq!(status(&cookies), 401, "{cookies:.100}");
    }
    assert_eq!(endpoint.count(), 1);
}

/// An endpoint of another route of the host could use them, so those of all routes are without them.
#[test]
fn no_server_gets_the_cookies_of_sessions_and_logins() {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let silent = || {
        Endpoint::start(|_, stream| {
            respond(stream, "");
            Then::Keep
        })
    };
    let (server, mirror) = (silent(), silent());
    let of = |service| name(service, UpstreamProtocol::Http1);
    let policy = RoutePolicy {
        external_auth: Some(ExternalAuth {
            upstream: of("auth"),
            url: "http://auth.test/check".parse().unwrap(),
            method: http::Method::GET,
            signin: None,
            response_headers: Vec::new(),
        }),
        mirror: Some(Mirror {
            upstream: of("mirror"),
            host: HeaderValue::from_static("mirror.test"),
            uri: "$request_uri".into(),
            with_body: false,
        }),
        ..sign_in_policy("default")
    };
    let open = RoutePolicy { oidc: None, ..policy.clone() };
    let mut config = sign_in_config(&provider, &endpoint);
    add_rules(&mut config, HOST, &of("web"), vec![("/", policy), ("/open", open)]);
    config.upstreams.insert(of("auth"), upstream(&[server.address]));
    config.upstreams.insert(of("mirror"), upstream(&[mirror.address]));
    let world = behind_tls(config);
    let proxy = world.http();
    let mut browser = Browser::default();
    assert_eq!(browser.sign_in(proxy, &provider, "/").status, 302);
    let session = browser.cookie_header();
    for path in ["/", "/open"] {
        let cookies = format!("own=1; {session}; __Host-millrace-login-00000000-0=a; other=2");
        assert_eq!(send_with_cookies(proxy, HOST, path, &cookies).status, 200);
    }
    wait_until("both copies", || mirror.count() == 2);
    for requests in [endpoint.requests(), server.requests(), mirror.requests()] {
        assert_eq!(requests.len(), 2);
        let cookies = requests.iter().map(|request: &Request| request.header("cookie").unwrap());
        assert!(cookies.clone().all(|cookies| cookies == "own=1; other=2"), "{requests:?}");
    }
}

/// They could sign users in as somebody else, or out.
#[test]
fn no_server_sets_the_cookies_of_sessions_and_logins() {
    const SET: &str = "Set-Cookie: own=1\r\nSet-Cookie: __Host-millrace-session-00000000=a; Secure; Path=/\r\n\
                       Set-Cookie:  =__HOST-Millrace-login-00000000-0=a\r\nSet-Cookie: __Host-other=2\r\n";
    let set_cookies = |request: &Request, stream: &mut TcpStream| {
        let status = if request.line.contains("/refuse") { "403 Forbidden" } else { "200 OK" };
        let response = format!("HTTP/1.1 {status}\r\n{SET}Content-Length: 0\r\n\r\n");
        let _ = stream.write_all(response.as_bytes());
        Then::Keep
    };
    let (endpoint, server) = (Endpoint::start(set_cookies), Endpoint::start(set_cookies));
    let of = |service| name(service, UpstreamProtocol::Http1);
    let asks = |url: &str| RoutePolicy {
        external_auth: Some(ExternalAuth {
            upstream: of("auth"),
            url: url.parse().unwrap(),
            method: http::Method::GET,
            signin: None,
            response_headers: Vec::new(),
        }),
        ..RoutePolicy::default()
    };
    let mut config = policy_config(&[endpoint.address], RoutePolicy::default());
    let rules = vec![
        ("/", RoutePolicy::default()),
        ("/asks", asks("http://auth.test/")),
        ("/refused", asks("http://auth.test/refuse")),
    ];
    add_rules(&mut config, HOST, &of("web"), rules);
    config.upstreams.insert(of("auth"), upstream(&[server.address]));
    let world = World::start(config);
    for (path, status, servers) in [("/", 200, 1), ("/asks", 200, 2), ("/refused", 403, 1)] {
        let response = Browser::default().send(world.http(), HOST, path, "");
        let cookies =
            response.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        let cookies: Vec<_> = cookies.map(|(_, value)| &**value).collect();
        let expected = ["own=1", "__Host-other=2"].repeat(servers);
        assert_eq!((response.status, cookies), (status, expected), "{path}");
    }
}

/// Anyone can begin logins, and come back from them with codes that nobody has issued.
#[test]
fn a_client_that_makes_codes_up_keeps_nobody_else_from_signing_in() {
    let (provider, _endpoint, world) = start();
    let proxy = world.http();
    let gate = Arc::new(Barrier::new(6));
    let hanging = gate.clone();
    provider.fail("/token", move |_, stream| {
        hanging.wait();
        respond_with(stream, "400 Bad Request", r#"{"error": "invalid_grant"}"#);
        Then::Close
    });
    let mut attacker = Browser::default();
    let (_, state) = provider.sign_in(&attacker.begin(proxy, "/"));
    let callback = format!("/oauth2/callback?code=made-up&state={state}");
    let replay = |browser: &mut Browser, client: &str| {
        let headers = format!("X-Forwarded-For: {client}\r\n");
        browser.send(proxy, HOST, &callback, &headers).status
    };
    let (attacks, other) = ("198.51.100.1", "198.51.100.2");
    thread::scope(|scope| {
        let mut running = Vec::new();
        for client in [attacks, attacks, attacks, attacks, other] {
            let mut browser = attacker.clone();
            running.push(scope.spawn(move || replay(&mut browser, client)));
            wait_until("an exchange", || provider.asked("/token") == running.len());
        }
        let login = attacker.cookie_header();
        assert_eq!(replay(&mut attacker, attacks), 503);
        assert_eq!(attacker.cookie_header(), login, "it can be tried again");
        assert_eq!(provider.asked("/token"), 5);
        gate.wait();
        assert!(running.into_iter().all(|callback| callback.join().unwrap() == 400));
    });
}

/// Cookies are `Secure`, so that a login could not end.
#[test]
fn requests_without_tls_are_redirected_or_refused() {
    let (provider, endpoint) = (Provider::start(), Endpoint::named("web"));
    let mut config = sign_in_config(&provider, &endpoint);
    let web = name("web", UpstreamProtocol::Http1);
    // What rules of Ingresses say.
    let policy = RoutePolicy { tls_redirect: TlsRedirect::Always, ..sign_in_policy("default") };
    add_host(&mut config, "redirects.test", &web, policy);
    let world = behind_tls(config);
    let mut browser = Browser::default();
    assert_eq!(browser.sign_in(world.http(), &provider, "/").status, 302);
    let session = browser.cookie_header();
    let request = |host: &str, path: &str, cookies: &str| {
        let mut client = Client::connect(world.http());
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nCookie: {cookies}\r\n\r\n"
        ));
        client.response()
    };
    let is_bare = |response: &Response| response.header("set-cookie").is_none();
    for cookies in ["a=b", &session] {
        for path in ["/a?b", "/oauth2/callback?code=a&state=b", "/oauth2/logout"] {
            let response = request("redirects.test", path, cookies);
            let location = format!("https://redirects.test{path}");
            assert_eq!((response.status, response.header("location")), (308, Some(&*location)));
            assert!(is_bare(&response));
        }
        for (path, status) in
            [("/", 401), ("/oauth2/callback?code=a&state=b", 400), ("/oauth2/logout", 400)]
        {
            let response = request(HOST, path, cookies);
            assert_eq!((response.status, response.header("location")), (status, None), "{path}");
            assert!(is_bare(&response));
        }
    }
    // Whoever is not trusted cannot claim to have come by TLS.
    let untrusting = World::start(sign_in_config(&provider, &endpoint));
    assert_eq!(Browser::default().visit(untrusting.http(), "/").status, 401);
    assert_eq!(endpoint.count(), 0);
}

fn send_with_cookies(
    proxy: std::net::SocketAddr,
    host: &str,
    path: &str,
    cookies: &str,
) -> Response {
    let headers = format!("Cookie: {cookies}\r\n");
    Browser::default().send(proxy, host, path, &headers)
}
