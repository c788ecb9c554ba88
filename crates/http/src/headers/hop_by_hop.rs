//! Headers for one connection only, which are not forwarded (RFC 9110, 7.6.1).

use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, DATE, FORWARDED, HOST, LOCATION, ORIGIN, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VARY, VIA, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::is_about_client;
use super::{has_token, list_tokens};
use crate::policy::RoutePolicy;

/// Removes what is not for the endpoint. Of `TE`, `trailers` remains, which gRPC requires. `Upgrade` is removed, too:
/// [`Target`](crate::request::Target) says whether it is sent.
///
/// Also removed are names with `_`, which endpoints that follow CGI cannot distinguish from those with `-`, and
/// `Proxy`, which they take for the variable `HTTP_PROXY`.
pub fn strip_request(headers: &mut HeaderMap) {
    let takes_trailers =
        headers.keys().any(|name| *name == TE) && has_token(headers, &TE, "trailers");
    strip(headers, |name| {
        let name = name.as_str();
        ["proxy", "http2-settings"].contains(&name) || name.contains('_')
    });
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes what is not for the client.
pub fn strip_response(headers: &mut HeaderMap) {
    strip(headers, |_| false);
}

/// Removes what must not come after a body (RFC 9110, 6.5.1): a receiver that merges the two would use it as a header.
pub fn strip_trailers(trailers: &mut HeaderMap) {
    strip(trailers, is_no_trailer);
}

/// Removes from a request's trailers what [`strip_trailers`] does, names with `_`, and headers that the endpoint gets
/// from the proxy: an endpoint that merges trailers would take the client's word for the proxy's.
pub fn strip_request_trailers(trailers: &mut HeaderMap, policy: &RoutePolicy) {
    strip(trailers, |name| {
        is_no_trailer(name) || name.as_str().contains('_') || policy.sets_request_header(name)
    });
}

fn is_no_trailer(name: &HeaderName) -> bool {
    is_protected(name) || is_about_client(name)
}

/// Removes headers for one connection, and those that `is_removed` names. Most messages have none of either.
fn strip(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let is_removed = |name: &&HeaderName| is_hop_by_hop(name) || is_removed(name);
    let names: Vec<HeaderName> = headers.keys().filter(is_removed).cloned().collect();
    if names.contains(&CONNECTION) {
        remove_named(headers);
    }
    for name in names {
        headers.remove(name);
    }
}

/// Removes the headers that `Connection` names, at once, so that naming one again costs only a look-up.
fn remove_named(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    for token in values.iter().flat_map(list_tokens) {
        // Most say only this, and its header is removed anyway.
        if !token.eq_ignore_ascii_case("keep-alive")
            && headers.contains_key(token)
            && let Ok(name) = HeaderName::try_from(token)
            && !is_protected(&name)
        {
            headers.remove(name);
        }
    }
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        CONNECTION | PROXY_AUTHENTICATE | PROXY_AUTHORIZATION | TE | TRANSFER_ENCODING
        | UPGRADE => true,
        _ => ["keep-alive", "proxy-connection"].contains(&name.as_str()),
    }
}

/// Headers that the next hop relies on. `Connection` cannot have them removed: a client could change what other
/// proxies have said about the client, or the length of the body.
fn is_protected(name: &HeaderName) -> bool {
    const PREFIXES: [&str; 7] = [
        "content-",
        "x-forwarded-",
        "access-control-",
        "x-real-ip",
        "x-request-id",
        "traceparent",
        "tracestate",
    ];
    static NAMES: [HeaderName; 13] = [
        AUTHORIZATION,
        COOKIE,
        DATE,
        FORWARDED,
        HOST,
        LOCATION,
        ORIGIN,
        SET_COOKIE,
        STRICT_TRANSPORT_SECURITY,
        TRAILER,
        VARY,
        VIA,
        WWW_AUTHENTICATE,
    ];
    NAMES.contains(name) || PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jwt::{JwtAuth, KeySource};
    use crate::policy::ExternalAuth;
    use crate::upstream::{UpstreamName, UpstreamProtocol};

    fn headers(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines.lines() {
            let (name, value) = line.trim().split_once(": ").unwrap();
            headers
                .append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort();
        names
    }

    #[test]
    fn headers_of_the_connection_are_removed() {
        let mut headers = headers(
            "Host: a\nConnection: keep-alive, X-One\nConnection: x-two\nKeep-Alive: 5\nProxy-Connection: a\nTE: gzip\n\
             Transfer-Encoding: chunked\nUpgrade: websocket\nProxy-Authorization: a\nX-One: 1\nX-Two: 2\nX-Two: 3\n\
             X-Three: 3\nProxy: evil\nX_Three: 4\nHTTP2-Settings: AAA\nTrailer: a",
        );
        strip_request(&mut headers);
        assert_eq!(names(&headers), ["host", "trailer", "x-three"]);
    }

    #[test]
    fn a_client_of_grpc_keeps_its_wish_for_trailers() {
        let mut headers = headers("TE: gzip, Trailers\nConnection: te");
        strip_request(&mut headers);
        assert_eq!(headers.get(TE).unwrap(), "trailers");
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn connection_may_name_a_header_often_and_in_any_case() {
        let tokens = "x-a, connection, X-A, ".repeat(1_000);
        let mut headers = headers(&format!("X-A: 1\nX-B: 2\nConnection: {tokens}close"));
        strip_request(&mut headers);
        assert_eq!(names(&headers), ["x-b"]);
    }

    #[test]
    fn connection_cannot_name_headers_that_the_next_hop_relies_on() {
        let protected = [
            "host",
            "content-length",
            "content-type",
            "authorization",
            "cookie",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-real-ip",
            "x-request-id",
            "forwarded",
            "traceparent",
            "tracestate",
            "set-cookie",
            "location",
            "content-security-policy",
            "strict-transport-security",
        ];
        for strip in [strip_request, strip_response] {
            for name in protected {
                let mut headers = headers(&format!("{name}: a\nConnection: {name}, close"));
                strip(&mut headers);
                assert_eq!(names(&headers), [name]);
            }
        }
    }

    #[test]
    fn trailers_are_no_headers() {
        let mut trailers = headers(
            "grpc-status: 0\nContent-Length: 5\nHost: a\nTransfer-Encoding: chunked\nSet-Cookie: a=b\n\
             X-Forwarded-For: ::1\nssl-client-verify: SUCCESS",
        );
        strip_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["grpc-status"]);
    }

    #[test]
    fn trailers_of_requests_are_no_headers_that_the_proxy_sets() {
        let external_auth = ExternalAuth {
            upstream: UpstreamName {
                namespace: "shop".into(),
                service: "auth".into(),
                port: "80".into(),
                protocol: UpstreamProtocol::Http1,
                tls: None,
            },
            url: "http://auth/".parse().unwrap(),
            method: http::Method::GET,
            signin: None,
            response_headers: vec!["x-user".parse().unwrap()],
        };
        let jwt = JwtAuth {
            issuer: "https://id.test".into(),
            audiences: Vec::new(),
            keys: KeySource::Fixed(std::sync::Arc::default()),
            cookie: None,
            claim_headers: vec![("sub".into(), "x-subject".parse().unwrap())],
            forwards_token: false,
            realm: "a".into(),
        };
        let policy = RoutePolicy {
            jwt: Some(jwt),
            oidc: Some(std::sync::Arc::new(crate::oidc::tests::policy())),
            external_auth: Some(external_auth),
            request_headers: vec![("x-role".parse().unwrap(), HeaderValue::from_static("guest"))],
            ..RoutePolicy::default()
        };
        let mut trailers = headers(
            "grpc-status: 0\nX-User: admin\nX_User: admin\nX-Role: admin\nX-Subject: a\nX-Email: a",
        );
        strip_request_trailers(&mut trailers, &policy);
        assert_eq!(names(&trailers), ["grpc-status"]);
    }
}
