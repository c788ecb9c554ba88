//! Two proxies that clients cannot tell apart: they share session keys.

use std::net::SocketAddr;
use std::sync::Arc;

use lb_http::RoutePolicy;
use lb_http::policy::AffinityCookie;
use lb_proxy::SessionKeys;
use lb_proxy::session_keys::Secrets;
use rustls::{ClientConfig, HandshakeKind};

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::tls::{connect, trusting_with};
use crate::world::{HOST, World, config, hosts, policy_config, self_signed, terminate};

/// The letters stand for secrets.
fn secrets(letters: &str) -> Secrets {
    let lines: Vec<String> = letters.chars().map(|letter| letter.to_string().repeat(44)).collect();
    Secrets::parse(&lines.join("\n")).unwrap()
}

fn keys(letters: &str) -> SessionKeys {
    let keys = SessionKeys::new();
    keys.set(secrets(letters));
    keys
}

fn handshake(to: SocketAddr, config: &Arc<ClientConfig>) -> HandshakeKind {
    let mut client = connect(to, config, "a.test").unwrap();
    assert_eq!(client.get(HOST, "/").status, 200);
    client.stream.conn.handshake_kind().unwrap()
}

#[test]
fn replicas_with_the_same_keys_resume_each_others_sessions() {
    let endpoint = Endpoint::named("ok");
    let pair = self_signed(&["a.test"]);
    let start = |keys: &SessionKeys| {
        let mut config = config(&[endpoint.address]);
        config.tls = hosts(&[("a.test", &terminate(&pair))]);
        World::with(config, |settings| settings.session_keys = keys.clone())
    };
    let (one, other) = (keys("a"), keys("a"));
    let (first, second) = (start(&one), start(&other));
    let alone = start(&SessionKeys::new());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = || trusting_with(&[&pair], None, &[version]);
        let known = client();
        assert_eq!(handshake(first.https(), &known), HandshakeKind::Full);
        assert_eq!(handshake(second.https(), &known), HandshakeKind::Resumed);
        // New keys in front of the old ones, in one proxy after the other.
        one.set(secrets("ba"));
        assert_eq!(handshake(first.https(), &known), HandshakeKind::Resumed);
        other.set(secrets("ba"));
        assert_eq!(handshake(second.https(), &known), HandshakeKind::Resumed);
        one.set(secrets("b"));
        assert_eq!(handshake(first.https(), &known), HandshakeKind::Resumed);
        // A session of the old keys alone.
        other.set(secrets("a"));
        let old = client();
        assert_eq!(handshake(second.https(), &old), HandshakeKind::Full);
        assert_eq!(handshake(first.https(), &old), HandshakeKind::Full);
        assert_eq!(handshake(alone.https(), &known), HandshakeKind::Full);
        one.set(secrets("a"));
    }
}

#[test]
fn replicas_with_the_same_keys_know_each_others_cookies() {
    let endpoints: Vec<_> = ["0", "1", "2", "3", "4", "5", "6", "7"].map(Endpoint::named).into();
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    let policy =
        RoutePolicy { affinity: Some(AffinityCookie::named("route")), ..RoutePolicy::default() };
    let start = |keys: &SessionKeys| {
        World::with(policy_config(&addresses, policy.clone()), |settings| {
            settings.session_keys = keys.clone();
        })
    };
    let (one, other) = (keys("a"), keys("a"));
    let (first, second) = (start(&one), start(&other));
    // The endpoint, and the cookie for the next request.
    let get = |world: &World, cookie: &str| {
        let mut client = Client::connect(world.http());
        client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\n\r\n"));
        let response = client.response();
        let set = response.header("set-cookie").and_then(|set| set.split(';').next());
        (response.text(), set.map(str::to_owned))
    };
    let (endpoint, set) = get(&first, "");
    let cookie = set.unwrap();
    for _ in 0..8 {
        assert_eq!(get(&second, &cookie), (endpoint.clone(), None));
    }
    // The client stays, and gets the cookie of the new key.
    other.set(secrets("ba"));
    let (same, set) = get(&second, &cookie);
    assert_eq!(same, endpoint);
    let renewed = set.unwrap();
    assert_ne!(renewed, cookie);
    one.set(secrets("b"));
    for _ in 0..8 {
        assert_eq!(get(&first, &renewed), (endpoint.clone(), None));
        assert!(get(&first, &cookie).1.is_some());
    }
}
