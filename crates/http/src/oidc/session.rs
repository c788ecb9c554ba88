//! Sessions: what a browser's cookie says about who has signed in.

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::auth::OidcAuth;
use super::callback::PendingLogin;
use super::cookies::{find_only_cookie, session_cookie_name, set_cookie};
use super::failure::SignInFailure;
use super::login::REPLICA_SKEW;
use super::responses::redirect_to;
use super::sealing::{SALT_OCTETS, SealedPurpose};
use crate::jwt::{IdTokenDemand, KeySet, TokenError};

/// Browsers take cookies of 4096 octets, with their names.
const MOST_COOKIE_OCTETS: usize = 4000;

/// Who has signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    claim_headers: Vec<(HeaderName, HeaderValue)>,
}

impl SignedIn {
    pub fn add_claim_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.claim_headers {
            headers.insert(name, value.clone());
        }
    }
}

impl OidcAuth {
    /// The claims of an ID token, if it is that of the login. `now`: seconds since 1970.
    pub fn verify_id_token(
        &self,
        login: &PendingLogin,
        token: &str,
        keys: &KeySet,
        now: u64,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, TokenError> {
        let demand = IdTokenDemand {
            issuer: &self.issuer,
            client: &self.client.id,
            nonce: &login.nonce,
            claim_headers: &self.claim_headers,
        };
        demand.verify_id_token(token, keys, now)
    }

    /// Begins the session, and sends the browser where it wanted to go. `salt`: random, and never used before.
    pub fn finish_login(
        &self,
        login: &PendingLogin,
        claims: &[(HeaderName, HeaderValue)],
        now: u64,
        salt: [u8; SALT_OCTETS],
    ) -> Result<Response<()>, SignInFailure> {
        let text_of = |(_, name): &(_, HeaderName)| {
            let value = claims.iter().find(|(known, _)| known == name);
            value.and_then(|(_, value)| std::str::from_utf8(value.as_bytes()).ok())
        };
        let claims: Vec<Option<&str>> = self.claim_headers.iter().map(text_of).collect();
        let content = serde_json::to_vec(&(now, claims)).unwrap_or_default();
        let sealed = self.cookies.seal(SealedPurpose::Session, &login.host, content, salt);
        let name = session_cookie_name(&self.cookies);
        if name.len() + sealed.len() > MOST_COOKIE_OCTETS {
            return Err(SignInFailure::TooManyClaims);
        }
        let mut response = redirect_to(&login.return_url);
        let cookie = set_cookie(&name, &sealed, self.session_lifetime);
        response.headers_mut().append(SET_COOKIE, cookie);
        Ok(response)
    }

    /// The session of a request.
    pub(super) fn find_session(
        &self,
        headers: &HeaderMap,
        host: &str,
        now: u64,
    ) -> Option<SignedIn> {
        let cookie = find_only_cookie(headers, &session_cookie_name(&self.cookies))?;
        if cookie.len() > MOST_COOKIE_OCTETS {
            return None;
        }
        let content = self.cookies.open(SealedPurpose::Session, host, cookie)?;
        let (begun, claims): (u64, Vec<Option<String>>) = serde_json::from_slice(&content).ok()?;
        let end = begun.saturating_add(self.session_lifetime.as_secs());
        if now >= end || now.saturating_add(REPLICA_SKEW) < begun {
            return None;
        }
        let mut claim_headers = Vec::new();
        for ((_, name), text) in self.claim_headers.iter().zip(claims) {
            if let Some(text) = text {
                claim_headers.push((name.clone(), HeaderValue::try_from(text).ok()?));
            }
        }
        Some(SignedIn { claim_headers })
    }
}
