//! A browser, the proxy and the provider, without a network between them.

mod attacks;
mod documents;
mod logins;
mod logouts;
mod sessions;

use std::net::IpAddr;
use std::time::Duration;

use http::header::{ACCEPT, COOKIE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use serde_json::{Value, json};

use super::*;
use crate::host::Authority;
use crate::jwt::tests::signer::Signer;
use crate::jwt::{KeySet, TokenError};
use crate::published::DocumentAddress;
use crate::respond::Facts;
use crate::upstream::{UpstreamName, UpstreamProtocol};

const NOW: u64 = 1_800_000_000;
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const CALLBACK: &str = "/oauth2/callback";
const LOGOUT: &str = "/oauth2/logout";

fn upstream(service: &str) -> UpstreamName {
    UpstreamName {
        namespace: "shop".into(),
        service: service.into(),
        port: "443".into(),
        protocol: UpstreamProtocol::Https,
        tls: None,
    }
}

/// Users of `https://id.test`, with headers for three claims.
pub(crate) fn policy() -> OidcAuth {
    let claims = [("sub", "x-user"), ("email", "x-email"), ("groups", "x-groups")];
    let server =
        |host: &str, port| ProviderServer { host: host.into(), port, upstream: upstream(host) };
    OidcAuth {
        issuer: "https://id.test".into(),
        discovery: DocumentAddress {
            namespace: "shop".into(),
            upstream: upstream("id.test"),
            url: "https://id.test/.well-known/openid-configuration".parse().unwrap(),
        },
        servers: vec![server("id.test", 443), server("keys.test", 8443)],
        client: OidcClient { id: "shop web".into(), secret: "s:e/c".into() },
        scopes: "openid email".into(),
        redirect_path: CALLBACK.into(),
        logout_path: LOGOUT.into(),
        claim_headers: claims
            .map(|(claim, name)| (claim.into(), HeaderName::from_static(name)))
            .into(),
        session_lifetime: Duration::from_secs(3600),
        cookies: CookieKeys::derive(SECRET.as_bytes(), &["shop"]),
    }
}

fn document() -> Value {
    json!({
        "issuer": "https://id.test",
        "authorization_endpoint": "https://id.test/authorize?tenant=a",
        "token_endpoint": "https://id.test/token",
        "jwks_uri": "https://keys.test:8443/keys",
        "end_session_endpoint": "https://id.test/logout",
    })
}

fn provider() -> ProviderDocument {
    parse_document(document().to_string().as_bytes()).unwrap()
}

fn parse_document(document: &[u8]) -> Result<ProviderDocument, String> {
    ProviderDocument::parse(document, &policy().discovery.url)
}

/// A request as a browser makes it.
#[derive(Clone)]
struct Visit {
    method: Method,
    host: &'static str,
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    is_tls: bool,
}

impl Visit {
    fn to(path: &str) -> Self {
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (path, None),
        };
        let page = HeaderValue::from_static("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
        Self {
            method: Method::GET,
            host: "a.test",
            path: path.to_owned(),
            query,
            headers: HeaderMap::from_iter([(ACCEPT, page)]),
            is_tls: true,
        }
    }

    fn at(self, host: &'static str) -> Self {
        Self { host, ..self }
    }

    fn by(self, method: Method) -> Self {
        Self { method, ..self }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.append(name, HeaderValue::try_from(value).unwrap());
        self
    }

    fn facts<T>(&self, ask: impl FnOnce(&Facts) -> T) -> T {
        ask(&Facts {
            client: IpAddr::from([192, 0, 2, 1]),
            is_tls: self.is_tls,
            host_uses_tls: true,
            tls_port: 443,
            method: &self.method,
            authority: Some(&Authority::parse(self.host).unwrap()),
            path: &self.path,
            query: self.query.as_deref(),
            headers: &self.headers,
        })
    }

    fn decide(&self, policy: &OidcAuth, now: u64) -> SignInStep {
        self.facts(|facts| policy.decide_sign_in(facts, now))
    }

    /// Status and location of a response that needs nobody else.
    fn response(&self, policy: &OidcAuth, now: u64) -> (u16, String) {
        match self.decide(policy, now) {
            SignInStep::Respond(response) => (response.status().as_u16(), location(&response)),
            other => panic!("{other:?}"),
        }
    }
}

fn location(response: &Response<()>) -> String {
    let location = response.headers().get(LOCATION);
    location.map_or_else(String::new, |location| location.to_str().unwrap().to_owned())
}

/// Each as `name=value`, with its attributes.
fn cookies(response: &Response<()>) -> Vec<(String, String)> {
    let split = |value: &HeaderValue| {
        let (cookie, attributes) = value.to_str().unwrap().split_once("; ").unwrap();
        (cookie.to_owned(), attributes.to_owned())
    };
    response.headers().get_all(SET_COOKIE).iter().map(split).collect()
}

/// What a browser and the provider know of a login.
#[derive(Clone, Debug)]
struct BegunLogin {
    cookie: String,
    url: String,
    parameters: Vec<(String, String)>,
}

impl BegunLogin {
    /// `seed`: differs for each browser.
    fn begin(policy: &OidcAuth, visit: &Visit, seed: u8) -> Self {
        assert!(matches!(visit.decide(policy, NOW), SignInStep::BeginLogin));
        let random = LoginRandom { browser: [seed; 32], salt: [seed; 24] };
        let response =
            visit.facts(|facts| policy.begin_login(&provider(), facts, NOW, &random)).unwrap();
        assert_eq!(response.status(), 302);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let [(cookie, attributes)] = &cookies(&response)[..] else { panic!("one cookie") };
        assert_eq!(attributes, "Path=/; Max-Age=600; Secure; HttpOnly; SameSite=Lax");
        let location = location(&response);
        let (url, query) = location.split_once('?').unwrap();
        let parameters = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self { cookie: cookie.clone(), url: url.to_owned(), parameters }
    }

    fn parameter(&self, name: &str) -> &str {
        &self.parameters.iter().find(|(known, _)| known == name).unwrap().1
    }

    /// The browser comes back with this code.
    fn callback(&self, code: &str) -> Visit {
        let state = self.parameter("state");
        Visit::to(&format!("{CALLBACK}?code={code}&state={state}")).with("cookie", &self.cookie)
    }

    fn pending(&self, policy: &OidcAuth) -> PendingLogin {
        match self.callback("c0de").decide(policy, NOW) {
            SignInStep::FinishLogin(pending) => *pending,
            other => panic!("{other:?}"),
        }
    }

    fn claims(&self) -> Value {
        json!({
            "iss": "https://id.test", "aud": "shop web", "sub": "ann", "exp": NOW + 300,
            "iat": NOW, "nonce": self.parameter("nonce"), "groups": ["a", "b"],
        })
    }
}

/// The name and value of a session's cookie.
fn sign_in(
    policy: &OidcAuth,
    claims: &[(HeaderName, HeaderValue)],
) -> Result<String, SignInFailure> {
    let login = BegunLogin::begin(policy, &Visit::to("/"), 1).pending(policy);
    let response = policy.finish_login(&login, claims, NOW, [9; SALT_OCTETS])?;
    Ok(cookies(&response)[0].0.clone())
}

/// The headers that an endpoint would get. `None`: the request is not served.
fn served(policy: &OidcAuth, visit: &Visit, now: u64) -> Option<HeaderMap> {
    let SignInStep::Serve(signed_in) = visit.decide(policy, now) else { return None };
    let mut headers = visit.headers.clone();
    policy.strip_claims(&mut headers);
    remove_own_cookies(&mut headers);
    signed_in.add_claim_headers(&mut headers);
    Some(headers)
}

fn signed(signer: &Signer, claims: &Value) -> String {
    signer.token(&json!({"alg": "EdDSA", "kid": "a"}), claims)
}

fn keys_of(signer: &Signer) -> KeySet {
    KeySet::parse(json!({"keys": [signer.key("a")]}).to_string().as_bytes()).unwrap().0
}
