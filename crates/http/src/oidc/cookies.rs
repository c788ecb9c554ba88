//! The cookies of sessions and logins. Their prefix `__Host-` makes browsers take them only from this host over TLS, and
//! from no host beside or below it.

use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use super::sealing::CookieKeys;
use crate::cookie::{find_cookies, remove_cookies_if};

const PREFIX: &str = "__Host-millrace-";

pub(super) fn session_cookie_name(keys: &CookieKeys) -> String {
    format!("{PREFIX}session-{}", keys.suffix())
}

/// `slot`: tabs may sign in at the same time.
pub(super) fn login_cookie_name(keys: &CookieKeys, slot: u8) -> String {
    format!("{PREFIX}login-{}-{slot}", keys.suffix())
}

/// `Set-Cookie`. Other sites can link to a page of the session, and do nothing else with it. `value`: without octets that
/// a cookie can't have.
pub(super) fn set_cookie(name: &str, value: &str, age: Duration) -> HeaderValue {
    let text = format!(
        "{name}={value}; Path=/; Max-Age={}; Secure; HttpOnly; SameSite=Lax",
        age.as_secs()
    );
    // Names and values have letters, digits, `-` and `_` only.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// `Set-Cookie` that makes a browser forget a cookie.
pub(super) fn forget_cookie(name: &str) -> HeaderValue {
    set_cookie(name, "", Duration::ZERO)
}

/// The cookie of this name. `None` also if there are several: browsers have one at most, so somebody has got around the
/// prefix, and nobody can tell which one is theirs.
pub(super) fn find_only_cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let mut cookies = find_cookies(headers, name);
    cookies.next().filter(|_| cookies.next().is_none())
}

/// Removes the cookies of sessions and logins of all Ingresses. Most requests have none: this is quick for them.
pub fn remove_own_cookies(headers: &mut HeaderMap) {
    let may_have = |value: &HeaderValue| {
        std::str::from_utf8(value.as_bytes()).map_or(true, |text| text.contains(PREFIX))
    };
    if headers.get_all(COOKIE).iter().any(may_have) {
        remove_cookies_if(headers, |name| name.starts_with(PREFIX.as_bytes()));
    }
}
