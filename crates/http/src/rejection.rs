//! Why a request gets no response of its endpoint. Proxy, access log and documentation have statuses and words from here.

use http::StatusCode;

use crate::request::Refusal;

/// Why the proxy answers a request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Proxy and endpoint could read the request differently.
    Malformed(Refusal),
    /// The source has too many requests at the same time.
    RequestsPerSource,
    /// The connection's handshake was made under other rules than those of the request's host.
    MisdirectedConnection,
    NoRule,
    /// The policy answers: to sources that it refuses, with redirects, and to preflights.
    Policy(StatusCode),
    /// A snippet returns this to everyone.
    Returned(StatusCode),
    ClientCertificate,
    /// The rule has no Service that could be asked.
    UnservedRule(StatusCode),
    RateLimit,
    BodyTooLarge,
    /// There is no valid token: 401. There are several: 400.
    Token(StatusCode),
    /// There are no keys to verify tokens with: their issuer does not publish them.
    TokenKeys,
    /// There is no session: 401, or a redirect to the provider.
    NoSession(StatusCode),
    /// The user is signing in or out, or has failed to.
    Oidc(StatusCode),
    /// The provider at which users sign in cannot be used.
    OidcProvider,
    Password,
    /// All threads that compute hashes of passwords are busy.
    PasswordBusy,
    /// The path, as it was matched, is none of a URI.
    Path,
    /// The path, as it was rewritten, is none of a URI.
    RewrittenPath,
    /// The endpoint needs a host, and the client's is none.
    Host,
    /// The authentication server refuses the request, with 401 or 403.
    ExternalAuth(StatusCode),
    /// The authentication server wants the client to sign in.
    SignIn(StatusCode),
    ExternalAuthFailed,
    NoUpstream,
    NoEndpoint,
    EndpointTlsSettings,
    EndpointConnect,
    EndpointTls,
    EndpointTimeout,
    EndpointClosed,
    EndpointProtocol,
    /// The client's body came too slowly.
    SlowBody,
    /// The client's body broke off.
    BrokenBody,
}

impl Rejection {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(refusal) => refusal.status(),
            Self::Policy(status)
            | Self::Returned(status)
            | Self::UnservedRule(status)
            | Self::Token(status)
            | Self::NoSession(status)
            | Self::Oidc(status)
            | Self::ExternalAuth(status)
            | Self::SignIn(status) => *status,
            Self::Path | Self::RewrittenPath | Self::Host | Self::BrokenBody => {
                StatusCode::BAD_REQUEST
            }
            Self::Password => StatusCode::UNAUTHORIZED,
            Self::ClientCertificate => StatusCode::FORBIDDEN,
            Self::NoRule => StatusCode::NOT_FOUND,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MisdirectedConnection => StatusCode::MISDIRECTED_REQUEST,
            Self::RequestsPerSource | Self::RateLimit => StatusCode::TOO_MANY_REQUESTS,
            Self::ExternalAuthFailed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::EndpointTlsSettings
            | Self::EndpointConnect
            | Self::EndpointTls
            | Self::EndpointClosed
            | Self::EndpointProtocol => StatusCode::BAD_GATEWAY,
            Self::TokenKeys
            | Self::OidcProvider
            | Self::PasswordBusy
            | Self::NoUpstream
            | Self::NoEndpoint => StatusCode::SERVICE_UNAVAILABLE,
            Self::EndpointTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The word for it in the access log.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(refusal) => refusal.reason(),
            Self::RequestsPerSource => "requests_per_source",
            Self::MisdirectedConnection => "misdirected",
            Self::NoRule => "no_route",
            Self::Policy(_) => "policy",
            Self::Returned(_) => "returned",
            Self::ClientCertificate => "client_certificate",
            Self::UnservedRule(_) => "rule",
            Self::RateLimit => "rate_limit",
            Self::BodyTooLarge => "body_too_large",
            Self::Token(_) => "jwt",
            Self::TokenKeys => "jwt_keys",
            Self::NoSession(_) => "oidc_session",
            Self::Oidc(_) => "oidc",
            Self::OidcProvider => "oidc_provider",
            Self::Password => "basic_auth",
            Self::PasswordBusy => "basic_auth_busy",
            Self::Path => "path",
            Self::RewrittenPath => "rewrite",
            Self::Host => "host",
            Self::ExternalAuth(_) => "external_auth",
            Self::SignIn(_) => "external_auth_sign_in",
            Self::ExternalAuthFailed => "external_auth_failed",
            Self::NoUpstream => "no_upstream",
            Self::NoEndpoint => "no_endpoint",
            Self::EndpointTlsSettings => "endpoint_tls_settings",
            Self::EndpointConnect => "endpoint_connect",
            Self::EndpointTls => "endpoint_tls",
            Self::EndpointTimeout => "endpoint_timeout",
            Self::EndpointClosed => "endpoint_closed",
            Self::EndpointProtocol => "endpoint_protocol",
            Self::SlowBody => "slow_body",
            Self::BrokenBody => "client_body",
        }
    }

    /// Whether nothing more is read from an HTTP/1 connection: what follows may be the rest of an attack, or of a body.
    pub fn closes_connection(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::BodyTooLarge | Self::SlowBody | Self::BrokenBody)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The words are those that this file and that of [`Refusal`](super::Refusal) have.
    #[test]
    fn operators_find_each_reason_in_the_documentation() {
        let code = concat!(include_str!("rejection.rs"), include_str!("request/refusal.rs"));
        let word_of = |line: &'static str| {
            let (_, word) = line.trim().strip_prefix("Self::")?.split_once("=> \"")?;
            Some(word.trim_end_matches("\","))
        };
        let reasons: BTreeSet<&str> =
            code.lines().filter_map(word_of).filter(|word| !word.contains(' ')).collect();

        let document = include_str!("../../../docs/ingress-operations.md");
        let table = document.split("| reason | status | what |").nth(1).unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let documented: BTreeSet<&str> =
            cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert_eq!(documented, reasons);
    }
}
