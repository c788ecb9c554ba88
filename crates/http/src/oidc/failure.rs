//! Why nobody has signed in.

use std::fmt::{self, Display};

use http::StatusCode;

use crate::jwt::TokenError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignInFailure {
    /// The provider cannot be used, and why.
    Provider(String),
    /// Too many other logins are running. The browser can come back with the same code.
    Busy,
    /// What the browser has brought is not valid for its login.
    Invalid(String),
    /// The ID token is not valid for the login.
    IdToken(TokenError),
    /// The claims do not fit into a cookie.
    TooManyClaims,
}

impl SignInFailure {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Provider(_) | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Invalid(_) | Self::IdToken(_) => StatusCode::BAD_REQUEST,
            Self::TooManyClaims => StatusCode::FORBIDDEN,
        }
    }
}

impl Display for SignInFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(why) | Self::Invalid(why) => f.write_str(why),
            Self::Busy => f.write_str("too many other logins are running"),
            Self::IdToken(error) => write!(f, "the ID token: {error}"),
            Self::TooManyClaims => f.write_str(
                "the claims are too long for a cookie; name fewer in oidc-claim-headers",
            ),
        }
    }
}

impl std::error::Error for SignInFailure {}
