//! Routes, certificates and changes of Ingresses, with real requests through `millrace ingress`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use tests::manifests::{Ingress, ingress_class, manifests, tls_secret};
use tests::worlds::edge::{Edge, HTTPS, Kept, WebSocket, edge_service};
use tests::worlds::topology::{Host, SOON, wait_until};

/// The servers of the conformance tests, and their Services of the same names.
const SERVERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn services() -> String {
    let all = SERVERS.iter().enumerate().map(|(number, name)| edge_service(name, &[number]));
    manifests(&all.collect::<Vec<_>>())
}

/// Rules, and what requests reach: host, path, server, or the status of the proxy's own response.
type Case = (&'static str, Vec<Ingress>, &'static [(&'static str, &'static str, &'static str)]);

const EXACT: &str = "Exact";
const PREFIX: &str = "Prefix";
const OTHER: &str = "ImplementationSpecific";

/// What the conformance tests of Ingress controllers check, in one table: each case has hosts of its own.
fn cases() -> Vec<Case> {
    let rule = |name: &str, host: &str, paths: &[(&str, &str, &str)]| {
        vec![Ingress::new(name).host(Some(host), paths)]
    };
    vec![
        (
            "an exact path matches only itself",
            rule("exact", "exact.test", &[(EXACT, "/foo", "a")]),
            &[
                ("exact.test", "/foo", "a"),
                ("exact.test", "/foo?x=/bar", "a"),
                ("exact.test", "/foo/", "404"),
                ("exact.test", "/FOO", "404"),
                ("exact.test", "/foo/bar", "404"),
                ("exact.test", "/", "404"),
            ],
        ),
        (
            "a trailing slash matters in exact paths",
            rule("exact-slash", "exact-slash.test", &[(EXACT, "/foo/", "a")]),
            &[("exact-slash.test", "/foo/", "a"), ("exact-slash.test", "/foo", "404")],
        ),
        (
            "a prefix matches by path element",
            rule("prefix", "prefix.test", &[(PREFIX, "/foo", "a")]),
            &[
                ("prefix.test", "/foo", "a"),
                ("prefix.test", "/foo/", "a"),
                ("prefix.test", "/foo/bar/baz", "a"),
                ("prefix.test", "/foobar", "404"),
                ("prefix.test", "/fo", "404"),
                ("prefix.test", "/Foo", "404"),
                ("prefix.test", "/", "404"),
            ],
        ),
        (
            "a trailing slash does not matter in prefixes",
            rule("prefix-slash", "prefix-slash.test", &[(PREFIX, "/foo/", "a")]),
            &[
                ("prefix-slash.test", "/foo", "a"),
                ("prefix-slash.test", "/foo/", "a"),
                ("prefix-slash.test", "/foo/bar", "a"),
                ("prefix-slash.test", "/foobar", "404"),
            ],
        ),
        (
            "the root is a prefix of all paths",
            rule("root", "root.test", &[(PREFIX, "/", "a")]),
            &[("root.test", "/", "a"), ("root.test", "/any/thing", "a"), ("root.test", "//", "a")],
        ),
        (
            "the longest prefix wins, in whatever order",
            rule(
                "longest",
                "longest.test",
                &[(PREFIX, "/", "a"), (PREFIX, "/aaa/bbb", "c"), (PREFIX, "/aaa", "b")],
            ),
            &[
                ("longest.test", "/aaa/bbb/ccc", "c"),
                ("longest.test", "/aaa/bbb", "c"),
                ("longest.test", "/aaa/bbbb", "b"),
                ("longest.test", "/aaa/ccc", "b"),
                ("longest.test", "/aaaa", "a"),
            ],
        ),
        (
            "an exact path wins over an equal prefix",
            rule("equal", "equal.test", &[(PREFIX, "/foo", "a"), (EXACT, "/foo", "b")]),
            &[
                ("equal.test", "/foo", "b"),
                ("equal.test", "/foo/", "a"),
                ("equal.test", "/foo/bar", "a"),
            ],
        ),
        (
            "paths of the implementation's own type are prefixes",
            rule("own", "own.test", &[(OTHER, "/foo", "a"), (EXACT, "/foo/exact", "b")]),
            &[
                ("own.test", "/foo/bar", "a"),
                ("own.test", "/foobar", "404"),
                ("own.test", "/foo/exact", "b"),
            ],
        ),
        (
            "a request belongs to its host, in any case and with any port",
            rule("host", "host.test", &[(PREFIX, "/", "a")]),
            &[
                ("host.test", "/", "a"),
                ("HOST.Test", "/", "a"),
                ("host.test:8080", "/", "a"),
                ("host.test.", "/", "a"),
                ("sub.host.test", "/", "404"),
                ("hosts.test", "/", "404"),
            ],
        ),
        (
            "a wildcard stands for one label",
            rule("wildcard", "*.wildcard.test", &[(PREFIX, "/", "a")]),
            &[
                ("one.wildcard.test", "/", "a"),
                ("wildcard.test", "/", "404"),
                ("two.one.wildcard.test", "/", "404"),
            ],
        ),
        (
            "an exact host owns its requests, although a wildcard has the path",
            vec![
                Ingress::new("special").host(Some("one.special.test"), &[(PREFIX, "/one", "b")]),
                Ingress::new("general").host(Some("*.special.test"), &[(PREFIX, "/", "a")]),
            ],
            &[
                ("two.special.test", "/one", "a"),
                ("one.special.test", "/one", "b"),
                ("one.special.test", "/", "404"),
            ],
        ),
        (
            "two Ingresses share a host",
            vec![
                Ingress::new("left").host(Some("shared.test"), &[(PREFIX, "/left", "a")]),
                Ingress::new("right").host(Some("shared.test"), &[(PREFIX, "/right", "b")]),
            ],
            &[
                ("shared.test", "/left", "a"),
                ("shared.test", "/right", "b"),
                ("shared.test", "/", "404"),
            ],
        ),
        (
            "the default backend of an Ingress gets what its rules do not match",
            vec![
                Ingress::new("default")
                    .host(Some("default.test"), &[(PREFIX, "/app", "a")])
                    .default_backend("b"),
            ],
            &[("default.test", "/app", "a"), ("default.test", "/other", "b")],
        ),
        (
            "a Service without endpoints is unavailable, and the other rules work",
            rule("empty", "empty.test", &[(PREFIX, "/none", "none"), (PREFIX, "/", "a")]),
            &[("empty.test", "/none", "503"), ("empty.test", "/", "a")],
        ),
        (
            "an Ingress of another class is not served",
            vec![
                Ingress::new("class")
                    .with("ingressClassName", "other".into())
                    .host(Some("class.test"), &[(PREFIX, "/", "a")]),
            ],
            &[("class.test", "/", "404")],
        ),
        (
            "dot segments are resolved before rules are matched",
            rule("dots", "dots.test", &[(PREFIX, "/public", "a"), (PREFIX, "/private", "b")]),
            &[
                ("dots.test", "/public/../private/x", "b"),
                ("dots.test", "/public/%2e%2e/private/x", "b"),
                ("dots.test", "/public/..%2Fprivate", "400"),
                ("dots.test", "/../private", "400"),
            ],
        ),
    ]
}

#[test]
fn requests_take_the_routes_of_the_api() -> Result<()> {
    let cases = cases();
    let ingresses: String = cases.iter().flat_map(|case| &case.1).map(Ingress::manifest).collect();
    let none = manifests(&[edge_service("none", &[])]);
    let all = format!("{}{}{none}{ingresses}", ingress_class(), services());
    let edge = Edge::start("ingress", &SERVERS, &all)?;
    let mut wrong = Vec::new();
    for (name, _, requests) in &cases {
        for (host, path, expected) in *requests {
            let response = edge.get(host, path)?;
            let status = response.status.to_string();
            let actual = if response.status == 200 { response.server() } else { &status };
            if actual != *expected {
                wrong.push(format!("{name}: {host}{path} reaches {actual} instead of {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), edge.log());

    // An Ingress without rules gets all requests that no other one matches.
    let rest = Ingress::new("rest").default_backend("h");
    edge.apply(&format!("{all}{}", rest.manifest()))?;
    edge.wait_for("unknown.test", "/anything", "h")?;
    assert_eq!(edge.get("exact.test", "/foo")?.server(), "a");
    let forwarded = edge.get("dots.test", "/public/./x//y?q=../z")?;
    assert_eq!((forwarded.path(), forwarded.host()), ("/public/x//y?q=../z", "dots.test"));
    check_metrics(&edge.host.run(["curl", "--silent", "http://127.0.0.1:10253/metrics"])?);
    Ok(())
}

/// The document lists the metrics of the proxy, and no others.
fn check_metrics(text: &str) {
    let document = include_str!("../../../docs/metrics.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `millrace_ingress_"));
    let documented: BTreeSet<&str> = rows
        .filter_map(|row| row.split('`').next())
        .map(|name| name.trim_end_matches("_total"))
        .collect();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE millrace_ingress_"));
    let served: BTreeSet<&str> = types.filter_map(|family| family.split(' ').next()).collect();
    assert_eq!(served, documented);
}

#[test]
fn endpoints_share_the_requests() -> Result<()> {
    let all = manifests(&[edge_service("web", &[0, 1, 2])]);
    let rule = Ingress::new("web").host(Some("web.test"), &[(PREFIX, "/", "web")]);
    let edge =
        Edge::start("ingress", &["x", "y", "z"], &(ingress_class() + &all + &rule.manifest()))?;
    let mut counts = BTreeMap::new();
    for _ in 0..60 {
        *counts.entry(edge.get("web.test", "/")?.server().to_owned()).or_insert(0) += 1;
    }
    // By chance alone, one of them gets none in one run of 10^10.
    assert_eq!(counts.len(), 3, "{counts:?}");
    Ok(())
}

/// A certificate and its key, in PEM.
struct PemPair {
    certificate: String,
    key: String,
}

fn pair(edge: &Edge, subject: &str, names: &[&str]) -> Result<PemPair> {
    let files = edge.host.certificate(edge.topology.directory(), subject, names)?;
    let certificate = fs::read_to_string(files.certificate)?;
    Ok(PemPair { certificate, key: fs::read_to_string(files.key)? })
}

/// The name in the certificate that a client of this server name gets; `None` if it is refused.
fn served_certificate(host: &Host, name: &str) -> Option<String> {
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{HTTPS} -servername {name} </dev/null 2>/dev/null | \
         openssl x509 -noout -subject 2>/dev/null"
    );
    let subject = host.run(["sh", "-c", &script]).ok()?;
    subject.trim().rsplit("CN = ").next().map(str::to_owned)
}

#[test]
fn hosts_have_certificates_that_can_be_replaced() -> Result<()> {
    let edge = Edge::start("ingress", &["a"], &ingress_class())?;
    let first = pair(&edge, "first", &["tls.test", "*.wild.test"])?;
    let second = pair(&edge, "second", &["tls.test"])?;
    let rule = Ingress::new("tls")
        .host(Some("tls.test"), &[(PREFIX, "/", "a")])
        .host(Some("*.wild.test"), &[(PREFIX, "/", "a")])
        .tls("pair", &["tls.test", "*.wild.test"]);
    let with = |pair: &PemPair| {
        let secret = tls_secret("pair", &pair.certificate, &pair.key);
        ingress_class() + &manifests(&[edge_service("a", &[0])]) + &secret + &rule.manifest()
    };
    edge.apply(&with(&first))?;
    let serves = |name: &str, certificate: &str| {
        served_certificate(&edge.host, name).is_some_and(|served| served == certificate)
    };
    wait_until("the certificate is served", SOON, || serves("tls.test", "first"))?;
    assert!(serves("x.wild.test", "first"));
    assert_eq!(served_certificate(&edge.host, "other.test"), None);

    let redirect = edge.get("tls.test", "/a?b")?;
    assert_eq!((redirect.status, redirect.header("location")), (308, Some("https://tls.test/a?b")));
    for version in ["--http1.1", "--http2"] {
        let resolve = format!("tls.test:{HTTPS}:127.0.0.1");
        let words = ["curl", "--silent", "--insecure", version, "--resolve", &resolve];
        let body = edge.host.run(words.into_iter().chain(["https://tls.test/x"]))?;
        assert_eq!(body, "a /x tls.test\n", "{version}");
    }

    edge.apply(&with(&second))?;
    wait_until("the new certificate is served", SOON, || serves("tls.test", "second"))?;
    // A pair that does not belong together leaves the last good one in use.
    let broken = PemPair { certificate: first.certificate, key: second.key.clone() };
    edge.apply(&with(&broken))?;
    let is_reported = || edge.log().contains("pair");
    wait_until("the broken pair is reported", SOON, is_reported)?;
    assert!(serves("tls.test", "second"));
    Ok(())
}

/// How many changes are made while requests are sent, and how many WebSockets are open meanwhile.
struct Churn {
    changes: usize,
    websockets: usize,
}

#[test]
fn changes_and_an_upgrade_lose_no_request_and_no_websocket() -> Result<()> {
    churn(&Churn { changes: 40, websockets: 20 })
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_changes_lose_no_request_and_no_websocket() -> Result<()> {
    churn(&Churn { changes: 1_000, websockets: 500 })
}

fn churn(churn: &Churn) -> Result<()> {
    let mut edge = Edge::start("ingress", &["x", "y", "z"], &ingress_class())?;
    let pairs = [pair(&edge, "first", &["web.test"])?, pair(&edge, "second", &["web.test"])?];
    let state = |number: usize| {
        // One endpoint leaves and another one joins; the server of the WebSockets stays.
        let web = [[0, 1], [1, 2], [2, 0]][number % 3];
        let services = manifests(&[edge_service("web", &web), edge_service("ws", &[2])]);
        let pair = &pairs[number / 7 % 2];
        let web = Ingress::new("web")
            .annotated("tls-redirect", "false")
            .host(Some("web.test"), &[(PREFIX, "/", "web"), (PREFIX, "/ws", "ws")])
            .tls("pair", &["web.test"]);
        let other = format!("h{number}.test");
        let other = Ingress::new("other").host(Some(&other), &[(PREFIX, "/", "web")]);
        let secret = tls_secret("pair", &pair.certificate, &pair.key);
        ingress_class() + &services + &secret + &web.manifest() + &other.manifest()
    };
    edge.apply(&state(0))?;
    wait_until("the first state is served", SOON, || {
        edge.get("h0.test", "/").is_ok_and(|response| response.status == 200)
    })?;

    let sockets: Vec<WebSocket> =
        (0..churn.websockets).map(|_| edge.websocket("web.test", "/ws")).collect::<Result<_>>()?;
    let clients = (0..4).map(|_| Kept::new(edge.host.clone(), "web.test")).collect::<Vec<_>>();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        let sockets = scope.spawn(move || keep_exchanging(sockets, is_over));
        let clients: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || keep_requesting(client, is_over)))
            .collect();
        let changed = change(&mut edge, churn.changes, state);
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let requests = client.join().expect("clients do not panic")?;
            assert!(requests > churn.changes as u64, "only {requests} requests");
        }
        sockets.join().expect("clients do not panic")?;
        changed
    })
}

/// Goes through the states, with a new proxy in the middle.
fn change(edge: &mut Edge, changes: usize, state: impl Fn(usize) -> String) -> Result<()> {
    for number in 1..=changes {
        edge.apply(&state(number))?;
        let host = format!("h{number}.test");
        wait_until(&format!("{host} is served"), SOON, || {
            edge.get(&host, "/").is_ok_and(|response| response.status == 200)
        })?;
        if number == changes / 2 {
            edge.upgrade()?;
        }
    }
    Ok(())
}

fn keep_exchanging(mut sockets: Vec<WebSocket>, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        sockets.iter_mut().try_for_each(WebSocket::exchange)?;
    }
    sockets.iter_mut().try_for_each(WebSocket::exchange)
}

fn keep_requesting(mut client: Kept, is_over: &AtomicBool) -> Result<u64> {
    let mut requests = 0;
    while !is_over.load(Ordering::Relaxed) {
        client.get("/")?;
        requests += 1;
    }
    Ok(requests)
}
