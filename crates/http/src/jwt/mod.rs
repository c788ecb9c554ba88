//! JSON Web Tokens (RFC 7519) that clients present as bearer tokens (RFC 6750), and the keys that verify them (RFC 7517).
//!
//! Invariants:
//! - Only signatures by private keys count. Secrets that issuer and verifier share (HS256) have no algorithm here, so no
//!   public key can be taken for one, and `none` is no algorithm.
//! - A token chooses neither the kind of its key nor where the key comes from: its header only has the algorithm and the
//!   name of a key that the issuer has published.
//! - Nothing of a token is used before its signature is verified, except its header.
//! - A member that a token's header or claims have twice, or a part that must be understood (`crit`), makes it invalid.
//!   Objects inside of claims are not looked into, and are no headers of endpoints.
//! - Endpoints get headers of claims, and tokens, from the proxy only.
//!
//! The work for a request is bounded: a token has at most [`MOST_TOKEN_OCTETS`], and at most four keys of at most 4096 bits
//! (exponent up to 65537) are tried; as many again if it has waited for changed keys.

mod algorithm;
mod bearer;
mod claims;
mod id_token;
mod key_set;
#[cfg(test)]
pub(crate) mod tests;
mod token;
mod token_error;

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use bearer::bearer_challenge;
use bearer::{TokenPlace, find_token, remove_tokens};
pub use id_token::IdTokenDemand;
pub use key_set::{InvalidKeySet, KeySet};
pub use token::MOST_TOKEN_OCTETS;
use token::SignedToken;
pub use token_error::TokenError;

use crate::published::DocumentAddress;

/// Which tokens a route accepts.
#[derive(Clone, Debug)]
pub struct JwtAuth {
    /// The claim `iss` must be this text.
    pub issuer: Arc<str>,
    /// The claim `aud` must name one of them.
    pub audiences: Vec<Arc<str>>,
    pub keys: KeySource,
    /// Cookie with the token of requests that have no bearer token.
    pub cookie: Option<Arc<str>>,
    /// Claims, and the headers by which endpoints get them.
    pub claim_headers: Vec<(Arc<str>, HeaderName)>,
    /// Whether endpoints get the token.
    pub forwards_token: bool,
    /// The realm in challenges: what the token is needed for.
    pub realm: Arc<str>,
}

/// Where the keys of an issuer are.
#[derive(Clone, Debug)]
pub enum KeySource {
    Fixed(Arc<KeySet>),
    Published(Box<DocumentAddress>),
}

/// The token of a request, of which nothing is verified.
pub struct PresentedToken<'h> {
    token: SignedToken<'h>,
    place: TokenPlace,
}

/// What a valid token adds to a request.
#[derive(Debug)]
pub struct VerifiedToken {
    claim_headers: Vec<(HeaderName, HeaderValue)>,
    place: TokenPlace,
}

impl JwtAuth {
    pub fn read_token<'h>(&self, headers: &'h HeaderMap) -> Result<PresentedToken<'h>, TokenError> {
        let (token, place) = find_token(headers, self.cookie.as_deref())?;
        Ok(PresentedToken { token: SignedToken::parse(token)?, place })
    }

    /// `now`: seconds since 1970.
    pub fn verify_token(
        &self,
        presented: &PresentedToken<'_>,
        keys: &KeySet,
        now: u64,
    ) -> Result<VerifiedToken, TokenError> {
        let claims = presented.token.verify(keys)?;
        claims.check(&self.issuer, &self.audiences, now)?;
        let claim_headers = claims.headers(&self.claim_headers)?;
        Ok(VerifiedToken { claim_headers, place: presented.place })
    }

    pub fn sets_header(&self, name: &HeaderName) -> bool {
        self.claim_headers.iter().any(|(_, known)| known == name)
    }

    /// Removes what a client could send in the name of a claim, and tokens that endpoints must not get: all that were not
    /// verified. `verified`: `None` if another check has admitted the request.
    pub fn strip_claims_and_tokens(
        &self,
        verified: Option<&VerifiedToken>,
        headers: &mut HeaderMap,
    ) {
        let kept = verified.filter(|_| self.forwards_token).map(|token| token.place);
        remove_tokens(headers, self.cookie.as_deref(), kept);
        for (_, name) in &self.claim_headers {
            headers.remove(name);
        }
    }
}

impl VerifiedToken {
    pub fn add_claim_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.claim_headers {
            headers.insert(name, value.clone());
        }
    }
}
