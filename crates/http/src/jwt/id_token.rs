//! Tokens by which an issuer says who has signed in (OpenID Connect Core 1.0, 2 and 3.1.3.7).

use std::slice;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use super::key_set::KeySet;
use super::token::SignedToken;
use super::token_error::TokenError;

/// What an ID token must say.
#[derive(Clone, Copy, Debug)]
pub struct IdTokenDemand<'a> {
    pub issuer: &'a str,
    /// The client that the user has signed in to: the only audience that counts.
    pub client: &'a Arc<str>,
    /// What the client has sent with this login, and with no other.
    pub nonce: &'a str,
    /// Claims, and the headers by which endpoints get them.
    pub claim_headers: &'a [(Arc<str>, HeaderName)],
}

impl IdTokenDemand<'_> {
    /// The headers of the claims that the token has. `now`: seconds since 1970.
    pub fn verify_id_token(
        &self,
        token: &str,
        keys: &KeySet,
        now: u64,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, TokenError> {
        let claims = SignedToken::parse(token.as_bytes())?.verify(keys)?;
        claims.check(self.issuer, slice::from_ref(self.client), now)?;
        claims.check_sign_in(self.client, self.nonce)?;
        claims.headers(self.claim_headers)
    }
}
