//! Cookies of requests. Clients write them: names and values are any octets that a header may contain.

use http::HeaderMap;
use http::header::COOKIE;

/// The value of the first cookie of this name. HTTP/2 clients may send one header per cookie.
pub(crate) fn find_cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    headers.get_all(COOKIE).iter().find_map(|header| find_in(header.as_bytes(), name))
}

fn find_in<'a>(header: &'a [u8], name: &str) -> Option<&'a [u8]> {
    header.split(|octet| *octet == b';').find_map(|pair| {
        let equals = pair.iter().position(|octet| *octet == b'=')?;
        let (key, value) = (&pair[..equals], &pair[equals + 1..]);
        (key.trim_ascii() == name.as_bytes()).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
}
