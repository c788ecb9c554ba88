//! Basic authentication (RFC 7617) against lines that htpasswd writes.
//!
//! Invariants:
//! - Passwords and hashes are in no log and no `Debug` output.
//! - The work for a request is bounded: hashes that cost too much are refused when they are read, and
//!   [`Users::check`] itself is cheap. What costs more is a [`Verification`], for a thread that is not needed by others.
//!   The caller bounds how many run at the same time, because anyone can ask for one.
//! - Comparisons take the same time for all passwords of the same length. Whether a user exists can be measured, as
//!   with nginx.

mod crypt64;
mod htpasswd;
mod md5_crypt;
mod scheme;
#[cfg(test)]
mod tests;
mod verified;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

pub use htpasswd::Problem;
use scheme::Scheme;
pub use scheme::UnusableHash;
pub use verified::VerifiedCredentials;

/// Of user and of password, as with htpasswd. The time of a hash grows with the password.
const MOST_OCTETS: usize = 255;

/// Users and the hashes of their passwords.
#[derive(Clone, Default)]
pub struct Users(HashMap<Arc<str>, Arc<Scheme>>);

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.0.len())
    }
}

/// Whether a request may pass.
pub enum Check {
    /// As this user.
    Allowed(Arc<str>),
    Refused,
    /// That takes up to a second to find out.
    Costly(Verification),
}

impl Users {
    pub fn check(&self, headers: &HeaderMap, verified: &VerifiedCredentials) -> Check {
        let Some(credentials) = read_credentials(headers) else {
            return Check::Refused;
        };
        let (name, password) = &credentials;
        let Some((user, scheme)) = self.0.get_key_value(name.as_str()) else {
            return Check::Refused;
        };
        if !scheme.is_costly() {
            return if scheme.verify(password) {
                Check::Allowed(Arc::clone(user))
            } else {
                Check::Refused
            };
        }
        let tag = verified.tag(user, scheme, password);
        let (user, scheme) = (Arc::clone(user), Arc::clone(scheme));
        match verified.recall(tag) {
            Some(true) => Check::Allowed(user),
            Some(false) => Check::Refused,
            None => Check::Costly(Verification { user, scheme, password: password.clone(), tag }),
        }
    }
}

/// A password that has yet to be verified.
pub struct Verification {
    user: Arc<str>,
    scheme: Arc<Scheme>,
    password: Vec<u8>,
    tag: verified::Tag,
}

impl Verification {
    /// The user, if it is the password. The result is remembered, so that later requests cost little.
    pub fn run(self, verified: &VerifiedCredentials) -> Option<Arc<str>> {
        // It may have been verified while this one waited.
        let known = verified.recall(self.tag);
        let is_valid = known.unwrap_or_else(|| self.scheme.verify(&self.password));
        verified.remember(self.tag, is_valid);
        is_valid.then_some(self.user)
    }
}

/// User and password of a request. A request with two headers has none: servers disagree about which one counts.
fn read_credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let encoded = rest.trim_ascii();
    if encoded.len() > (2 * MOST_OCTETS + 1).div_ceil(3) * 4 {
        return None;
    }
    let decoded = STANDARD.decode(encoded).ok()?;
    let colon = decoded.iter().position(|octet| *octet == b':')?;
    let (user, password) = (&decoded[..colon], &decoded[colon + 1..]);
    if user.len().max(password.len()) > MOST_OCTETS {
        return None;
    }
    Some((String::from_utf8(user.to_vec()).ok()?, password.to_vec()))
}
