//! Heads of requests: what is accepted has one meaning, and nothing of the client's own word about itself is left.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use lb_http::headers::{ConnectionPeer, ForwardedSource, Forwarding, RequestClient, strip_request};
use lb_http::request::{RequestLimits, Target, check_request};

use super::{host, path, text};
use crate::Input;

const METHODS: [&str; 8] =
    ["GET", "POST", "OPTIONS", "CONNECT", "TRACE", "HEAD", "PROPFIND", "get"];
const NAMES: [&str; 30] = [
    "host",
    "host",
    "content-length",
    "content-length",
    "transfer-encoding",
    "connection",
    "connection",
    "upgrade",
    "te",
    "expect",
    "keep-alive",
    "proxy-connection",
    "proxy",
    "http2-settings",
    "x-forwarded-for",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-ssl",
    "forwarded",
    "x-real-ip",
    "x-request-id",
    "x-original-url",
    "x_forwarded_for",
    "content_length",
    "authorization",
    "cookie",
    "x-a",
];
const VALUES: [&str; 35] = [
    "chunked",
    "identity",
    "gzip",
    ", ",
    ",",
    "5",
    "0",
    "+5",
    " ",
    "close",
    "keep-alive",
    "upgrade",
    "websocket",
    "h2c",
    "trailers",
    "100-continue",
    "host",
    "content-length",
    "authorization",
    "x-forwarded-for",
    "x-a",
    "192.0.2.1",
    "10.0.0.1",
    "[::1]",
    "unknown",
    "for=",
    "proto=https",
    "host=",
    ";",
    "\"",
    "=",
    "https",
    "a.org",
    "8443",
    "\u{ff}",
];

pub fn fuzz_request(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let Some(parts) = head(&mut input) else { return "not parsed" };
    let target = match check_request(&parts, &RequestLimits { uri: 24 }) {
        Ok(target) => target,
        Err(refusal) => {
            assert!(refusal.status().is_client_error());
            return refusal.reason();
        }
    };
    has_one_meaning(&parts, &target);
    let mut headers = parts.headers.clone();
    strip_request(&mut headers);
    is_for_the_endpoint(&parts.headers, &headers);
    is_identified(&mut input, headers.clone());
    is_described(&mut input, &mut headers);
    "accepted"
}

fn head(input: &mut Input) -> Option<Parts> {
    let version =
        input.choose(&[Version::HTTP_11, Version::HTTP_11, Version::HTTP_10, Version::HTTP_2]);
    let method = input.choose(&METHODS);
    let origin = match input.chance(16) {
        true => "*".to_string(),
        false => format!("/{}", text(input, &path::PIECES, 12)),
    };
    let authority = any_host(input);
    let scheme = input.choose(&["http", "https", "ftp"]);
    let is_absolute = version == Version::HTTP_2 || input.chance(64);
    let uri = if is_absolute { format!("{scheme}://{authority}{origin}") } else { origin };
    let mut builder = Request::builder().version(version).method(method).uri(uri);
    if input.chance(192) {
        let named = if input.chance(128) { authority } else { any_host(input) };
        builder = builder.header("host", HeaderValue::from_bytes(named.as_bytes()).ok()?);
    }
    if input.chance(32) {
        builder = builder.header("connection", "upgrade").header("upgrade", "websocket");
        builder = builder.header("content-length", input.choose(&["0", "5"]));
    }
    for _ in 0..input.below(8) {
        let name = HeaderName::from_static(input.choose(&NAMES));
        let value = if input.chance(128) {
            input.choose(&VALUES).to_string()
        } else {
            text(input, &VALUES, 4)
        };
        builder = builder.header(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(builder.body(()).ok()?.into_parts().0)
}

fn any_host(input: &mut Input) -> String {
    match input.chance(64) {
        true => text(input, &host::PIECES, 3),
        false => {
            input.choose(&["a.org", "a.org", "A.org.", "a.org:80", "b.org", "[::1]"]).to_string()
        }
    }
}

/// What other implementations look at is there once, in its plainest form.
fn has_one_meaning(parts: &Parts, target: &Target) {
    let values = |name: &str| -> Vec<&[u8]> {
        parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    };
    let (hosts, lengths, codings) =
        (values("host"), values("content-length"), values("transfer-encoding"));
    assert!(hosts.len() <= 1 && lengths.len() + codings.len() <= 1);
    assert!(
        lengths.iter().all(|length| !length.is_empty() && length.iter().all(u8::is_ascii_digit))
    );
    assert!(codings.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")));
    assert!(codings.is_empty() || parts.version == Version::HTTP_11);
    assert!(parts.method != Method::CONNECT && parts.method != Method::TRACE);
    assert!(target.path.starts_with('/') && !target.path.contains("/../"));
    match parts.version {
        Version::HTTP_11 => assert_eq!(hosts.len(), 1),
        Version::HTTP_2 => {
            assert!(
                target.authority.is_some()
                    && values("connection").is_empty()
                    && values("upgrade").is_empty()
            );
        }
        _ => {}
    }
    if let (Some(named), Some(host)) = (parts.uri.host(), target.host()) {
        let named = named.to_ascii_lowercase();
        assert!(
            named.strip_suffix('.').unwrap_or(&named) == host || host.starts_with('['),
            "{named} {host}"
        );
    }
    if let Some(protocol) = target.upgrade {
        assert!(
            !protocol.as_bytes().contains(&b',')
                && !protocol.as_bytes().eq_ignore_ascii_case(b"h2c")
        );
        assert!(
            codings.is_empty()
                && lengths.iter().all(|length| length.iter().all(|&digit| digit == b'0'))
        );
    }
}

/// Nothing of the client's connection is left, and nothing is gone that the endpoint relies on.
fn is_for_the_endpoint(before: &HeaderMap, after: &HeaderMap) {
    for name in [
        "connection",
        "upgrade",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "proxy",
        "http2-settings",
    ] {
        assert!(!after.contains_key(name), "{name}");
    }
    assert!(after.keys().all(|name| !name.as_str().contains('_')));
    assert!(after.get_all("te").iter().all(|value| value == "trailers"));
    for name in [
        "host",
        "content-length",
        "authorization",
        "cookie",
        "forwarded",
        "x-forwarded-for",
        "x-real-ip",
    ] {
        assert!(before.get_all(name).iter().eq(after.get_all(name)), "{name}");
    }
}

/// Whatever a client writes, a trusted proxy that appends its address to it, or sends it in a line of its own, is read.
fn is_identified(input: &mut Input, mut headers: HeaderMap) {
    let (source, name, appended) = input.choose(&[
        (ForwardedSource::XForwarded, "x-forwarded-for", "192.0.2.77"),
        (ForwardedSource::Forwarded, "forwarded", "for=192.0.2.77"),
        (ForwardedSource::Forwarded, "forwarded", "proto=https;for=\"192.0.2.77:80\""),
    ]);
    match headers.get_all(name).iter().next_back() {
        Some(written) if input.chance(192) => {
            let line = [written.as_bytes(), b", ", appended.as_bytes()].concat();
            headers.insert(name, HeaderValue::from_bytes(&line).expect("a value"));
        }
        _ => drop(headers.append(name, HeaderValue::from_static(appended))),
    }
    let trusted = ["10.0.0.0/8".parse().expect("a network")];
    let forwarding = Forwarding { trusted: trusted.into(), source, send_forwarded: false };
    let peer = ConnectionPeer { address: ([10, 0, 0, 9], 1).into(), is_tls: false, port: 80 };
    let client = RequestClient::identify(&forwarding, &peer, &headers);
    assert_eq!(client.address, IpAddr::from([192, 0, 2, 77]));
}

/// An endpoint learns about the client only what this proxy, or one that it trusts, has seen.
fn is_described(input: &mut Input, headers: &mut HeaderMap) {
    let source = input.choose(&[ForwardedSource::XForwarded, ForwardedSource::Forwarded]);
    let trusted = ["10.0.0.0/8".parse().expect("a network")];
    let forwarding =
        Forwarding { trusted: trusted.into(), source, send_forwarded: input.chance(128) };
    let peer: IpAddr = input.choose(&[[192, 0, 2, 9], [10, 0, 0, 9]]).into();
    let is_trusted = trusted[0].contains(&peer);
    let peer = ConnectionPeer { address: SocketAddr::new(peer, 1), is_tls: false, port: 80 };
    let client = RequestClient::identify(&forwarding, &peer, headers);
    if !is_trusted {
        assert_eq!((client.address, client.is_tls, client.port), (peer.address.ip(), false, 80));
    }
    let host = http::HeaderValue::from_static("a.org");
    let report = client.strip_and_report(&forwarding, Some(&host), 1, headers);
    report.list_headers(|name, value| {
        assert!(!headers.contains_key(&name), "{name} twice");
        assert!(http::HeaderValue::from_bytes(value).is_ok(), "{name}: {value:?}");
    });
    report.insert_into(headers);
    let value =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let hops: Vec<IpAddr> =
        value("x-forwarded-for").split(", ").map(|hop| hop.parse().expect("an address")).collect();
    assert_eq!(hops[0], client.address);
    assert_eq!(hops.last(), Some(&peer.address.ip()));
    // Between client and peer are only trusted proxies.
    assert!(hops[1..].iter().all(|hop| trusted[0].contains(hop)), "{hops:?}");
    assert_eq!(value("x-real-ip"), client.address.to_string());
    assert_eq!(value("x-forwarded-proto"), client.scheme());
    assert_eq!(headers.contains_key("forwarded"), forwarding.send_forwarded);
    assert!(is_trusted || value("x-forwarded-host") == "a.org");
    for name in ["x-forwarded-prefix", "x-forwarded-ssl", "x-original-url"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    let id = value("x-request-id");
    assert!(
        !id.is_empty() && id.bytes().all(|octet| octet.is_ascii_graphic() && octet != b'"'),
        "{id:?}"
    );
}
