//! An OpenID provider, and browsers that sign in at it.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderName, Uri};
use lb_http::RoutePolicy;
use lb_http::oidc::{CookieKeys, OidcAuth, OidcClient, ProviderServer};
use lb_http::published::DocumentAddress;
use lb_http::upstream::UpstreamProtocol;
use lb_proxy::{Config, ProxySettings};
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::endpoint::{Endpoint, Request, Then, respond, respond_with};
use crate::world::{HOST, PATIENCE, World, name, policy_config, upstream};

/// What the provider does with a request instead of what it should.
type Fault = Arc<dyn Fn(&Request, &mut TcpStream) -> Then + Send + Sync>;

/// A code that was issued, and for what.
#[derive(Clone)]
struct IssuedCode {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

/// How somebody makes an ID token who has not the provider's key.
#[derive(Clone, Copy, Debug)]
pub enum Forgery {
    /// `alg: none`
    Unsigned,
    /// Signed with the public key, as if it were a secret that both sides have.
    PublicKeyAsSecret,
    /// Signed with a key of one's own, which the token brings along.
    OwnKey,
}

struct ProviderState {
    key: Ed25519KeyPair,
    forgery: Option<Forgery>,
    codes: HashMap<String, IssuedCode>,
    /// By path.
    faults: HashMap<String, Fault>,
    /// Whether PKCE is checked.
    checks_verifier: bool,
    /// In place of those of ID tokens.
    claims: Vec<(String, Value)>,
}

#[derive(Clone)]
pub struct Provider {
    pub endpoint: Endpoint,
    state: Arc<Mutex<ProviderState>>,
}

fn new_key() -> Ed25519KeyPair {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap()
}

impl Provider {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(ProviderState {
            key: new_key(),
            forgery: None,
            codes: HashMap::new(),
            faults: HashMap::new(),
            checks_verifier: true,
            claims: Vec::new(),
        }));
        let shared = state.clone();
        let endpoint = Endpoint::start(move |request, stream| {
            let path = request.line.split(' ').nth(1).unwrap();
            let fault = shared.lock().unwrap().faults.get(path).cloned();
            if let Some(fault) = fault {
                return fault(request, stream);
            }
            let mut state = shared.lock().unwrap();
            match path {
                "/.well-known/openid-configuration" => respond(stream, &document().to_string()),
                "/keys" => respond(stream, &state.published_keys()),
                "/token" => match state.exchange(request) {
                    Ok(reply) => respond(stream, &reply),
                    Err(error) => {
                        let body = json!({"error": error}).to_string();
                        respond_with(stream, "400 Bad Request", &body);
                    }
                },
                _ => respond_with(stream, "404 Not Found", ""),
            }
            Then::Keep
        });
        Self { endpoint, state }
    }

    /// All requests for this path get it.
    pub fn fail(
        &self,
        path: &str,
        fault: impl Fn(&Request, &mut TcpStream) -> Then + Send + Sync + 'static,
    ) {
        self.state.lock().unwrap().faults.insert(path.to_owned(), Arc::new(fault));
    }

    pub fn change_key(&self) {
        self.state.lock().unwrap().key = new_key();
    }

    /// In place of its own ID tokens.
    pub fn forge(&self, forgery: Forgery) {
        self.state.lock().unwrap().forgery = Some(forgery);
    }

    pub fn forget_pkce(&self) {
        self.state.lock().unwrap().checks_verifier = false;
    }

    pub fn change_claim(&self, name: &str, value: Value) {
        self.state.lock().unwrap().claims.push((name.to_owned(), value));
    }

    /// Number of requests for a path.
    pub fn asked(&self, path: &str) -> usize {
        let requests = self.endpoint.requests();
        requests.iter().filter(|request| request.line.split(' ').nth(1) == Some(path)).count()
    }

    /// A user signs in at the page that the browser was sent to. Returns the code and the state.
    pub fn sign_in(&self, location: &str) -> (String, String) {
        let url: Uri = location.parse().unwrap();
        assert_eq!(url.host(), Some("id.test"));
        let parameter = |name: &str| query_value(url.query().unwrap(), name);
        assert_eq!(parameter("code_challenge_method"), "S256");
        let mut state = self.state.lock().unwrap();
        let code = format!("code-{}", state.codes.len());
        let issued = IssuedCode {
            nonce: parameter("nonce"),
            challenge: parameter("code_challenge"),
            redirect_uri: parameter("redirect_uri"),
        };
        state.codes.insert(code.clone(), issued);
        (code, parameter("state"))
    }
}

impl ProviderState {
    fn key_id(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.key.public_key().as_ref()[..6])
    }

    fn published_keys(&self) -> String {
        let point = URL_SAFE_NO_PAD.encode(self.key.public_key());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": self.key_id(), "x": point});
        json!({"keys": [key]}).to_string()
    }

    fn exchange(&mut self, request: &Request) -> Result<String, &'static str> {
        assert!(request.line.starts_with("POST "));
        let credentials = format!("Basic {}", STANDARD.encode("shop:s3cret"));
        if request.header("authorization") != Some(&credentials) {
            return Err("invalid_client");
        }
        let form = String::from_utf8(request.body.clone()).unwrap();
        let code = self.codes.remove(&query_value(&form, "code")).ok_or("invalid_grant")?;
        let verifier = query_value(&form, "code_verifier");
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let is_bound = !self.checks_verifier || challenge == code.challenge;
        if !is_bound || query_value(&form, "redirect_uri") != code.redirect_uri {
            return Err("invalid_grant");
        }
        Ok(json!({
            "access_token": "secret-access-token", "token_type": "Bearer",
            "id_token": self.id_token(&code.nonce),
        })
        .to_string())
    }

    fn id_token(&self, nonce: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({
            "iss": "https://id.test", "aud": "shop", "sub": "ann", "nonce": nonce,
            "iat": now, "exp": now + 86_400,
        });
        for (name, value) in &self.claims {
            claims[name] = value.clone();
        }
        let encode = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let own = new_key();
        let point = |key: &Ed25519KeyPair| URL_SAFE_NO_PAD.encode(key.public_key());
        let header = match self.forgery {
            None => json!({"alg": "EdDSA", "kid": self.key_id()}),
            Some(Forgery::Unsigned) => json!({"alg": "none", "kid": self.key_id()}),
            Some(Forgery::PublicKeyAsSecret) => json!({"alg": "HS256", "kid": self.key_id()}),
            Some(Forgery::OwnKey) => json!({
                "alg": "EdDSA", "kid": self.key_id(),
                "jwk": {"kty": "OKP", "crv": "Ed25519", "kid": self.key_id(), "x": point(&own)},
            }),
        };
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = match self.forgery {
            None => self.key.sign(message.as_bytes()).as_ref().to_vec(),
            Some(Forgery::Unsigned) => Vec::new(),
            Some(Forgery::PublicKeyAsSecret) => {
                let secret = hmac::Key::new(hmac::HMAC_SHA256, self.key.public_key().as_ref());
                hmac::sign(&secret, message.as_bytes()).as_ref().to_vec()
            }
            Some(Forgery::OwnKey) => own.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn document() -> Value {
    json!({
        "issuer": "https://id.test",
        "authorization_endpoint": "https://id.test/authorize",
        "token_endpoint": "https://id.test/token",
        "jwks_uri": "https://id.test/keys",
        "end_session_endpoint": "https://id.test/end",
    })
}

/// The value of a parameter, decoded: only what the tests send.
pub fn query_value(query: &str, name: &str) -> String {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(known, _)| *known == name).map(|(_, value)| value);
    let value = value.unwrap_or_else(|| panic!("no {name} in {query}"));
    value.replace("%3A", ":").replace("%2F", "/").replace('+', " ")
}

/// Users of the provider, who sign in at routes of this namespace.
pub fn sign_in_policy(namespace: &str) -> RoutePolicy {
    let id = name("id", UpstreamProtocol::Http1);
    let oidc = OidcAuth {
        issuer: "https://id.test".into(),
        discovery: DocumentAddress {
            namespace: namespace.into(),
            upstream: id.clone(),
            url: "https://id.test/.well-known/openid-configuration".parse().unwrap(),
        },
        servers: vec![ProviderServer { host: "id.test".into(), port: 443, upstream: id }],
        client: OidcClient { id: "shop".into(), secret: "s3cret".into() },
        scopes: "openid".into(),
        redirect_path: "/oauth2/callback".into(),
        logout_path: "/oauth2/logout".into(),
        claim_headers: vec![
            ("sub".into(), HeaderName::from_static("x-user")),
            ("role".into(), HeaderName::from_static("x-role")),
        ],
        session_lifetime: Duration::from_secs(3600),
        cookies: CookieKeys::derive(b"0123456789abcdef0123456789abcdef", &[namespace]),
    };
    RoutePolicy { oidc: Some(Arc::new(oidc)), ..RoutePolicy::default() }
}

/// A route for users of the provider.
pub fn sign_in_config(provider: &Provider, endpoint: &Endpoint) -> Config {
    let mut config = policy_config(&[endpoint.address], sign_in_policy("default"));
    let id = name("id", UpstreamProtocol::Http1);
    config.upstreams.insert(id, upstream(&[provider.endpoint.address]));
    config
}

/// The proxy in front of it, which the world trusts, has terminated TLS. Providers may take their time: tests that wait
/// for a response would otherwise depend on how busy the machine is.
pub fn behind_tls(config: Config) -> World {
    World::with(config, |settings| {
        trust_proxy_in_front(settings);
        settings.limits.issuer_response = PATIENCE;
    })
}

/// As [`behind_tls`], with a provider that has as much time as it has without tests.
pub fn behind_tls_for_hanging_provider(config: Config) -> World {
    World::with(config, trust_proxy_in_front)
}

fn trust_proxy_in_front(settings: &mut ProxySettings) {
    settings.forwarding.trusted = vec!["127.0.0.0/8".parse().unwrap()];
    settings.limits.key_fetch_interval = Duration::ZERO;
}

/// A browser with its cookies of one host.
#[derive(Clone, Default)]
pub struct Browser {
    cookies: Vec<(String, String)>,
}

impl Browser {
    pub fn cookie_header(&self) -> String {
        self.cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join("; ")
    }

    pub fn visit(&mut self, proxy: SocketAddr, path: &str) -> Response {
        self.send(proxy, HOST, path, "Accept: text/html\r\n")
    }

    pub fn send(&mut self, proxy: SocketAddr, host: &str, path: &str, headers: &str) -> Response {
        let mut client = Client::connect(proxy);
        let cookies = match &*self.cookie_header() {
            "" => String::new(),
            cookies => format!("Cookie: {cookies}\r\n"),
        };
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Proto: https\r\n{cookies}{headers}\r\n"
        ));
        let response = client.response();
        for (name, value) in &response.headers {
            if name.eq_ignore_ascii_case("set-cookie") {
                self.keep_cookie(value);
            }
        }
        response
    }

    fn keep_cookie(&mut self, set: &str) {
        let (cookie, attributes) = set.split_once("; ").unwrap_or((set, ""));
        let (name, value) = cookie.split_once('=').unwrap();
        self.cookies.retain(|(known, _)| known != name);
        if !attributes.contains("Max-Age=0") {
            self.cookies.push((name.to_owned(), value.to_owned()));
        }
    }

    /// The page of the provider where a login begins.
    pub fn begin(&mut self, proxy: SocketAddr, path: &str) -> String {
        let response = self.visit(proxy, path);
        assert_eq!(response.status, 302);
        response.header("location").unwrap().to_owned()
    }

    pub fn callback(&mut self, proxy: SocketAddr, code: &str, state: &str) -> Response {
        self.visit(proxy, &format!("/oauth2/callback?code={code}&state={state}"))
    }

    /// Signs in, as far as that is possible.
    pub fn sign_in(&mut self, proxy: SocketAddr, provider: &Provider, path: &str) -> Response {
        let page = self.begin(proxy, path);
        let (code, state) = provider.sign_in(&page);
        self.callback(proxy, &code, &state)
    }
}
