//! Cookies of requests. Clients write them: names and values are any octets that a header may contain.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// The value of the first cookie of this name. HTTP/2 clients may send one header per cookie.
pub(crate) fn find_cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    find_cookies(headers, name).next()
}

/// The values of all cookies of this name.
pub(crate) fn find_cookies<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(COOKIE).iter().flat_map(pairs).filter_map(move |pair| value_of(pair, name))
}

/// Removes all cookies of this name.
pub(crate) fn remove_cookies(headers: &mut HeaderMap, name: &str) {
    remove_cookies_if(headers, |known| known == name.as_bytes());
}

/// Removes all cookies with such names.
pub(crate) fn remove_cookies_if(headers: &mut HeaderMap, is_removed: impl Fn(&[u8]) -> bool) {
    let all = || headers.get_all(COOKIE).iter().flat_map(pairs);
    let is_kept = |pair: &&[u8]| !split_pair(pair).is_some_and(|(name, _)| is_removed(name));
    if all().all(|pair| is_kept(&pair)) {
        return;
    }
    let kept: Vec<&[u8]> = all().filter(is_kept).collect();
    // They were a valid value, and so are they with what joins them.
    let kept = HeaderValue::from_bytes(kept.join(&b';').trim_ascii()).ok();
    match kept.filter(|kept| !kept.is_empty()) {
        Some(kept) => drop(headers.insert(COOKIE, kept)),
        None => drop(headers.remove(COOKIE)),
    }
}

/// Clients of HTTP/2 may send each cookie in a header of its own, which no other protocol allows (RFC 9113, 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    if lines.next().is_none() || lines.next().is_none() {
        return;
    }
    let lines: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    // Each was a valid value, and so are they with what joins them.
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn pairs(header: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    header.as_bytes().split(|octet| *octet == b';')
}

fn value_of<'a>(pair: &'a [u8], name: &str) -> Option<&'a [u8]> {
    split_pair(pair).and_then(|(known, value)| (known == name.as_bytes()).then_some(value))
}

fn split_pair(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = pair.iter().position(|octet| *octet == b'=')?;
    Some((pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookies: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(COOKIE, HeaderValue::from_bytes(cookie).unwrap());
        }
        headers
    }

    #[test]
    fn the_first_cookie_of_the_name_counts() {
        type Case = (&'static [&'static [u8]], Option<&'static [u8]>);
        let cases: [Case; 10] = [
            (&[b"a=1"], Some(b"1")),
            (&[b"b=2; a=1"], Some(b"1")),
            (&[b"b=2", b"a=1"], Some(b"1")),
            (&[b"a=1;a=2", b"a=3"], Some(b"1")),
            (&[b" a = 1 "], Some(b"1")),
            (&[b"a=x=y"], Some(b"x=y")),
            (&[b"a="], Some(b"")),
            (&[b"a"], None),
            (&[b"A=1; aa=1; =a"], None),
            (&[b";;;=;\xff\xfe=\x80;"], None),
        ];
        for (cookies, value) in cases {
            assert_eq!(find_cookie(&headers(cookies), "a"), value, "{cookies:?}");
        }
    }
    #[test]
    fn all_cookies_of_a_name_are_removed_and_no_others() {
        let cases: [(&[&[u8]], Option<&str>); 6] = [
            (&[b"a=1"], None),
            (&[b"b=2"], Some("b=2")),
            (&[b"b=2; a=1; c=3"], Some("b=2; c=3")),
            (&[b"a=1; b=2; a =3;a=4"], Some("b=2")),
            (&[b"a=1", b"b=2; aa=1"], Some("b=2; aa=1")),
            (&[b"a=1; A=2; x"], Some("A=2; x")),
        ];
        for (cookies, expected) in cases {
            let mut headers = headers(cookies);
            remove_cookies(&mut headers, "a");
            let left = headers.get(COOKIE).map(|left| left.to_str().unwrap());
            assert_eq!(left, expected, "{cookies:?}");
            assert!(find_cookie(&headers, "a").is_none());
        }
    }
}
