//! Annotations of ingress-nginx without effect: those that need none, and those that are not supported.

use super::Annotation;

const BUFFERS: &str = "bodies are streamed, in both directions";
const GLOBAL_RATES: &str = "replicas do not count together; use limit-rps, limit-allowlist";
const REDIRECTS: &str = "redirects have a whole URL, with the standard port";
const CONNECTIONS: &str = "the proxy manages its connections itself";
const CIPHERS: &str = "TLS 1.2 and 1.3 with secure ciphers only; this is not adjustable";

pub const NOTHING: &[Annotation] = &[
    Annotation::nothing(&["proxy-buffering"], BUFFERS),
    Annotation::nothing(&["proxy-request-buffering"], BUFFERS),
    Annotation::nothing(&["proxy-buffer-size"], BUFFERS),
    Annotation::nothing(&["proxy-buffers-number"], BUFFERS),
    Annotation::nothing(&["proxy-busy-buffers-size"], BUFFERS),
    Annotation::nothing(&["proxy-max-temp-file-size"], BUFFERS),
    Annotation::nothing(&["client-body-buffer-size"], BUFFERS),
    Annotation::nothing(&["proxy-http-version"], CONNECTIONS),
    Annotation::nothing(&["connection-proxy-header"], CONNECTIONS),
    Annotation::nothing(&["service-upstream"], "endpoints are used directly"),
    Annotation::nothing(
        &["load-balance"],
        "of two random endpoints, the one with fewer requests is used",
    ),
    Annotation::nothing(&["affinity-mode"], "it is always persistent"),
    Annotation::nothing(&["affinity-canary-behavior"], "a canary has sessions of its own"),
    Annotation::nothing(
        &["session-cookie-conditional-samesite-none"],
        "browsers without SameSite=None are not in use",
    ),
    Annotation::nothing(&["preserve-trailing-slash"], "redirects keep the path as it is"),
    Annotation::nothing(
        &["disable-proxy-intercept-errors"],
        "only the statuses in custom-http-errors are replaced",
    ),
    Annotation::nothing(&["enable-global-auth"], "there is no global authentication"),
    Annotation::nothing(&["auth-cache-key"], "auth-url decides about each request"),
    Annotation::nothing(&["auth-cache-duration"], "auth-url decides about each request"),
    Annotation::nothing(&["auth-keepalive"], CONNECTIONS),
    Annotation::nothing(&["auth-keepalive-requests"], CONNECTIONS),
    Annotation::nothing(&["auth-keepalive-share-vars"], CONNECTIONS),
    Annotation::nothing(&["auth-keepalive-timeout"], CONNECTIONS),
    Annotation::nothing(&["ssl-ciphers"], CIPHERS),
    Annotation::nothing(&["ssl-prefer-server-ciphers"], CIPHERS),
    Annotation::nothing(&["proxy-ssl-ciphers"], CIPHERS),
    Annotation::nothing(&["proxy-ssl-protocols"], CIPHERS),
    Annotation::nothing(
        &["proxy-ssl-verify-depth"],
        "chains are limited by the authorities' own path lengths",
    ),
    Annotation::nothing(&["http2-push-preload"], "browsers do not support server push any more"),
    Annotation::nothing(
        &["enable-rewrite-log"],
        "millrace explain shows how a request is rewritten",
    ),
    Annotation::nothing(&["upstream-hash-by-subset-size"], "it belongs to upstream-hash-by-subset"),
];

const OFF: &[&str] = &["false", "off", "0", ""];

pub const UNSUPPORTED: &[Annotation] = &[
    Annotation::unsupported(
        &["auth-tls-match-cn"],
        &[],
        "names in clients' certificates are not compared",
    )
    .restricting(),
    Annotation::unsupported(&["auth-tls-error-page"], OFF, "the handshake fails"),
    Annotation::unsupported(&["auth-request-redirect"], OFF, "auth-url gets the original URL"),
    Annotation::unsupported(
        &["auth-always-set-cookie"],
        OFF,
        "cookies of auth-url are not passed on",
    ),
    Annotation::unsupported(
        &["auth-proxy-set-headers"],
        OFF,
        "headers for auth-url can't be added",
    ),
    Annotation::unsupported(&["custom-headers"], OFF, "use ingress.millrace.io/response-headers"),
    Annotation::unsupported(&["proxy-set-headers"], OFF, "use ingress.millrace.io/request-headers"),
    Annotation::unsupported(
        &["proxy-cookie-domain"],
        OFF,
        "cookies of endpoints are not rewritten",
    ),
    Annotation::unsupported(&["proxy-cookie-path"], OFF, "cookies of endpoints are not rewritten"),
    Annotation::unsupported(
        &["proxy-redirect-from"],
        &["off", "default"],
        "redirects of endpoints are not rewritten",
    ),
    Annotation::unsupported(
        &["proxy-redirect-to"],
        &["off", "default"],
        "redirects of endpoints are not rewritten",
    ),
    Annotation::unsupported(&["session-cookie-partitioned"], OFF, "the cookie is not partitioned"),
    Annotation::unsupported(
        &["upstream-hash-by-subset"],
        OFF,
        "a key has one endpoint, not a subset",
    ),
    Annotation::unsupported(&["relative-redirects"], OFF, REDIRECTS),
    Annotation::unsupported(&["use-port-in-redirects"], OFF, REDIRECTS),
    Annotation::unsupported(&["limit-rate"], OFF, "the speed of responses is not limited"),
    Annotation::unsupported(&["limit-rate-after"], OFF, "the speed of responses is not limited"),
    Annotation::unsupported(&["global-rate-limit"], OFF, GLOBAL_RATES).restricting(),
    Annotation::unsupported(&["global-rate-limit-window"], OFF, GLOBAL_RATES),
    Annotation::unsupported(&["global-rate-limit-key"], OFF, GLOBAL_RATES),
    Annotation::unsupported(&["global-rate-limit-ignored-cidrs"], OFF, GLOBAL_RATES),
    Annotation::unsupported(&["fastcgi-index"], OFF, "FastCGI is not supported"),
    Annotation::unsupported(&["fastcgi-params-configmap"], OFF, "FastCGI is not supported"),
    Annotation::unsupported(&["enable-modsecurity"], OFF, "there is no web application firewall")
        .restricting(),
    Annotation::unsupported(
        &["enable-owasp-core-rules"],
        OFF,
        "there is no web application firewall",
    )
    .restricting(),
    Annotation::unsupported(
        &["modsecurity-transaction-id"],
        OFF,
        "there is no web application firewall",
    ),
    Annotation::unsupported(&["enable-opentracing"], OFF, "use ingress.millrace.io/tracing"),
    Annotation::unsupported(
        &["opentracing-trust-incoming-span"],
        OFF,
        "use ingress.millrace.io/tracing",
    ),
];
