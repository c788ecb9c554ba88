//! What a verified token says (RFC 7519, 4.1).

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use serde_json::{Number, Value};

use super::token_error::TokenError;
use crate::unique_object::UniqueObject;

/// Seconds by which the clocks of issuer and proxy may differ.
pub(super) const CLOCK_SKEW: f64 = 60.0;

pub(super) struct Claims(UniqueObject);

impl Claims {
    pub fn parse(json: &[u8]) -> Result<Self, TokenError> {
        UniqueObject::parse(json).map(Self).map_err(|_| TokenError::Malformed)
    }

    /// `now`: seconds since 1970. A token without an end would be valid for ever, so `exp` is required.
    pub fn check(&self, issuer: &str, audiences: &[Arc<str>], now: u64) -> Result<(), TokenError> {
        // Exact for the next 285 million years.
        let now = now as f64;
        let end = self.time("exp")?.ok_or(TokenError::Times)?;
        if now >= end + CLOCK_SKEW {
            return Err(TokenError::Expired);
        }
        for begin in [self.time("nbf")?, self.time("iat")?].into_iter().flatten() {
            if now + CLOCK_SKEW < begin {
                return Err(TokenError::NotYetValid);
            }
        }
        if self.0.text("iss") != Some(issuer) {
            return Err(TokenError::Issuer);
        }
        if !self.is_for(audiences) {
            return Err(TokenError::Audience);
        }
        Ok(())
    }

    /// Whether the token is for this login of this client. One that is for others as well must say that this client has
    /// asked for it.
    pub fn check_sign_in(&self, client: &str, nonce: &str) -> Result<(), TokenError> {
        if self.0.text("nonce") != Some(nonce) {
            return Err(TokenError::Nonce);
        }
        let is_for_others =
            self.0.get("aud").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        match self.0.get("azp") {
            None if !is_for_others => Ok(()),
            Some(Value::String(party)) if party == client => Ok(()),
            _ => Err(TokenError::AuthorizedParty),
        }
    }

    fn time(&self, name: &str) -> Result<Option<f64>, TokenError> {
        let number = |value: &Value| value.as_f64().ok_or(TokenError::Times);
        self.0.get(name).map(number).transpose()
    }

    /// `aud` is one text, or several.
    fn is_for(&self, audiences: &[Arc<str>]) -> bool {
        let is_known = |name: &str| audiences.iter().any(|audience| **audience == *name);
        match self.0.get("aud") {
            Some(Value::String(name)) => is_known(name),
            Some(Value::Array(names)) => {
                names.iter().all(Value::is_string)
                    && names.iter().filter_map(Value::as_str).any(is_known)
            }
            _ => false,
        }
    }

    /// The headers of the claims that the token has.
    pub fn headers(
        &self,
        wanted: &[(Arc<str>, HeaderName)],
    ) -> Result<Vec<(HeaderName, HeaderValue)>, TokenError> {
        let mut headers = Vec::new();
        for (claim, name) in wanted {
            let value = match self.0.get(claim) {
                None | Some(Value::Null) => continue,
                Some(value) => header_text(value).ok_or(TokenError::ClaimHeader)?,
            };
            // Blanks around a value are not a part of it for the endpoint.
            if value.trim_matches([' ', '\t']) != value {
                return Err(TokenError::ClaimHeader);
            }
            let value = HeaderValue::try_from(value).map_err(|_| TokenError::ClaimHeader)?;
            headers.push((name.clone(), value));
        }
        Ok(headers)
    }
}

/// Lists are joined by commas, unless an item has one itself: it would become two. An object has no text.
fn header_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) => Some(value.to_string()),
        Value::Number(number) => integer_text(number),
        Value::Array(items) => {
            let item = |item: &Value| match item {
                Value::String(text) => {
                    let is_whole = !text.contains(',') && text.trim() == text && !text.is_empty();
                    is_whole.then(|| text.clone())
                }
                Value::Number(number) => integer_text(number),
                _ => None,
            };
            let items: Option<Vec<String>> = items.iter().map(item).collect();
            Some(items?.join(","))
        }
        Value::Null | Value::Object(_) => None,
    }
}

/// Other numbers have several texts, and a large integer would be rounded to that of another user.
fn integer_text(number: &Number) -> Option<String> {
    (number.is_i64() || number.is_u64()).then(|| number.to_string())
}
