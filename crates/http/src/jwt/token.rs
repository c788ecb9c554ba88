//! A token in its compact form (RFC 7515): header, claims and signature.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::algorithm::Algorithm;
use super::claims::Claims;
use super::key_set::{KeySet, MOST_CANDIDATES, MOST_ID_OCTETS};
use super::token_error::TokenError;
use crate::unique_object::UniqueObject;

/// Of a token. Heads of requests are larger, so that a token and other headers fit.
pub const MOST_TOKEN_OCTETS: usize = 8 << 10;

/// A token whose signature is not verified.
pub(super) struct SignedToken<'t> {
    algorithm: Algorithm,
    key_id: Option<String>,
    /// Header and claims as they are signed.
    message: &'t str,
    claims: &'t str,
    signature: Vec<u8>,
}

impl<'t> SignedToken<'t> {
    pub fn parse(token: &'t [u8]) -> Result<Self, TokenError> {
        if token.len() > MOST_TOKEN_OCTETS {
            return Err(TokenError::TooLong);
        }
        let token = std::str::from_utf8(token).map_err(|_| TokenError::Malformed)?;
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(TokenError::Malformed)?;
        let header = UniqueObject::parse(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if header.get("crit").is_some() {
            return Err(TokenError::CriticalHeader);
        }
        let algorithm = header.text("alg").and_then(Algorithm::parse);
        let key_id = match header.get("kid") {
            None => None,
            Some(id) => {
                let id = id.as_str().filter(|id| id.len() <= MOST_ID_OCTETS);
                Some(id.ok_or(TokenError::Malformed)?.to_owned())
            }
        };
        Ok(Self {
            algorithm: algorithm.ok_or(TokenError::Algorithm)?,
            key_id,
            message,
            claims,
            signature: decode(signature)?,
        })
    }

    /// The claims, if one of the keys has signed them.
    pub fn verify(&self, keys: &KeySet) -> Result<Claims, TokenError> {
        let mut error = TokenError::UnknownKey;
        for candidate in
            keys.candidates(self.algorithm, self.key_id.as_deref()).take(MOST_CANDIDATES)
        {
            if self.algorithm.verify(candidate.key, self.message.as_bytes(), &self.signature) {
                return Claims::parse(&decode(self.claims)?);
            }
            if candidate.is_named {
                error = TokenError::Signature;
            }
        }
        Err(error)
    }
}

/// Without padding, and in the one form that each text has.
fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)
}
