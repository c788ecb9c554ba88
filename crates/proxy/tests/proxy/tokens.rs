//! Routes that demand a token, and the keys that verify it.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderName, Method};
use lb_http::RoutePolicy;
use lb_http::jwt::{JwtAuth, KeySet, KeySource};
use lb_http::policy::ExternalAuth;
use lb_http::published::DocumentAddress;
use lb_http::upstream::UpstreamProtocol;
use lb_proxy::Config;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::endpoint::{Endpoint, Then, respond};
use crate::world::{HOST, World, add_host, name, policy_config, upstream, wait_until};

struct Issuer(Ed25519KeyPair);

impl Issuer {
    fn new() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    /// The document that it publishes.
    fn document(&self, id: &str) -> String {
        let point = URL_SAFE_NO_PAD.encode(self.0.public_key());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": id, "x": point}]}).to_string()
    }

    fn token(&self, id: &str, audience: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = json!({
            "iss": "https://id.test", "aud": audience, "sub": "ann", "exp": now + 86_400,
        });
        let encode = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let message = format!("{}.{}", encode(json!({"alg": "EdDSA", "kid": id})), encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn demanding(keys: KeySource, audience: &str) -> RoutePolicy {
    let jwt = JwtAuth {
        issuer: "https://id.test".into(),
        audiences: vec![audience.into()],
        keys,
        cookie: Some("token".into()),
        claim_headers: vec![
            ("sub".into(), HeaderName::from_static("x-user")),
            ("role".into(), HeaderName::from_static("x-role")),
        ],
        forwards_token: false,
        realm: "shop".into(),
    };
    RoutePolicy { jwt: Some(jwt), ..RoutePolicy::default() }
}

fn fixed(issuer: &Issuer) -> KeySource {
    KeySource::Fixed(Arc::new(KeySet::parse(issuer.document("a").as_bytes()).unwrap().0))
}

/// A route with the keys that `keys` publishes, and another one without any check.
fn publishing(keys: &Endpoint, endpoint: &Endpoint) -> Config {
    let upstream_name = name("id", UpstreamProtocol::Http1);
    let url = "http://id.test/keys".parse().unwrap();
    let source = KeySource::Published(Box::new(DocumentAddress {
        namespace: "default".into(),
        upstream: upstream_name.clone(),
        url,
    }));
    let mut config = policy_config(&[endpoint.address], demanding(source, "shop"));
    config.upstreams.insert(upstream_name, upstream(&[keys.address]));
    let web = name("web", UpstreamProtocol::Http1);
    add_host(&mut config, "open.test", &web, RoutePolicy::default());
    config
}

fn get(world: &World, headers: &str) -> Response {
    let mut client = Client::connect(world.http());
    client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{headers}\r\n"));
    client.response()
}

fn get_with(world: &World, token: &str) -> u16 {
    get(world, &format!("Authorization: Bearer {token}\r\n")).status
}

#[test]
fn a_token_opens_a_route_and_endpoints_get_its_claims() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let endpoint = Endpoint::named("web");
    let policy = demanding(fixed(&issuer), "shop");
    let mut world = World::start(policy_config(&[endpoint.address], policy));
    let challenge = |response: &Response| response.header("www-authenticate").map(str::to_owned);

    let response = get(&world, "");
    assert_eq!(response.status, 401);
    assert_eq!(challenge(&response).as_deref(), Some("Bearer realm=\"shop\""));
    assert_eq!(world.logged(|entry| entry.status == 401).reason, Some("jwt"));
    let forged = other.token("a", "shop");
    let response = get(&world, &format!("Authorization: Bearer {forged}\r\n"));
    assert_eq!(response.status, 401);
    assert!(challenge(&response).unwrap().contains("error=\"invalid_token\""));
    assert_eq!(endpoint.count(), 0);

    let token = issuer.token("a", "shop");
    // The client's own headers, also where endpoints or `Connection` confuse them with others.
    let smuggled = "X-User: admin\r\nX_User: admin\r\nx-USER: root\r\nX-Role: admin\r\nX_role: admin\r\n\
                    Connection: x-user, x-role\r\n";
    let response = get(&world, &format!("Authorization: Bearer {token}\r\n{smuggled}"));
    assert_eq!(response.status, 200);
    let request = &endpoint.requests()[0];
    assert_eq!(request.header("x-user"), Some("ann"));
    assert_eq!(request.header("authorization"), None);
    let names: Vec<_> = request.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
    assert!(!names.iter().any(|name| name.contains("role") || name.contains('_')), "{names:?}");

    let twice = format!("Cookie: token={token}; token={token}\r\n");
    let response = get(&world, &twice);
    assert_eq!(response.status, 400);
    assert!(challenge(&response).unwrap().contains("error=\"invalid_request\""));

    assert_eq!(get(&world, &format!("Cookie: a=1; token={token}\r\n")).status, 200);
    assert_eq!(endpoint.requests()[1].header("cookie"), Some("a=1"));
}

#[test]
fn a_token_for_one_host_opens_no_other() {
    let issuer = Issuer::new();
    let endpoint = Endpoint::named("web");
    let mut config = policy_config(&[endpoint.address], demanding(fixed(&issuer), "shop"));
    let web = name("web", UpstreamProtocol::Http1);
    add_host(&mut config, "b.test", &web, demanding(fixed(&issuer), "bank"));
    let world = World::start(config);
    let mut client = Client::connect(world.http());
    let mut get = |host: &str, audience: &str| {
        let token = issuer.token("a", audience);
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        ));
        client.response().status
    };
    assert_eq!(get(HOST, "shop"), 200);
    assert_eq!(get("b.test", "bank"), 200);
    assert_eq!(get("b.test", "shop"), 401);
    assert_eq!(get(HOST, "bank"), 401);
}

/// What asks another server comes later, and gets what the endpoint would get.
#[test]
fn the_authentication_server_gets_claims_and_no_token() {
    let issuer = Issuer::new();
    let (server, endpoint) = (Endpoint::named("auth"), Endpoint::named("web"));
    let auth = name("auth", UpstreamProtocol::Http1);
    let external_auth = ExternalAuth {
        upstream: auth.clone(),
        url: "http://auth.test/check".parse().unwrap(),
        method: Method::GET,
        signin: None,
        response_headers: Vec::new(),
    };
    let policy =
        RoutePolicy { external_auth: Some(external_auth), ..demanding(fixed(&issuer), "shop") };
    let mut config = policy_config(&[endpoint.address], policy);
    config.upstreams.insert(auth, upstream(&[server.address]));
    let world = World::start(config);
    assert_eq!(get(&world, "X-User: admin\r\n").status, 401);
    assert_eq!(server.count(), 0);
    let token = issuer.token("a", "shop");
    let headers = format!("X-User: admin\r\nAuthorization: Bearer {token}\r\n");
    assert_eq!(get(&world, &headers).status, 200);
    let request = &server.requests()[0];
    assert_eq!(request.header("x-user"), Some("ann"));
    assert_eq!(request.header("authorization"), None);
}

#[test]
fn keys_are_fetched_once_for_all_who_wait() {
    let issuer = Issuer::new();
    let (document, may_answer) = (issuer.document("a"), Arc::new(AtomicBool::new(false)));
    let gate = may_answer.clone();
    let keys = Endpoint::start(move |request, stream| {
        assert_eq!(request.line, "GET /keys HTTP/1.1");
        assert_eq!(request.header("host"), Some("id.test"));
        assert_eq!(request.header("authorization"), None);
        wait_until("permission to answer", || gate.load(Ordering::SeqCst));
        respond(stream, &document);
        Then::Keep
    });
    let endpoint = Endpoint::named("web");
    let world = World::with(publishing(&keys, &endpoint), |settings| settings.workers = 2);
    let token = issuer.token("a", "shop");
    // Its client does not wait for it.
    let mut gone = Client::connect(world.http());
    gone.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {token}\r\n\r\n"));
    keys.wait_for(1);
    drop(gone);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| get_with(&world, &token))).collect();
        may_answer.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200; 8]);
    assert_eq!(get_with(&world, "e30.e30."), 401);
    assert_eq!(keys.count(), 1);
}

/// The document is `None` while the issuer has a fault.
fn issuer_of(document: &Arc<Mutex<Option<String>>>) -> Endpoint {
    let document = document.clone();
    Endpoint::start(move |_, stream| {
        match &*document.lock().unwrap() {
            Some(document) => respond(stream, document),
            None => {
                write(stream, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
            }
        }
        Then::Keep
    })
}

fn write(stream: &mut TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
}

/// Each unknown key causes a fetch.
fn fetching_always(config: Config) -> World {
    World::with(config, |settings| settings.limits.key_fetch_interval = Duration::ZERO)
}

#[test]
fn a_new_key_is_found_and_a_fault_of_the_issuer_changes_nothing() {
    let (old, new) = (Issuer::new(), Issuer::new());
    let document = Arc::new(Mutex::new(Some(old.document("old"))));
    let keys = issuer_of(&document);
    let endpoint = Endpoint::named("web");
    let world = fetching_always(publishing(&keys, &endpoint));
    let (with_old, with_new) = (old.token("old", "shop"), new.token("new", "shop"));
    assert_eq!(get_with(&world, &with_old), 200);
    assert_eq!(keys.count(), 1);

    *document.lock().unwrap() = None;
    assert_eq!(get_with(&world, &with_new), 401);
    assert_eq!(keys.count(), 2);
    assert_eq!(get_with(&world, &with_old), 200);
    assert_eq!(keys.count(), 2);

    *document.lock().unwrap() = Some(new.document("new"));
    assert_eq!(get_with(&world, &with_new), 200);
    assert_eq!(keys.count(), 3);
    assert_eq!(get_with(&world, &with_old), 401);
}

/// As after the theft of its keys.
#[test]
fn an_issuer_can_withdraw_all_of_its_keys() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    for empty in [r#"{"keys": []}"#, r#"{"keys": [{"kty": "oct", "kid": "a", "k": "AAAA"}]}"#] {
        let document = Arc::new(Mutex::new(Some(issuer.document("a"))));
        let keys = issuer_of(&document);
        let endpoint = Endpoint::named("web");
        let world = fetching_always(publishing(&keys, &endpoint));
        let token = issuer.token("a", "shop");
        assert_eq!(get_with(&world, &token), 200);
        *document.lock().unwrap() = Some(empty.to_owned());
        assert_eq!(get_with(&world, &other.token("b", "shop")), 503);
        // Nor while it has a fault.
        *document.lock().unwrap() = None;
        assert_eq!(get_with(&world, &token), 503);
        *document.lock().unwrap() = Some(issuer.document("a"));
        assert_eq!(get_with(&world, &token), 200);
        assert_eq!(endpoint.count(), 2);
    }
}

#[test]
fn without_usable_keys_a_route_is_closed() {
    let issuer = Issuer::new();
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(300 << 10));
    let with_length = |status: &str, headers: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    let good = issuer.document("a");
    let responses = [
        with_length("500 Internal Server Error", "", &good),
        with_length("404 Not Found", "", &good),
        with_length("204 No Content", "", ""),
        // To what the proxy can reach, and its author cannot.
        with_length("302 Found", "Location: http://169.254.169.254/\r\n", &good),
        with_length("200 OK", "Content-Encoding: gzip\r\n", &good),
        with_length("200 OK", "", &huge),
        with_length("200 OK", "", "<html>"),
        with_length("200 OK", "", r#"{"keys": []}"#),
        with_length("200 OK", "", r#"{"keys": [{"kty": "oct", "kid": "a", "k": "AAAA"}]}"#),
        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{".to_owned(),
        "no HTTP\r\n\r\n".to_owned(),
        String::new(),
    ];
    for response in responses {
        let text = response.clone();
        let keys = Endpoint::start(move |_, stream| {
            write(stream, &text);
            Then::Close
        });
        let endpoint = Endpoint::named("web");
        let mut world = World::start(publishing(&keys, &endpoint));
        let token = issuer.token("a", "shop");
        assert_eq!(get_with(&world, &token), 503, "{response:.200}");
        assert_eq!(world.logged(|entry| entry.status == 503).reason, Some("jwt_keys"));
        // Not asked again for each request.
        assert_eq!(get_with(&world, &token), 503);
        assert_eq!((keys.count(), endpoint.count()), (1, 0));
    }
}

#[test]
fn an_issuer_that_hangs_delays_no_other_requests() {
    let issuer = Issuer::new();
    let keys = Endpoint::start(|_, stream| {
        write(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        // A little, and ever again, until the proxy closes the connection.
        while stream.write_all(b"1\r\n \r\n").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        Then::Close
    });
    let endpoint = Endpoint::named("web");
    let world = World::start(publishing(&keys, &endpoint));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| get_with(&world, &issuer.token("a", "shop")));
        keys.wait_for(1);
        assert_eq!(Client::connect(world.http()).get("open.test", "/").status, 200);
        // No one who sends no token has to wait.
        assert_eq!(get(&world, "").status, 401);
        assert_eq!(get_with(&world, "a.b.c"), 401);
        assert_eq!(waiting.join().unwrap(), 503);
    });
    assert_eq!(keys.count(), 1);
}
