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
    if find_cookies(headers, name).next().is_none() {
        return;
    }
    let all = headers.get_all(COOKIE).iter().flat_map(pairs);
    let kept: Vec<&[u8]> = all.filter(|pair| value_of(pair, name).is_none()).collect();
    // They were a valid value, and so are they with what joins them.
    let kept = HeaderValue::from_bytes(kept.join(&b';').trim_ascii()).ok();
    match kept.filter(|kept| !kept.is_empty()) {
        Some(kept) => drop(headers.insert(COOKIE, kept)),
        None => drop(headers.remove(COOKIE)),
    }
}

fn pairs(header: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    header.as_bytes().split(|octet| *octet == b';')
}

fn value_of<'a>(pair: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let equals = pair.iter().position(|octet| *octet == b'=')?;
    let (key, value) = (&pair[..equals], &pair[equals + 1..]);
    (key.trim_ascii() == name.as_bytes()).then(|| value.trim_ascii())
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
