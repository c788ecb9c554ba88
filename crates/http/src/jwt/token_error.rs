//! What can be wrong with a token, and the error code that clients get.

use std::fmt::{self, Display};

use http::StatusCode;

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
    /// It is the ID token of another login.
    Nonce,
    /// It is an ID token that another client has asked for.
    AuthorizedParty,
    /// A claim that endpoints get by a header cannot be written as one without change.
    ClaimHeader,
}

impl TokenError {
    /// Several tokens are a mistake of the request, whatever the tokens are (RFC 6750, 3.1).
    pub fn status(self) -> StatusCode {
        match self {
            Self::Ambiguous => StatusCode::BAD_REQUEST,
            _ => StatusCode::UNAUTHORIZED,
        }
    }
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
            Self::Nonce => "the token is that of another login",
            Self::AuthorizedParty => "another client has asked for the token",
            Self::ClaimHeader => "a claim cannot be sent as a header",
        })
    }
}

impl std::error::Error for TokenError {}
