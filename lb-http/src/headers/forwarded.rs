//! `Forwarded` (RFC 7239), and the addresses in it and in `X-Forwarded-For`.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderValue};

/// What one proxy has added.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Element<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Element<'a> {
    pub fn get(&self, wanted: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
    }

    /// Not if the proxy hides it (`unknown`, `_secret`).
    pub fn client(&self) -> Option<IpAddr> {
        self.get("for").and_then(address)
    }
}

/// The elements of all lines, the one of the nearest proxy first. A line that cannot be read ends the list, because it
/// is not known which proxy wrote the elements before it.
pub fn elements(headers: &HeaderMap) -> impl Iterator<Item = Element<'_>> {
    let lines = headers.get_all(FORWARDED).iter().rev().map(parse);
    lines.map_while(|elements| elements).flat_map(|elements| elements.into_iter().rev())
}

fn parse(line: &HeaderValue) -> Option<Vec<Element<'_>>> {
    let mut rest = line.to_str().ok()?.trim_start_matches(BLANKS);
    let mut elements = vec![Element::default()];
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix([',', ';']) {
            if rest.starts_with(',') {
                elements.push(Element::default());
            }
            rest = after.trim_start_matches(BLANKS);
            continue;
        }
        let (name, value) = rest.split_once('=')?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let (value, after) = match value.strip_prefix('"') {
            // Neither addresses nor hosts or protocols contain what must be escaped.
            Some(quoted) => quoted.split_once('"').filter(|(value, _)| !value.contains('\\'))?,
            None => value.split_at(
                value
                    .find(|end: char| !end.is_ascii() || !is_token(end as u8))
                    .unwrap_or(value.len()),
            ),
        };
        rest = after.trim_start_matches(BLANKS);
        if !rest.is_empty() && !rest.starts_with([',', ';']) {
            return None;
        }
        elements.last_mut()?.0.push((name, value));
    }
    Some(elements)
}

const BLANKS: [char; 2] = [' ', '\t'];

/// RFC 9110, 5.6.2.
fn is_token(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
}

/// An address with or without port, IPv6 with or without brackets.
pub fn address(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text
        .parse()
        .ok()
        .or_else(|| text.parse().ok().map(|end: SocketAddr| end.ip()))
        .or_else(bracketed);
    address.map(|address: IpAddr| address.to_canonical())
}

/// One element for each hop. The client's also has what it asked for.
pub fn format<'a>(
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
                "for 192.0.2.43 | for 198.51.100.17, host a",
            ),
            ("for=_gazonk", "for _gazonk"),
            (",for=a;", " | for a"),
            ("", ""),
            ("for=\"a, for=b", "none"),
            ("for=\"a\\\"b\"", "none"),
            ("for=\"a\"b", "none"),
            ("for", "none"),
            ("=a", "none"),
            ("for =a", "none"),
            ("for=a b", "none"),
            ("for=[::1]", "none"),
        ];
        for (line, expected) in cases {
            let line = HeaderValue::from_str(line).unwrap();
            let text = parse(&line).map(|elements| {
                let pairs = |element: &Element| {
                    element
                        .0
                        .iter()
                        .map(|(name, value)| format!("{name} {value}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                elements.iter().map(pairs).collect::<Vec<_>>().join(" | ")
            });
            assert_eq!(text.as_deref().unwrap_or("none"), expected, "{line:?}");
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
            assert_eq!(address(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }
}
