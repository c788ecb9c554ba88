//! A token in its compact form (RFC 7515): header, claims and signature.

use std::fmt::{self, Display};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::MOST_TOKEN_OCTETS;
use super::algorithm::Algorithm;
use super::claims::Claims;
use super::key_set::{KeySet, MOST_CANDIDATES};
use super::unique_object::UniqueObject;

/// Why a request has no valid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    Missing,
    /// There are several, of which the endpoint could use another one.
    Ambiguous,
    TooLong,
    Malformed,
    Algorithm,
    /// Its header has a part that must be understood, and is not.
    CriticalHeader,
    /// No key fits that the issuer has published.
    UnknownKey,
    Signature,
    /// It has no time until which it is valid, or one that is no number.
    Times,
    Expired,
    NotYetValid,
    Issuer,
    Audience,
    /// A claim that endpoints get by a header cannot be written as one without change.
    ClaimHeader,
}

impl Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "there is no token",
            Self::Ambiguous => "there are several tokens",
            Self::TooLong => "the token is too long",
            Self::Malformed => "the token is malformed",
            Self::Algorithm => "the algorithm is not accepted",
            Self::CriticalHeader => "the token has critical headers",
            Self::UnknownKey => "the key is unknown",
            Self::Signature => "the signature is invalid",
            Self::Times => "exp, nbf or iat is invalid",
            Self::Expired => "the token has expired",
            Self::NotYetValid => "the token is not valid yet",
            Self::Issuer => "the issuer is another one",
            Self::Audience => "the token is for another audience",
            Self::ClaimHeader => "a claim cannot be sent as a header",
        })
    }
}

impl std::error::Error for TokenError {}

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
            Some(id) => Some(id.as_str().ok_or(TokenError::Malformed)?.to_owned()),
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
