//! The cookies of sessions and logins. Their prefix `__Host-` makes browsers take them only from this host over TLS, and
//! from no host beside or below it.

use std::time::Duration;

use http::header::{COOKIE, SET_COOKIE};
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

/// The cookie of this name. `None` also if there are several: a browser has one at most, so another site has set one in
/// spite of the prefix, and which of them is the user's own cannot be told.
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

/// Removes what would set these cookies in the name of the proxy: endpoints, and servers that are asked, could sign users
/// in as somebody else. Most responses set no cookie.
pub fn remove_set_own_cookies(headers: &mut HeaderMap) {
    let all = headers.get_all(SET_COOKIE);
    if !all.iter().any(sets_own_cookie) {
        return;
    }
    let kept: Vec<_> = all.iter().filter(|value| !sets_own_cookie(value)).cloned().collect();
    headers.remove(SET_COOKIE);
    for value in kept {
        headers.append(SET_COOKIE, value);
    }
}

/// Browsers that do not know prefixes send a cookie without a name as its value alone.
fn sets_own_cookie(value: &HeaderValue) -> bool {
    let text = value.as_bytes();
    let is_padding = |octet: &u8| octet.is_ascii_whitespace() || *octet == b'=';
    let start = text.iter().position(|octet| !is_padding(octet)).unwrap_or(text.len());
    let name = text[start..].get(..PREFIX.len());
    name.is_some_and(|name| name.eq_ignore_ascii_case(PREFIX.as_bytes()))
}
