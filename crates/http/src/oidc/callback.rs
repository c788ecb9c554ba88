//! Reads what a browser brings back from the provider: anybody can have written it.

use std::fmt;

use http::header::SET_COOKIE;
use http::{HeaderValue, Method, Response, StatusCode};

use super::auth::OidcAuth;
use super::cookies::{find_only_cookie, forget_cookie, login_cookie_name};
use super::login::{LOGIN_SECONDS, LoginSecrets, LoginState, REPLICA_SKEW, hash_login_cookie};
use super::responses::{redirect_to, respond_uncached, url_of_host};
use crate::host::Authority;
use crate::respond::Facts;

/// A login whose browser has returned with a code.
pub struct PendingLogin {
    pub(super) code: String,
    pub(super) verifier: String,
    pub(super) nonce: String,
    pub(super) redirect_uri: String,
    /// Whether the response has named the issuer.
    pub(super) names_issuer: bool,
    /// The URL that the browser wanted.
    pub(super) return_url: String,
    pub(super) host: String,
    pub(super) login_cookie: String,
}

impl fmt::Debug for PendingLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingLogin({:?})", self.return_url)
    }
}

impl PendingLogin {
    /// `Set-Cookie` that ends the login, whether it succeeds or not.
    pub fn forget_login(&self) -> HeaderValue {
        forget_cookie(&self.login_cookie)
    }
}

/// The parameters of a response (RFC 6749, 4.1.2; RFC 9207).
#[derive(Default)]
struct CallbackParameters {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    issuer: Option<String>,
}

impl CallbackParameters {
    /// `None`: one comes twice, so that it has no value.
    fn parse(query: &str) -> Option<Self> {
        let mut parameters = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "state" => &mut parameters.state,
                "code" => &mut parameters.code,
                "error" => &mut parameters.error,
                "iss" => &mut parameters.issuer,
                _ => continue,
            };
            if place.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        Some(parameters)
    }
}

impl OidcAuth {
    pub(super) fn find_pending_login(
        &self,
        facts: &Facts,
        authority: &Authority,
        now: u64,
    ) -> Result<PendingLogin, Response<()>> {
        let refused = || respond_uncached(StatusCode::BAD_REQUEST);
        let query = facts.query.filter(|_| facts.method == Method::GET).ok_or_else(refused)?;
        let parameters = CallbackParameters::parse(query).ok_or_else(refused)?;
        let state = parameters.state.ok_or_else(refused)?;
        let state = LoginState::open(&self.cookies, &authority.host, &state).ok_or_else(refused)?;
        let return_url = url_of_host(authority, &state.return_to);
        let name = login_cookie_name(&self.cookies, state.slot());
        let cookie = find_only_cookie(facts.headers, &name)
            .filter(|cookie| hash_login_cookie(cookie) == state.browser);
        let is_late = now >= state.begun.saturating_add(LOGIN_SECONDS);
        let Some(cookie) = cookie.filter(|_| !is_late && now + REPLICA_SKEW >= state.begun) else {
            // Another tab may have signed in, or the user has thought for too long: back to where a login begins. Where
            // cookies do not work, that would go on for ever.
            let is_signed_in = self.find_session(facts.headers, &authority.host, now).is_some();
            return Err(if is_signed_in || is_late { redirect_to(&return_url) } else { refused() });
        };
        let forgetting = |mut response: Response<()>| {
            response.headers_mut().append(SET_COOKIE, forget_cookie(&name));
            response
        };
        if parameters.issuer.as_ref().is_some_and(|issuer| **issuer != *self.issuer) {
            return Err(forgetting(refused()));
        }
        if parameters.error.is_some() {
            return Err(forgetting(respond_uncached(StatusCode::FORBIDDEN)));
        }
        let code = parameters.code.filter(|code| !code.is_empty());
        let code = code.ok_or_else(|| forgetting(refused()))?;
        let LoginSecrets { nonce, verifier } = LoginSecrets::derive(&self.cookies, cookie);
        Ok(PendingLogin {
            code,
            verifier,
            nonce,
            redirect_uri: self.redirect_uri(authority),
            names_issuer: parameters.issuer.is_some(),
            return_url,
            host: authority.host.to_string(),
            login_cookie: name,
        })
    }
}
