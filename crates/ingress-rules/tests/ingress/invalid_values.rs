//! Whatever an annotation restricts, an invalid value of it restricts at least as much: the walk over all of them.
//!
//! Each annotation is set to a value that restricts as much as it can, and then to values that can't be read. What a
//! request may do in the second case must be a part of what it may do in the first one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    ORIGIN,
};
use http::{HeaderMap, HeaderValue, Method};
use lb_http::policy::{Satisfy, TlsRedirect};
use lb_http::respond::{self, Facts};
use lb_http::upstream::Authorities;
use lb_http::{Action, IngressTable, Route, RoutePolicy, canary};
use lb_ingress_rules::annotations::{self, Annotation, Effect};
use lb_proxy::HostTls;
use lb_rules::model::Object;

use super::world::{Pairs, World, objects, settings};

/// The name of an annotation, a value that restricts, and other annotations that it needs.
type Valid = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const CORS: (&str, &str) = ("cors", "true");
const ORIGINS: (&str, &str) = ("cors-allow-origin", "https://good.test");
const HTTPS: (&str, &str) = ("backend-protocol", "HTTPS");
const CA: (&str, &str) = ("upstream-tls-secret", "ca");
const ASKED: (&str, &str) = ("auth-url", "http://auth.shop.svc.cluster.local/");
const ISSUER: (&str, &str) = ("jwt-issuer", "https://id.test");
const AUDIENCE: (&str, &str) = ("jwt-audiences", "shop");
const KEYS: (&str, &str) = ("jwt-secret", "keys");
const PROVIDER: (&str, &str) = ("oidc-issuer", "https://auth");
const CLIENT: (&str, &str) = ("oidc-secret", "client");
const USERS: (&str, &str) = ("auth-secret", "users");
const RATE: (&str, &str) = ("limit-rps", "5");
const COOKIE: (&str, &str) = ("affinity", "cookie");
const HEADER: (&str, &str) = ("canary-by-header", "X-Canary");
const SOURCES: (&str, &str) = ("allowed-sources", "10.0.0.0/8");
const CANARY: (&str, &str) = ("canary", "true");

const VALID: &[Valid] = &[
    ("max-body-size", "1k", &[]),
    ("backend-protocol", "HTTPS", &[]),
    ("rewrite-target", "/public", &[SOURCES]),
    ("use-regex", "true", &[SOURCES]),
    ("connect-timeout", "5s", &[]),
    ("send-timeout", "5s", &[]),
    ("read-timeout", "5s", &[]),
    ("retry-on", "off", &[]),
    ("retry-tries", "1", &[]),
    ("retry-timeout", "5s", &[]),
    ("upstream-host", "inside.test", &[]),
    ("forwarded-prefix", "/a", &[]),
    ("request-headers", "X-Role: guest", &[]),
    ("response-headers", "X-A: b", &[]),
    ("compress", "false", &[]),
    ("mirror-target", "http://auth$request_uri", &[]),
    ("mirror-request-body", "off", &[("mirror-target", "http://auth$request_uri")]),
    ("mirror-host", "inside.test", &[("mirror-target", "http://auth$request_uri")]),
    ("tracing", "false", &[]),
    ("trust-incoming-trace", "false", &[]),
    ("span-name", "a", &[]),
    ("custom-http-errors", "503", &[("default-backend", "web")]),
    ("default-backend", "web", &[]),
    ("access-log", "true", &[]),
    ("permanent-redirect", "https://example.org/", &[]),
    ("permanent-redirect-code", "308", &[("permanent-redirect", "https://example.org/")]),
    ("temporary-redirect", "https://example.org/", &[]),
    ("temporary-redirect-code", "307", &[("temporary-redirect", "https://example.org/")]),
    ("tls-redirect", "true", &[]),
    ("force-tls-redirect", "true", &[]),
    ("app-root", "/a", &[]),
    ("www-redirect", "true", &[]),
    ("hsts", "max-age=1", &[]),
    ("allowed-sources", "10.0.0.0/8", &[]),
    ("denied-sources", "192.0.2.0/24", &[]),
    ("satisfy", "all", &[SOURCES, USERS]),
    ("auth-type", "basic", &[USERS]),
    ("auth-secret", "users", &[]),
    ("auth-secret-type", "auth-map", &[USERS]),
    ("auth-realm", "a", &[USERS]),
    ("auth-url", "http://auth.shop.svc.cluster.local/", &[]),
    ("auth-method", "POST", &[ASKED]),
    ("auth-signin", "https://in.test/", &[ASKED]),
    ("auth-signin-redirect-argument", "rd", &[ASKED]),
    ("auth-response-headers", "X-User", &[ASKED]),
    ("jwt-issuer", "https://id.test", &[AUDIENCE, KEYS]),
    ("jwt-audiences", "shop", &[ISSUER, KEYS]),
    ("jwt-secret", "keys", &[ISSUER, AUDIENCE]),
    ("jwt-keys-url", "http://auth.shop.svc.cluster.local/", &[ISSUER, AUDIENCE]),
    ("jwt-cookie", "token", &[ISSUER, AUDIENCE, KEYS]),
    ("jwt-claim-headers", "sub=X-User", &[ISSUER, AUDIENCE, KEYS]),
    ("jwt-forward-token", "false", &[ISSUER, AUDIENCE, KEYS]),
    ("oidc-issuer", "https://auth", &[CLIENT]),
    ("oidc-secret", "client", &[PROVIDER]),
    ("oidc-hosts", "auth.shop.svc", &[PROVIDER, CLIENT]),
    ("oidc-scopes", "email", &[PROVIDER, CLIENT]),
    ("oidc-claim-headers", "sub=X-User", &[PROVIDER, CLIENT]),
    ("oidc-redirect-path", "/in", &[PROVIDER, CLIENT]),
    ("oidc-logout-path", "/out", &[PROVIDER, CLIENT]),
    ("oidc-session-lifetime", "1h", &[PROVIDER, CLIENT]),
    ("affinity", "cookie", &[]),
    ("session-cookie-name", "a", &[COOKIE]),
    ("session-cookie-path", "/a", &[COOKIE]),
    ("session-cookie-domain", "a.test", &[COOKIE]),
    ("session-cookie-max-age", "1", &[COOKIE]),
    ("session-cookie-expires", "1", &[COOKIE]),
    ("session-cookie-samesite", "Strict", &[COOKIE]),
    ("session-cookie-secure", "true", &[COOKIE]),
    ("session-cookie-change-on-failure", "true", &[COOKIE]),
    ("hash-by", "$remote_addr", &[]),
    ("cors", "false", &[]),
    ("cors-allow-origin", "https://good.test", &[CORS]),
    ("cors-allow-methods", "GET", &[CORS, ORIGINS]),
    ("cors-allow-headers", "X-A", &[CORS, ORIGINS]),
    ("cors-expose-headers", "X-A", &[CORS, ORIGINS]),
    ("cors-allow-credentials", "false", &[CORS, ORIGINS]),
    ("cors-max-age", "1", &[CORS, ORIGINS]),
    ("canary", "true", &[]),
    ("canary-by-header", "X-Canary", &[CANARY]),
    ("canary-by-header-value", "yes", &[CANARY, HEADER]),
    ("canary-by-header-pattern", "yes", &[CANARY, HEADER]),
    ("canary-by-cookie", "a", &[CANARY]),
    ("canary-weight", "1", &[CANARY]),
    ("canary-weight-total", "1", &[CANARY]),
    ("limit-rps", "5", &[]),
    ("limit-rpm", "5", &[]),
    ("limit-burst-multiplier", "1", &[RATE]),
    ("limit-connections", "5", &[]),
    ("limit-allowlist", "10.0.0.0/8", &[RATE]),
    ("auth-tls-secret", "ca", &[]),
    ("auth-tls-verify-client", "on", &[("auth-tls-secret", "ca")]),
    ("auth-tls-verify-depth", "1", &[("auth-tls-secret", "ca")]),
    ("auth-tls-pass-certificate", "false", &[("auth-tls-secret", "ca")]),
    ("upstream-tls-secret", "ca", &[HTTPS]),
    ("upstream-tls-verify", "on", &[HTTPS, CA]),
    ("upstream-tls-name", "inside.test", &[HTTPS, CA, ("upstream-tls-verify", "on")]),
    ("upstream-tls-send-name", "on", &[HTTPS, CA]),
    ("upstream-proxy-protocol", "v2", &[]),
    ("server-alias", "b.example.org", &[]),
    ("tls-passthrough", "true", &[]),
    ("tls-passthrough-proxy-protocol", "v2", &[("tls-passthrough", "true")]),
];

const INVALID: [&str; 12] = [
    "",
    " ",
    "\u{0}",
    "\u{e9}",
    "nonsense value",
    "$x",
    "-1",
    "(((",
    "a, b;, c",
    "99999999999999999999",
    "http://[",
    "::ffff:0:0/80",
];

const MANIFESTS: &str = r#"
# settings: allow-tls-passthrough
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: open, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  tls: [{hosts: [a.example.org], secretName: a}]
  rules:
  - host: a.example.org
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: tested, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z", annotations: {}}
spec:
  tls: [{hosts: [a.example.org, b.example.org], secretName: a}]
  rules:
  - host: a.example.org
    http:
      paths:
      - {path: "/restricted(/|$)(.*)", pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}
      - {path: "/", pathType: Exact, backend: {service: {name: web, port: {number: 80}}}}
  - host: b.example.org
    http:
      paths:
      - {path: "/", pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: a, namespace: shop}
stringData:
  tls.crt: $certificate(a.example.org b.example.org)
  tls.key: $key(a.example.org b.example.org)
---
apiVersion: v1
kind: Secret
type: Opaque
metadata: {name: ca, namespace: shop}
stringData: {ca.crt: $authority}
---
apiVersion: v1
kind: Secret
type: Opaque
metadata: {name: keys, namespace: shop}
stringData:
  jwks.json: '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
---
apiVersion: v1
kind: Secret
type: Opaque
metadata: {name: client, namespace: shop}
stringData: {issuer: "https://auth", client-id: shop, client-secret: s3cret, cookie-secret: 0123456789abcdef0123456789abcdef, ca.crt: $authority}
---
apiVersion: v1
kind: Secret
type: Opaque
metadata: {name: users, namespace: shop}
stringData: {auth: "ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", ann: "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: auth, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 80}, {name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: auth-1, namespace: shop, labels: {kubernetes.io/service-name: auth}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: https, port: 8443}]
endpoints: [{addresses: [10.244.0.2]}]
"#;

/// The tested Ingress with these annotations, beside one that restricts nothing.
fn world(manifests: &str, pairs: &Pairs, annotations: &[(String, String)]) -> World {
    let mut world = World::new(settings(MANIFESTS));
    for object in objects("invalid_values", &pairs.fill(manifests)) {
        world.model.apply(match object {
            Object::Ingress(mut ingress) if ingress.metadata.name.as_deref() == Some("tested") => {
                ingress.metadata.annotations = Some(annotations.iter().cloned().collect());
                Object::Ingress(ingress)
            }
            object => object,
        });
    }
    world.settle();
    world
}

/// What a client may do that no valid restriction would let it do.
fn grants(world: &World) -> BTreeSet<String> {
    let mut table = IngressTable::default();
    for (host, rules) in &world.hosts {
        table.set_host(host.clone(), rules.clone());
    }
    let mut granted = BTreeSet::new();
    for (host, path) in
        [("a.example.org", "/restricted/x"), ("a.example.org", "/"), ("b.example.org", "/")]
    {
        let Some(found) = table.find(Some(host), path) else { continue };
        let route = found.route;
        if let Action::Forward(upstream) = &route.action {
            let mut add = |is_granted: bool, what: &str| {
                if is_granted {
                    granted.insert(format!("{host}{path}: {what}"));
                }
            };
            add(true, "reaches a Service");
            of_policy(&route.policy, &mut add);
            of_canaries(route, &mut add);
            let tls = upstream.tls.as_ref();
            add(tls.is_none(), "forwarded in clear");
            add(
                tls.is_none_or(|tls| tls.authorities == Authorities::Any),
                "forwarded to any certificate",
            );
            let is_named = |name: &str| name == "inside.test";
            let named = tls.and_then(|tls| tls.server_name.as_deref()).is_some_and(is_named);
            add(!named, "forwarded to any name");
        }
    }
    for (host, tls) in &world.tls {
        let HostTls::Passthrough(passthrough) = &**tls else { continue };
        granted.insert(format!("{host}: passed through"));
        if passthrough.proxy_protocol.is_none() {
            granted.insert(format!("{host}: passed through without address"));
        }
    }
    granted
}

fn of_policy(policy: &RoutePolicy, add: &mut impl FnMut(bool, &str)) {
    add(policy.redirect.is_none(), "not redirected");
    for client in ["192.0.2.7", "203.0.113.1"] {
        let address: IpAddr = client.parse().unwrap();
        let (allowed, denied) = (&policy.allowed_sources, &policy.denied_sources);
        add(respond::may_use_route(allowed, denied, address), &format!("client {client}"));
        let is_exempt = policy.limits.exempt.iter().any(|network| network.contains(&address));
        add(is_exempt, &format!("without limits from {client}"));
    }
    add(policy.tls_redirect == TlsRedirect::Never, "in clear");
    add(policy.tls_redirect != TlsRedirect::Always, "in clear behind a proxy");
    add(policy.basic_auth.is_none(), "without password");
    add(policy.satisfy == Satisfy::Any, "by any restriction that it satisfies");
    add(policy.external_auth.is_none(), "without being asked");
    add(policy.jwt.is_none(), "without token");
    add(policy.oidc.is_none(), "without signing in");
    add(
        policy.jwt.as_ref().is_none_or(|jwt| jwt.forwards_token),
        "with the token for the endpoint",
    );
    add(!policy.requires_client_certificate, "without certificate");
    for name in ["x-user", "x-role"] {
        add(!policy.sets_request_header(&name.parse().unwrap()), &format!("with its own {name}"));
    }
    let limits = &policy.limits;
    add(limits.requests_per_second.is_none(), "any rate in a second");
    add(limits.requests_per_minute.is_none(), "any rate in a minute");
    add(limits.burst_multiplier > 1, "bursts");
    add(limits.concurrent.is_none(), "any number at the same time");
    add(policy.max_body.is_none_or(|most| most > 1 << 20), "large bodies");
    add(policy.max_grpc_body.is_none(), "endless calls of gRPC");
    add(policy.rewrite.is_none(), "any path of the endpoint");
    add(policy.endpoint_proxy_protocol.is_none(), "without its address");
    of_cors(policy, add);
}

fn of_cors(policy: &RoutePolicy, add: &mut impl FnMut(bool, &str)) {
    for origin in ["https://good.test", "https://evil.test"] {
        let asked = [(ORIGIN, origin), (ACCESS_CONTROL_REQUEST_METHOD, "DELETE")];
        let asked: HeaderMap = asked
            .into_iter()
            .map(|(name, value)| (name, HeaderValue::from_static(value)))
            .collect();
        let mut headers = HeaderMap::new();
        for method in [Method::OPTIONS, Method::GET] {
            let facts = Facts {
                client: IpAddr::from([192, 0, 2, 7]),
                is_tls: true,
                host_uses_tls: true,
                tls_port: 443,
                method: &method,
                authority: None,
                path: "/",
                query: None,
                headers: &asked,
            };
            respond::add_response_headers(policy, &facts, &mut headers);
        }
        let value = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        let mut add = |is_granted, what: &str| add(is_granted, &format!("{what} by {origin}"));
        add(!value(ACCESS_CONTROL_ALLOW_ORIGIN).is_empty(), "read");
        add(!value(ACCESS_CONTROL_ALLOW_CREDENTIALS).is_empty(), "read with credentials");
        add(value(ACCESS_CONTROL_ALLOW_METHODS).contains("DELETE"), "deleted");
        add(value(ACCESS_CONTROL_ALLOW_HEADERS).contains("Authorization"), "read with passwords");
        add(value(ACCESS_CONTROL_EXPOSE_HEADERS).contains("X-B"), "read with headers");
    }
}

/// A canary is not for clients that do not know its value.
fn of_canaries(route: &Route, add: &mut impl FnMut(bool, &str)) {
    for value in ["always", "other"] {
        let headers =
            HeaderMap::from_iter([("x-canary".parse().unwrap(), HeaderValue::from_static(value))]);
        let route = Arc::new(route.clone());
        let chosen = canary::choose_route(&route, &headers, u64::MAX);
        add(!Arc::ptr_eq(chosen, &route), &format!("the canary by {value}"));
    }
}

fn is_set(annotation: &&Annotation) -> bool {
    matches!(annotation.effect, Effect::Set(_))
}

#[test]
fn an_invalid_value_never_grants_what_a_valid_one_refuses() {
    let pairs = Pairs::default();
    // The test of an annotation for canaries needs a main Ingress with the same path.
    let with_main = MANIFESTS.replacen(
        "- {path: /, pathType: Prefix",
        "- {path: \"/restricted(/|$)(.*)\", pathType: ImplementationSpecific, \
         backend: {service: {name: web, port: {number: 80}}}}\n      - {path: /, pathType: Prefix",
        1,
    );
    for annotation in annotations::all_annotations().filter(is_set) {
        let name = annotation.name;
        let valid = VALID.iter().find(|(known, ..)| *known == name);
        let Some((_, value, others)) = valid else { panic!("{name} has no valid value here") };
        let manifests = if name.starts_with("canary") { &with_main } else { MANIFESTS };
        let key = |name: &str| format!("{}{name}", annotations::MILLRACE);
        let with = |value: Option<&str>| {
            let mut all: Vec<(String, String)> =
                others.iter().map(|(name, value)| (key(name), (*value).to_owned())).collect();
            if !["use-regex", "rewrite-target"].contains(&name) {
                all.push((key("use-regex"), "true".to_owned()));
            }
            all.extend(value.map(|value| (key(name), value.to_owned())));
            world(manifests, &pairs, &all)
        };
        let problems = |world: &World| -> Vec<String> {
            let problems = world.problems.values().flatten().map(ToString::to_string);
            problems.filter(|problem| problem.contains(&format!("{}]", key(name)))).collect()
        };
        let meant = with(Some(value));
        assert_eq!(problems(&meant), [""; 0], "{name}: {value}");
        let allowed = grants(&meant);
        let mut refused = 0;
        for value in INVALID {
            let world = with(Some(value));
            if problems(&world).is_empty() {
                continue;
            }
            refused += 1;
            let granted = grants(&world);
            let opened: Vec<&String> = granted.difference(&allowed).collect();
            assert!(opened.is_empty(), "{name}: {value:?} opens {opened:#?}\n{world}");
        }
        assert!(refused > 0, "{name}: no value is invalid");
        // What removes something must not be ignored when it can't be read.
        let is_restriction = !grants(&with(None)).is_subset(&allowed);
        assert!(annotation.restricts || !is_restriction || keeps_closed(name), "{name}");
    }
}

/// Annotations of which an invalid value has an effect of its own, instead of closing all rules.
fn keeps_closed(name: &str) -> bool {
    ["max-body-size", "canary-by-header-value", "canary-by-header-pattern", "tls-redirect"]
        .contains(&name)
        || name.starts_with("cors-")
}
