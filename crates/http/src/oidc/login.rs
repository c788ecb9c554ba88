//! Sends a browser to the provider.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use form_urlencoded::Serializer;
use http::Response;
use http::header::SET_COOKIE;
use ring::digest::{SHA256, digest};

use super::auth::OidcAuth;
use super::cookies::{login_cookie_name, set_cookie};
use super::failure::SignInFailure;
use super::provider::ProviderDocument;
use super::responses::{redirect_to, url_of_host, with_query};
use super::sealing::{CookieKeys, SALT_OCTETS, SealedPurpose};
use crate::host::Authority;
use crate::respond::Facts;

/// From the redirect to the provider to the browser's return.
pub const LOGIN_SECONDS: u64 = 600;
/// By which the clocks of replicas may differ.
pub(super) const REPLICA_SKEW: u64 = 60;
/// Cookies of logins that a browser has at the same time.
const SLOTS: u8 = 8;
/// Of path and query to which a browser returns: the provider gets them back in a URL.
const MOST_TARGET_OCTETS: usize = 1024;

/// Random octets that nobody knows.
pub struct LoginRandom {
    /// What the browser's cookie has.
    pub browser: [u8; 32],
    pub salt: [u8; SALT_OCTETS],
}

/// What the parameter `state` has, sealed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoginState {
    /// Seconds since 1970.
    pub begun: u64,
    /// The hash of the browser's cookie.
    pub browser: String,
    /// Path and query.
    pub return_to: String,
}

/// What belongs to one login and is known only to who has its cookie and the keys.
pub(super) struct LoginSecrets {
    pub nonce: String,
    /// Of PKCE.
    pub verifier: String,
}

impl LoginSecrets {
    pub fn derive(keys: &CookieKeys, cookie: &[u8]) -> Self {
        let derive = |purpose| keys.derive_text(purpose, cookie);
        Self { nonce: derive("nonce"), verifier: derive("verifier") }
    }
}

impl LoginState {
    pub fn open(keys: &CookieKeys, host: &str, text: &str) -> Option<Self> {
        let content = keys.open(SealedPurpose::Login, host, text.as_bytes())?;
        let (begun, browser, return_to) = serde_json::from_slice(&content).ok()?;
        Some(Self { begun, browser, return_to })
    }

    fn seal(&self, keys: &CookieKeys, host: &str, salt: [u8; SALT_OCTETS]) -> Option<String> {
        let content = serde_json::to_vec(&(self.begun, &self.browser, &self.return_to)).ok()?;
        Some(keys.seal(SealedPurpose::Login, host, content, salt))
    }

    /// Number of the cookie.
    pub fn slot(&self) -> u8 {
        self.browser.bytes().next().map_or(0, |octet| octet % SLOTS)
    }
}

pub(super) fn hash_login_cookie(cookie: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, cookie))
}

impl OidcAuth {
    /// Redirects a browser to the provider. `now`: seconds since 1970.
    pub fn begin_login(
        &self,
        provider: &ProviderDocument,
        facts: &Facts,
        now: u64,
        random: &LoginRandom,
    ) -> Result<Response<()>, SignInFailure> {
        self.check_issuer(provider)?;
        let unusable = || SignInFailure::Invalid("the request has no host".to_owned());
        let authority = facts.authority.ok_or_else(unusable)?;
        let cookie = URL_SAFE_NO_PAD.encode(random.browser);
        let state = LoginState {
            begun: now,
            browser: hash_login_cookie(cookie.as_bytes()),
            return_to: find_return_target(facts),
        };
        let sealed =
            state.seal(&self.cookies, &authority.host, random.salt).ok_or_else(unusable)?;
        let secrets = LoginSecrets::derive(&self.cookies, cookie.as_bytes());
        let challenge = digest(&SHA256, secrets.verifier.as_bytes());
        let query = Serializer::new(String::new())
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client.id)
            .append_pair("redirect_uri", &self.redirect_uri(authority))
            .append_pair("scope", &self.scopes)
            .append_pair("state", &sealed)
            .append_pair("nonce", &secrets.nonce)
            .append_pair("code_challenge", &URL_SAFE_NO_PAD.encode(challenge))
            .append_pair("code_challenge_method", "S256")
            .finish();
        let name = login_cookie_name(&self.cookies, state.slot());
        let mut response = redirect_to(&with_query(&provider.authorization, &query));
        let age = Duration::from_secs(LOGIN_SECONDS);
        response.headers_mut().append(SET_COOKIE, set_cookie(&name, &cookie, age));
        Ok(response)
    }

    /// The URL of [`OidcAuth::redirect_path`], which the provider knows.
    pub(super) fn redirect_uri(&self, authority: &Authority) -> String {
        url_of_host(authority, &self.redirect_path)
    }
}

/// Where the browser wanted to go. What a URL cannot have, or browsers leave out of it, leads to the first page.
fn find_return_target(facts: &Facts) -> String {
    let target = match facts.query {
        Some(query) => format!("{}?{query}", facts.path),
        None => facts.path.to_owned(),
    };
    let is_plain = |octet: u8| octet.is_ascii_graphic() && octet != b'\\';
    let is_good = target.starts_with('/')
        && target.len() <= MOST_TARGET_OCTETS
        && target.bytes().all(is_plain);
    if is_good { target } else { "/".to_owned() }
}
