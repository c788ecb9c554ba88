//! `Forwarded` (RFC 7239), and the addresses in it and in `X-Forwarded-For`.

use std::fmt::Write;
use std::iter;
use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::FORWARDED;

use super::text;

/// What one proxy has added, in reverse order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Element<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Element<'a> {
    pub fn get(&self, wanted: &str) -> Option<&'a str> {
        self.0
            .iter()
            .rev()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| *value)
    }

    /// Not if the proxy hides it (`unknown`, `_secret`).
    pub fn client(&self) -> Option<IpAddr> {
        self.get("for").and_then(forwarded_address)
    }
}

/// The elements of all lines, the one of the nearest proxy first. Each line is read from its end: what the client wrote
/// at its beginning cannot hide what a proxy has appended. What cannot be read ends the list, because it is not known
/// which proxy wrote the elements before it.
pub(crate) fn forwarded_elements(headers: &HeaderMap) -> impl Iterator<Item = Element<'_>> {
    let lines = headers.get_all(FORWARDED).iter().rev();
    lines.flat_map(|line| from_end(line.as_bytes())).map_while(|element| element)
}

/// The elements of a line, the last one first, and `None` at the end if the rest cannot be read.
fn from_end(line: &[u8]) -> impl Iterator<Item = Option<Element<'_>>> {
    let mut rest = Some(line);
    iter::from_fn(move || {
        let (element, before) = split_element(rest.take()?).unzip();
        rest = before.flatten();
        Some(element)
    })
}

/// The last element, and what stands before its comma, if there is one.
fn split_element(mut line: &[u8]) -> Option<(Element<'_>, Option<&[u8]>)> {
    let mut element = Element::default();
    loop {
        line = line.trim_ascii_end();
        match line.split_last() {
            None => return Some((element, None)),
            Some((b',', before)) => return Some((element, Some(before))),
            Some((b';', before)) => line = before,
            Some(_) => {
                let (pair, before) = split_pair(line)?;
                element.0.push(pair);
                line = before;
            }
        }
    }
}

/// The name and the value at the end, and what stands before them.
fn split_pair(line: &[u8]) -> Option<((&str, &str), &[u8])> {
    let (named, value) = match line.strip_suffix(b"\"") {
        // A quote within a value is escaped, so none follows `=`. Neither addresses nor hosts or protocols contain what
        // must be escaped, so nothing is unescaped.
        Some(quoted) => {
            let equals = quoted.windows(2).rposition(|octets| octets == b"=\"")?;
            (&quoted[..equals], &quoted[equals + 2..])
        }
        None => {
            let (named, value) = split_token(line);
            (named.strip_suffix(b"=")?, value)
        }
    };
    let (before, name) = split_token(named);
    let before = before.trim_ascii_end();
    let is_separated = matches!(before.last(), None | Some(b',' | b';'));
    (!name.is_empty() && is_separated).then(|| ((text(name), text(value)), before))
}

/// Splits off the token at the end, which may be empty.
fn split_token(line: &[u8]) -> (&[u8], &[u8]) {
    line.split_at(line.iter().rposition(|octet| !is_token(*octet)).map_or(0, |other| other + 1))
}

/// RFC 9110, 5.6.2.
fn is_token(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
}

/// An address with or without port, IPv6 with or without brackets.
pub(crate) fn forwarded_address(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text
        .parse()
        .ok()
        .or_else(|| text.parse().ok().map(|end: SocketAddr| end.ip()))
        .or_else(bracketed);
    address.map(|address: IpAddr| address.to_canonical())
}

/// One element for each hop. The client's also has what it asked for.
pub(crate) fn format_forwarded<'a>(
    hops: impl Iterator<Item = &'a IpAddr>,
    scheme: &str,
    host: Option<&str>,
) -> String {
    let mut text = String::new();
    for (at, hop) in hops.enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = match hop {
            IpAddr::V4(address) => write!(text, "{separator}for={address}"),
            IpAddr::V6(address) => write!(text, "{separator}for=\"[{address}]\""),
        };
        if at == 0 {
            let _ = match host {
                Some(host) if host.bytes().all(is_token) => write!(text, ";host={host}"),
                Some(host) => write!(text, ";host=\"{host}\""),
                None => Ok(()),
            };
            let _ = write!(text, ";proto={scheme}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let cases = [
            (
                "for=192.0.2.60;proto=http;by=203.0.113.43",
                "for 192.0.2.60, proto http, by 203.0.113.43",
            ),
            ("For=\"[2001:db8:cafe::17]:4711\"", "For [2001:db8:cafe::17]:4711"),
            (
                "for=192.0.2.43, for=198.51.100.17 ;host=a",
                "for 198.51.100.17, host a | for 192.0.2.43",
            ),
            ("for=_gazonk", "for _gazonk"),
            (",for=a;", "for a | "),
            ("", ""),
            ("for=\"a\\\",for=\\\"b\"", "for a\\\",for=\\\"b"),
            ("for=\"a, for=b", "for b | none"),
            ("for=\"a, for=\"b\"", "for b | none"),
            ("for=a, ;b;for=c", "none"),
            ("for=\"a\"b", "none"),
            ("for=\"a\"b=c", "none"),
            ("for", "none"),
            ("=a", "none"),
            ("=\"a\"", "none"),
            ("\"", "none"),
            ("for =a", "none"),
            ("for=a b", "none"),
            ("for=a b=c", "none"),
            ("for=[::1]", "none"),
        ];
        for (line, expected) in cases {
            let show = |element: Option<Element>| {
                let Some(Element(pairs)) = element else { return "none".to_string() };
                let pairs = pairs.iter().rev().map(|(name, value)| format!("{name} {value}"));
                pairs.collect::<Vec<_>>().join(", ")
            };
            let elements: Vec<_> = from_end(line.as_bytes()).map(show).collect();
            assert_eq!(elements.join(" | "), expected, "{line}");
        }
    }

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:80", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("unknown", None),
            ("_hidden", None),
            ("192.0.2.1:x", None),
            ("192.0.2.256", None),
            ("", None),
        ] {
            assert_eq!(
                forwarded_address(text),
                expected.map(|text| text.parse().unwrap()),
                "{text}"
            );
        }
    }
}
