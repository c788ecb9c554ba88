//! Requests that are refused before they are routed, because proxy and endpoint could read them differently.
//!
//! Of HTTP/1, this sees what `lb-proxy` has parsed. That refuses line folding, white space before the colon, control
//! characters in values, lengths that are no plain numbers or contradict each other, and `Transfer-Encoding` in HTTP/1.0
//! or without `chunked` at the end. It accepts `Content-Length` beside `Transfer-Encoding`, as RFC 9112 (6.3) permits:
//! it removes the length, and closes the connection after the response. It also accepts lines of heads that end with LF
//! alone. Neither reaches the endpoint, since the proxy serializes requests itself.
//!
//! Of HTTP/2, the crate h2 refuses headers of connections, but compares only the first `content-length` with the body.

mod refusal;

use std::borrow::Cow;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, Uri, Version};

use crate::headers::{has_token, list_tokens};
use crate::host::Authority;
use crate::path;

pub use refusal::Refusal;

/// Where a request goes, in the form that is matched and forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// `None` only in HTTP/1.0.
    pub authority: Option<Authority<'a>>,
    pub path: Cow<'a, str>,
    /// As the client sent it.
    pub query: Option<&'a str>,
    /// The protocol that the client wants to change to, for example `websocket`. Other wishes are ignored, as RFC 9110
    /// (7.8) permits: several protocols; HTTP/2, in which requests would pass unseen; and TLS.
    pub upgrade: Option<&'a HeaderValue>,
}

impl Target<'_> {
    pub fn host(&self) -> Option<&str> {
        self.authority.as_ref().map(|authority| &*authority.host)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most octets of path and query.
    pub uri: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { uri: 8 << 10 }
    }
}

/// Checks what was parsed.
pub fn check_request<'a>(parts: &'a Parts, limits: &RequestLimits) -> Result<Target<'a>, Refusal> {
    // A tunnel through the proxy, or the request's headers, with those of the proxy, returned to a script.
    if [Method::CONNECT, Method::TRACE].contains(&parts.method) {
        return Err(Refusal::Method);
    }
    check_upgrade(parts, limits, wanted_upgrade(parts))
}

/// Checks the request of a WebSocket over HTTP/2 (RFC 8441). Endpoints get it as a GET with an upgrade.
pub fn check_websocket<'a>(
    parts: &'a Parts,
    limits: &RequestLimits,
) -> Result<Target<'a>, Refusal> {
    static WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
    check_upgrade(parts, limits, Some(&WEBSOCKET))
}

fn check_upgrade<'a>(
    parts: &'a Parts,
    limits: &RequestLimits,
    upgrade: Option<&'a HeaderValue>,
) -> Result<Target<'a>, Refusal> {
    let has_body = check_framing(parts)?;
    let path = check_path(&parts.uri, limits)?;
    let authority = check_host(parts)?;
    if upgrade.is_some() && has_body {
        return Err(Refusal::UpgradeWithBody);
    }
    Ok(Target { authority, path, query: parts.uri.query(), upgrade })
}

/// Whether a request has a body, if the length of its body is beyond doubt.
fn check_framing(parts: &Parts) -> Result<bool, Refusal> {
    let headers = &parts.headers;
    if parts.version >= Version::HTTP_2 {
        let is_forbidden = |name: &HeaderName| headers.contains_key(name);
        if CONNECTION_HEADERS.iter().any(is_forbidden)
            || headers.get_all(TE).iter().any(|value| value != "trailers")
        {
            return Err(Refusal::ConnectionHeader);
        }
    }
    let is_chunked =
        match only(headers, &TRANSFER_ENCODING).map_err(|_| Refusal::TransferEncoding)? {
            None => false,
            Some(value)
                if parts.version == Version::HTTP_11
                    && value.as_bytes().eq_ignore_ascii_case(b"chunked") =>
            {
                true
            }
            Some(_) => return Err(Refusal::TransferEncoding),
        };
    let length = match only(headers, &CONTENT_LENGTH).map_err(|_| Refusal::ContentLength)? {
        None => 0,
        Some(_) if is_chunked => return Err(Refusal::ContentLength),
        Some(value) => plain_number(value).ok_or(Refusal::ContentLength)?,
    };
    let expects = only(headers, &EXPECT).map_err(|_| Refusal::Expectation)?;
    if expects.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(Refusal::Expectation);
    }
    Ok(is_chunked || length > 0)
}

/// Of connections of HTTP/1. `TE` may remain.
static CONNECTION_HEADERS: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

fn check_path<'a>(uri: &'a Uri, limits: &RequestLimits) -> Result<Cow<'a, str>, Refusal> {
    if uri.path_and_query().is_some_and(|uri| uri.as_str().len() > limits.uri) {
        return Err(Refusal::UriTooLong);
    }
    if uri.scheme_str().is_some_and(|scheme| !["http", "https"].contains(&scheme)) {
        return Err(Refusal::Scheme);
    }
    // `?x` is no path, and endpoints would get it as it is, while the rules see `/`.
    if uri.path_and_query().is_some_and(|uri| uri.as_str().starts_with('?')) {
        return Err(Refusal::Path(path::InvalidPath::NotAbsolute));
    }
    match uri.path() {
        "*" => Err(Refusal::AsteriskForm),
        path => path::normalize_path(path).map_err(Refusal::Path),
    }
}

fn check_host(parts: &Parts) -> Result<Option<Authority<'_>>, Refusal> {
    let header = only(&parts.headers, &HOST).map_err(|_| Refusal::DuplicateHost)?;
    let header = header.map(|value| {
        // A value that is no text is no host either.
        Authority::parse(value.to_str().unwrap_or_default()).map_err(Refusal::Host)
    });
    let header = header.transpose()?;
    let named =
        parts.uri.authority().map(|named| Authority::parse(named.as_str()).map_err(Refusal::Host));
    match (named.transpose()?, header) {
        (Some(named), Some(header)) => {
            let default = if parts.uri.scheme_str() == Some("https") { 443 } else { 80 };
            let end = |authority: &Authority| {
                (authority.host.to_string(), authority.port.unwrap_or(default))
            };
            if end(&named) == end(&header) {
                Ok(Some(header))
            } else {
                Err(Refusal::ContradictoryHost)
            }
        }
        (None, None) if parts.version >= Version::HTTP_11 => Err(Refusal::MissingHost),
        // HTTP/1.1 requires Host even if the request line has the host.
        (Some(_), None) if parts.version == Version::HTTP_11 => Err(Refusal::MissingHost),
        (named, header) => Ok(named.or(header)),
    }
}

fn wanted_upgrade(parts: &Parts) -> Option<&HeaderValue> {
    if parts.version != Version::HTTP_11 || !has_token(&parts.headers, &CONNECTION, "upgrade") {
        return None;
    }
    let value = only(&parts.headers, &UPGRADE).ok()?.filter(|value| value.to_str().is_ok())?;
    let protocol = list_tokens(value).next()?;
    let (name, _) = protocol.split_once('/').unwrap_or((protocol, ""));
    let is_known_danger =
        ["h2c", "h2", "http", "tls"].iter().any(|danger| name.eq_ignore_ascii_case(danger));
    (list_tokens(value).count() == 1 && !is_known_danger).then_some(value)
}

struct Several;

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Several> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Several),
    }
}

fn plain_number(value: &HeaderValue) -> Option<u64> {
    // `u64` also parses a sign.
    let digits =
        value.to_str().ok().filter(|text| text.bytes().all(|octet| octet.is_ascii_digit()))?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// A request line without version, and headers; one a line. HTTP/1.1 unless the line ends with another version.
    fn parts(text: &str) -> Parts {
        let mut lines = text.lines().map(str::trim);
        let mut line = lines.next().unwrap().split(' ');
        let builder = Request::builder().method(line.next().unwrap()).uri(line.next().unwrap());
        let mut builder = builder.version(match line.next() {
            None => Version::HTTP_11,
            Some("1.0") => Version::HTTP_10,
            Some("2") => Version::HTTP_2,
            other => panic!("version {other:?}"),
        });
        for header in lines {
            let (name, value) = header.split_once(':').unwrap();
            builder =
                builder.header(name, HeaderValue::from_bytes(value.trim().as_bytes()).unwrap());
        }
        builder.body(()).unwrap().into_parts().0
    }

    fn result(text: &str) -> Result<String, &'static str> {
        let parts = parts(text);
        let target = check_request(&parts, &RequestLimits { uri: 64 })
            .map_err(|refusal| refusal.reason())?;
        let upgrade =
            target.upgrade.map_or(String::new(), |value| format!(" {}", value.to_str().unwrap()));
        Ok(format!("{}{}{upgrade}", target.host().unwrap_or("-"), target.path))
    }

    #[test]
    fn hosts() {
        let cases = [
            ("GET /\nHost: A.org:80", Ok("a.org/")),
            ("GET / 1.0", Ok("-/")),
            ("GET / 1.0\nHost: a", Ok("a/")),
            ("GET http://a.org/x 1.0", Ok("a.org/x")),
            ("GET https://a.org/x 2", Ok("a.org/x")),
            ("GET https://a.org/x 2\nHost: A.ORG:443", Ok("a.org/x")),
            ("GET http://a.org/x\nHost: a.org", Ok("a.org/x")),
            ("GET http://a.org\nHost: a.org", Ok("a.org/")),
            ("GET http://a.org:80/x\nHost: a.org", Ok("a.org/x")),
            ("GET /", Err("missing_host")),
            ("GET / 2", Err("missing_host")),
            ("GET http://a.org/x", Err("missing_host")),
            ("GET /\nHost: a\nHost: a", Err("duplicate_host")),
            ("GET /\nHost:", Err("host")),
            ("GET /\nHost: a/b", Err("host")),
            ("GET /\nHost: a, b", Err("host")),
            ("GET /\nHost: é", Err("host")),
            ("GET http://u@a.org/\nHost: a.org", Err("host")),
            ("GET http://b.org/x\nHost: a.org", Err("contradictory_host")),
            ("GET http://a.org:81/x\nHost: a.org", Err("contradictory_host")),
            ("GET https://b.org/x 2\nHost: a.org", Err("contradictory_host")),
            ("GET https://b.org/x 2\nHost: b.org\nHost: a.org", Err("duplicate_host")),
        ];
        for (text, expected) in cases {
            assert_eq!(result(text).as_deref().map_err(|reason| *reason), expected, "{text}");
        }
    }

    #[test]
    fn lengths_of_bodies() {
        let cases = [
            ("Content-Length: 5", Ok("a/")),
            ("Transfer-Encoding: Chunked", Ok("a/")),
            ("Transfer-Encoding: identity, chunked", Err("transfer_encoding")),
            ("Transfer-Encoding: chunked, chunked", Err("transfer_encoding")),
            ("Transfer-Encoding: identity\nTransfer-Encoding: chunked", Err("transfer_encoding")),
            ("Transfer-Encoding: identity", Err("transfer_encoding")),
            ("Transfer-Encoding: xchunked", Err("transfer_encoding")),
            ("Transfer-Encoding: chunked;a=b", Err("transfer_encoding")),
            ("Transfer-Encoding: chunked\nContent-Length: 5", Err("content_length")),
            ("Content-Length: 5\nContent-Length: 5", Err("content_length")),
            ("Content-Length: 5, 5", Err("content_length")),
            ("Content-Length: +5", Err("content_length")),
            ("Content-Length: 0x5", Err("content_length")),
            ("Content-Length:", Err("content_length")),
            ("Content-Length: 18446744073709551616", Err("content_length")),
            ("Expect: 100-Continue", Ok("a/")),
            ("Expect: 200-ok", Err("expectation")),
        ];
        for (headers, expected) in cases {
            let text = format!("POST /\nHost: a\n{headers}");
            assert_eq!(result(&text).as_deref().map_err(|reason| *reason), expected, "{text}");
        }
        assert_eq!(result("POST / 1.0\nTransfer-Encoding: chunked"), Err("transfer_encoding"));
        assert_eq!(
            result("POST http://a/ 2\nContent-Length: 5\nContent-Length: 6"),
            Err("content_length")
        );
    }

    #[test]
    fn headers_of_connections_in_http_2() {
        for header in [
            "Connection: a",
            "Keep-Alive: 5",
            "Proxy-Connection: a",
            "Upgrade: a",
            "TE: gzip",
            "Transfer-Encoding: chunked",
        ] {
            assert_eq!(
                result(&format!("GET http://a/ 2\n{header}")),
                Err("connection_header"),
                "{header}"
            );
        }
        assert_eq!(result("POST http://a/ 2\nTE: trailers"), Ok("a/".into()));
    }

    #[test]
    fn targets() {
        let long = format!("GET /{}\nHost: a", "a".repeat(64));
        let cases = [
            ("GET /a/../b?c=/../d\nHost: a", Ok("a/b")),
            ("PROPFIND /a\nHost: a", Ok("a/a")),
            ("OPTIONS *\nHost: a", Err("asterisk_form")),
            ("CONNECT a:443\nHost: a:443", Err("method")),
            ("TRACE /\nHost: a", Err("method")),
            ("GET ftp://a/\nHost: a", Err("scheme")),
            ("GET a\nHost: a", Err("path")),
            ("GET http://a?x\nHost: a", Err("path")),
            ("GET http://a?/x 2", Err("path")),
            ("GET /..\nHost: a", Err("path")),
            ("GET /%00\nHost: a", Err("path")),
            (&long, Err("uri_too_long")),
        ];
        for (text, expected) in cases {
            assert_eq!(result(text).as_deref().map_err(|reason| *reason), expected, "{text}");
        }
    }

    #[test]
    fn upgrades() {
        let cases = [
            ("Connection: keep-alive, Upgrade\nUpgrade: websocket", Ok("a/ websocket")),
            ("Connection: upgrade\nUpgrade: SPDY/3.1\nContent-Length: 0", Ok("a/ SPDY/3.1")),
            ("Connection: close\nUpgrade: websocket", Ok("a/")),
            ("Upgrade: websocket", Ok("a/")),
            ("Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAA", Ok("a/")),
            ("Connection: upgrade\nUpgrade: HTTP/2.0", Ok("a/")),
            ("Connection: upgrade\nUpgrade: TLS/1.0", Ok("a/")),
            ("Connection: upgrade\nUpgrade: websocket, h2c", Ok("a/")),
            ("Connection: upgrade\nUpgrade: websocket\nUpgrade: h2c", Ok("a/")),
            ("Connection: upgrade\nUpgrade: é", Ok("a/")),
            (
                "Connection: upgrade\nUpgrade: websocket\nContent-Length: 1",
                Err("upgrade_with_body"),
            ),
            (
                "Connection: upgrade\nUpgrade: websocket\nTransfer-Encoding: chunked",
                Err("upgrade_with_body"),
            ),
        ];
        for (headers, expected) in cases {
            let text = format!("GET /\nHost: a\n{headers}");
            assert_eq!(result(&text).as_deref().map_err(|reason| *reason), expected, "{text}");
        }
        assert_eq!(
            result("GET / 1.0\nHost: a\nConnection: upgrade\nUpgrade: websocket"),
            Ok("a/".into())
        );
    }
}
