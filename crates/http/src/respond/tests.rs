use std::time::Duration;

use http::header::LOCATION;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::*;
use crate::host::Authority;
use crate::policy::{Cors, CorsOrigin, Redirect, TlsRedirect};

/// A request, as tests describe it.
struct Case<'a> {
    method: Method,
    uri: &'a str,
    host: Option<&'a str>,
    client: &'a str,
    is_tls: bool,
    host_uses_tls: bool,
    headers: &'a [(&'static str, &'static str)],
}

const PLAIN: Case = Case {
    method: Method::GET,
    uri: "/a?b=c",
    host: Some("a.org:8080"),
    client: "192.0.2.1",
    is_tls: false,
    host_uses_tls: false,
    headers: &[],
};

impl Case<'_> {
    fn with_facts<T>(&self, then: impl FnOnce(&Facts) -> T) -> T {
        let headers: HeaderMap = self
            .headers
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let authority = self.host.map(|host| Authority::parse(host).unwrap());
        let (path, query) =
            self.uri.split_once('?').map_or((self.uri, None), |(path, query)| (path, Some(query)));
        then(&Facts {
            client: self.client.parse().unwrap(),
            is_tls: self.is_tls,
            host_uses_tls: self.host_uses_tls,
            tls_port: 443,
            method: &self.method,
            authority: authority.as_ref(),
            path,
            query,
            headers: &headers,
        })
    }

    /// Status and location, or `forwarded`.
    fn run(&self, policy: &RoutePolicy) -> String {
        self.with_facts(|facts| match answer_by_policy(policy, facts) {
            None => "forwarded".into(),
            Some(response) => match response.headers().get(LOCATION) {
                Some(location) => {
                    format!("{} {}", response.status().as_u16(), location.to_str().unwrap())
                }
                None => response.status().as_u16().to_string(),
            },
        })
    }

    /// What [`add_response_headers`] makes of an endpoint's headers, one a line, sorted.
    fn added(
        &self,
        policy: &RoutePolicy,
        endpoint: &[(&'static str, &'static str)],
    ) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for &(name, value) in endpoint {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        self.with_facts(|facts| add_response_headers(policy, facts, &mut headers));
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }
}

#[test]
fn hosts_with_a_certificate_are_redirected_to_tls() {
    use TlsRedirect::{Always, Never, WithCertificate};
    const SECRET: Case = Case { host_uses_tls: true, ..PLAIN };
    let cases = [
        (WithCertificate, PLAIN, "forwarded"),
        (Always, PLAIN, "308 https://a.org/a?b=c"),
        (Never, SECRET, "forwarded"),
        (WithCertificate, SECRET, "308 https://a.org/a?b=c"),
        (WithCertificate, Case { host: Some("[::1]:80"), ..SECRET }, "308 https://[::1]/a?b=c"),
        (WithCertificate, Case { is_tls: true, ..SECRET }, "forwarded"),
        (WithCertificate, Case { uri: "/.well-known/acme-challenge/x", ..SECRET }, "forwarded"),
        (
            WithCertificate,
            Case { uri: "/.well-known/acme-challenge", ..SECRET },
            "308 https://a.org/.well-known/acme-challenge",
        ),
        (WithCertificate, Case { uri: "//evil.org", ..SECRET }, "308 https://a.org//evil.org"),
        (WithCertificate, Case { host: None, ..SECRET }, "400"),
    ];
    for (tls_redirect, case, expected) in cases {
        let policy = RoutePolicy { tls_redirect, ..RoutePolicy::default() };
        assert_eq!(case.run(&policy), expected, "{tls_redirect:?} {}", case.uri);
    }
}

#[test]
fn a_redirect_names_the_port_of_tls() {
    let policy = RoutePolicy { tls_redirect: TlsRedirect::Always, ..RoutePolicy::default() };
    let response = PLAIN
        .with_facts(|facts| answer_by_policy(&policy, &Facts { tls_port: 8443, ..*facts }))
        .unwrap();
    assert_eq!(response.headers()[LOCATION], "https://a.org:8443/a?b=c");
}

#[test]
fn configured_redirects_can_keep_what_was_asked_for() {
    let policy = |location: &str, append_path| {
        let redirect = Redirect {
            status: StatusCode::MOVED_PERMANENTLY,
            location: location.into(),
            append_path,
        };
        RoutePolicy { redirect: Some(redirect), ..RoutePolicy::default() }
    };
    assert_eq!(PLAIN.run(&policy("https://b.org/x", false)), "301 https://b.org/x");
    assert_eq!(PLAIN.run(&policy("https://b.org", true)), "301 https://b.org/a?b=c");
    assert_eq!(PLAIN.run(&policy("$scheme://www.$host$uri", false)), "301 http://www.a.org/a");
    assert_eq!(PLAIN.run(&policy("/a\r\nb: c", false)), "503");
}

#[test]
fn the_sign_in_page_gets_the_url_of_the_request() {
    let cases = [
        (
            "https://in.org/?rd=$scheme://$host$escaped_request_uri",
            "https://in.org/?rd=http://a.org/a%3Fb%3Dc%26d",
        ),
        (
            "https://in.org/?rd=$scheme://$http_host$escaped_request_uri",
            "https://in.org/?rd=http://a.org:8080/a%3Fb%3Dc%26d",
        ),
        ("https://in.org$request_uri", "https://in.org/a?b=c&d"),
        ("/$hosts/$/$$host", "/$hosts/$/$a.org"),
    ];
    let request = Case { uri: "/a?b=c&d", ..PLAIN };
    for (url, expected) in cases {
        let response = request.with_facts(|facts| redirect_to_sign_in(url, facts));
        assert_eq!(response.status(), StatusCode::FOUND);
        assert_eq!(response.headers()[LOCATION], expected);
    }
}

#[test]
fn the_root_leads_to_the_application() {
    let policy = |root: &str| RoutePolicy { app_root: Some(root.into()), ..RoutePolicy::default() };
    let root = Case { uri: "/?a=b", ..PLAIN };
    assert_eq!(root.run(&policy("/app?x=1")), "302 /app?x=1");
    for other in ["/", "//evil.org", "app"] {
        assert_eq!(root.run(&policy(other)), "forwarded", "{other}");
    }
    assert_eq!(PLAIN.run(&policy("/app")), "forwarded");
}

#[test]
fn denied_sources_are_denied_even_if_they_are_allowed() {
    let networks = |list: &[&str]| -> Vec<IpNet> {
        list.iter().map(|network| network.parse().unwrap()).collect()
    };
    let cases: [(&[&str], &[&str], &str, bool); 5] = [
        (&[], &[], "192.0.2.1", true),
        (&["192.0.2.0/24"], &[], "::ffff:192.0.2.1", true),
        (&["192.0.2.0/24"], &[], "2001:db8::1", false),
        (&[], &["192.0.2.0/24"], "192.0.2.1", false),
        (&["192.0.2.0/24"], &["192.0.2.1/32"], "192.0.2.1", false),
    ];
    for (allowed, denied, client, expected) in cases {
        let may = may_use_route(&networks(allowed), &networks(denied), client.parse().unwrap());
        assert_eq!(may, expected, "{allowed:?} {denied:?} {client}");
    }
}

fn cors(origins: Vec<CorsOrigin>, credentials: bool) -> RoutePolicy {
    let cors = Cors {
        origins,
        methods: HeaderValue::from_static("GET, PUT"),
        headers: HeaderValue::from_static("X-A"),
        expose: Some(HeaderValue::from_static("X-B")),
        credentials,
        max_age: Duration::from_secs(60),
    };
    RoutePolicy { cors: Some(cors), ..RoutePolicy::default() }
}

const PREFLIGHT: Case = Case {
    method: Method::OPTIONS,
    headers: &[("origin", "https://b.org"), ("access-control-request-method", "PUT")],
    ..PLAIN
};

#[test]
fn preflights_are_answered() {
    let policy = cors(vec![CorsOrigin::Exact("https://b.org".into())], true);
    assert_eq!(PREFLIGHT.run(&policy), "204");
    assert_eq!(
        PREFLIGHT.added(&policy, &[]),
        [
            "access-control-allow-credentials: true",
            "access-control-allow-headers: X-A",
            "access-control-allow-methods: GET, PUT",
            "access-control-allow-origin: https://b.org",
            "access-control-max-age: 60",
            "vary: Origin",
        ]
    );
    assert_eq!(PREFLIGHT.run(&RoutePolicy::default()), "forwarded");
    let options = Case { headers: &[("origin", "https://b.org")], ..PREFLIGHT };
    assert_eq!(options.run(&policy), "forwarded");
}

#[test]
fn responses_name_only_configured_origins() {
    let endpoint = [
        ("access-control-allow-origin", "https://evil.org"),
        ("access-control-allow-credentials", "true"),
    ];
    let request = Case { headers: &[("origin", "https://b.org")], ..PLAIN };
    let one = cors(vec![CorsOrigin::Exact("https://b.org".into())], false);
    assert_eq!(
        request.added(&one, &endpoint),
        [
            "access-control-allow-origin: https://b.org",
            "access-control-expose-headers: X-B",
            "vary: Origin"
        ]
    );
    let other = cors(vec![CorsOrigin::Exact("https://c.org".into())], true);
    assert_eq!(request.added(&other, &endpoint), ["vary: Origin"]);
    assert_eq!(PLAIN.added(&one, &endpoint), ["vary: Origin"]);
    assert_eq!(PREFLIGHT.added(&other, &endpoint), ["vary: Origin"]);
    assert_eq!(request.added(&RoutePolicy::default(), &endpoint).len(), 2);
}

#[test]
fn credentials_are_never_allowed_for_all_origins() {
    let all = cors(vec![CorsOrigin::Any], true);
    let request = Case { headers: &[("origin", "https://b.org")], ..PLAIN };
    assert_eq!(
        request.added(&all, &[]),
        ["access-control-allow-origin: *", "access-control-expose-headers: X-B"]
    );
}

#[test]
fn headers_are_added_to_responses() {
    let policy = RoutePolicy {
        hsts: Some(HeaderValue::from_static("max-age=60")),
        response_headers: vec![(HeaderName::from_static("x-a"), HeaderValue::from_static("b"))],
        ..RoutePolicy::default()
    };
    assert_eq!(PLAIN.added(&policy, &[("x-a", "endpoint")]), ["x-a: b"]);
    let tls = Case { is_tls: true, ..PLAIN };
    assert_eq!(tls.added(&policy, &[]), ["strict-transport-security: max-age=60", "x-a: b"]);
}
