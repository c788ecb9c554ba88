//! Reads the token of a request (RFC 6750), and writes the challenge for clients without a valid token.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};

use super::token_error::TokenError;
use crate::cookie::{find_cookies, remove_cookies};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenPlace {
    Authorization,
    Cookie,
}

/// The bearer token of a request, or that of the cookie if there is none.
pub(super) fn find_token<'h>(
    headers: &'h HeaderMap,
    cookie: Option<&str>,
) -> Result<(&'h [u8], TokenPlace), TokenError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(TokenError::Ambiguous);
    }
    if let Some(token) = value.and_then(bearer_token) {
        return Ok((token, TokenPlace::Authorization));
    }
    let mut cookies = cookie.into_iter().flat_map(|name| find_cookies(headers, name));
    let token = cookies.next().ok_or(TokenError::Missing)?;
    if cookies.next().is_some() {
        return Err(TokenError::Ambiguous);
    }
    Ok((token, TokenPlace::Cookie))
}

/// Whatever comes after the scheme: an endpoint could separate the two by more than the one blank that is allowed.
fn bearer_token(value: &HeaderValue) -> Option<&[u8]> {
    let value = value.as_bytes();
    let end = value.iter().position(|octet| octet.is_ascii_whitespace()).unwrap_or(value.len());
    let (scheme, token) = value.split_at(end);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| token.trim_ascii())
}

/// Removes all tokens except at one place.
pub(super) fn remove_tokens(
    headers: &mut HeaderMap,
    cookie: Option<&str>,
    kept: Option<TokenPlace>,
) {
    let has_bearer = headers.get(AUTHORIZATION).and_then(bearer_token).is_some();
    if has_bearer && kept != Some(TokenPlace::Authorization) {
        headers.remove(AUTHORIZATION);
    }
    if let Some(cookie) = cookie.filter(|_| kept != Some(TokenPlace::Cookie)) {
        remove_cookies(headers, cookie);
    }
}

/// `WWW-Authenticate` of the response. Clients without a token learn only that they need one (RFC 6750, 3.1).
pub fn bearer_challenge(realm: &str, error: TokenError) -> HeaderValue {
    let realm = realm.replace(['"', '\\'], "");
    let text = match error {
        TokenError::Missing => format!("Bearer realm=\"{realm}\""),
        error => {
            let code =
                if error == TokenError::Ambiguous { "invalid_request" } else { "invalid_token" };
            format!("Bearer realm=\"{realm}\", error=\"{code}\", error_description=\"{error}\"")
        }
    };
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("Bearer realm=\"\""))
}
