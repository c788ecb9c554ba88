//! The form of a path that is matched and forwarded.
//!
//! Invariants, for every path that is accepted:
//! - It begins with `/` and has no dot segments, in whatever encoding, also if `%2F` and `%5C` separate segments.
//! - It consists of characters that RFC 3986 allows in paths. All others are percent-encoded, with upper-case digits;
//!   unreserved characters never are. So two paths that RFC 3986 calls equivalent are equal.
//! - Normalizing it again changes nothing.

use std::borrow::Cow;
use std::fmt::{self, Display};

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPath {
    NotAbsolute,
    /// `%` without two hexadecimal digits.
    Encoding,
    /// A control character, plain or percent-encoded.
    ControlCharacter,
    AboveRoot,
    /// `..%2Fa`, `..%5Ca`. Endpoints that decode paths before they resolve them leave what rules have matched.
    HiddenDotSegment,
    /// `..;a=b`. Servlet containers ignore parameters, and so resolve what others keep.
    DotSegmentParameters,
}

impl Display for InvalidPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAbsolute => "path does not begin with /",
            Self::Encoding => "% is not followed by two hexadecimal digits",
            Self::ControlCharacter => "path contains a control character",
            Self::AboveRoot => "path leads above the root",
            Self::HiddenDotSegment => "dot segment beside a percent-encoded separator",
            Self::DotSegmentParameters => "dot segment with parameters",
        })
    }
}

impl std::error::Error for InvalidPath {}

/// Resolves dot segments, decodes unreserved characters, and encodes those that RFC 3986 does not allow in paths.
/// Empty segments (`//`), `%2F` and parameters (`;`) are kept. Does not allocate if the path is normal already.
pub fn normalize_path(raw: &str) -> Result<Cow<'_, str>, InvalidPath> {
    if is_normal(raw) { Ok(Cow::Borrowed(raw)) } else { resolve(raw).map(Cow::Owned) }
}

/// How rules see slashes that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slashes {
    /// As one, like nginx. Otherwise `//admin` would escape the rule for `/admin`, and many endpoints merge slashes.
    #[default]
    Merged,
    /// As they were sent, for endpoints to which `//a` and `/a` are different.
    AsSent,
}

/// A normal path as it is compared with rules: [`decode_unreserved`], with slashes as [`Slashes`] says.
pub fn comparable_path(path: &str, slashes: Slashes) -> Cow<'_, str> {
    let decoded = decode_unreserved(path);
    if slashes == Slashes::AsSent || !decoded.contains("//") {
        return decoded;
    }
    let mut merged = String::with_capacity(decoded.len());
    for character in decoded.chars() {
        if !(character == '/' && merged.ends_with('/')) {
            merged.push(character);
        }
    }
    Cow::Owned(merged)
}

/// A normal path in which characters that may be encoded in paths, with or without a meaning of their own (`,`, `@`),
/// are decoded, because endpoints decode them: `/%40admin` must not escape the rule for `/@admin`. `%2F` is not
/// decoded, since segments are what rules are about.
pub fn decode_unreserved(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        match escaped(&rest.as_bytes()[at + 1..]) {
            Some(octet) if octet != b'/' && is_path_character(octet) => decoded.push(octet.into()),
            _ => decoded.push_str(&rest[at..at + 3]),
        }
        rest = &rest[at + 3..];
    }
    decoded.push_str(rest);
    Cow::Owned(decoded)
}

fn resolve(raw: &str) -> Result<String, InvalidPath> {
    let segments = raw.strip_prefix('/').ok_or(InvalidPath::NotAbsolute)?;
    let mut path = String::with_capacity(raw.len() + 8);
    let mut segments = segments.split('/').peekable();
    while let Some(segment) = segments.next() {
        let parent = path.len();
        path.push('/');
        push_segment(&mut path, segment)?;
        let dots = match dots(&path.as_bytes()[parent + 1..])? {
            0 => continue,
            dots => dots,
        };
        path.truncate(parent);
        if dots == 2 {
            path.truncate(path.rfind('/').ok_or(InvalidPath::AboveRoot)?);
        }
        if segments.peek().is_none() {
            path.push('/');
        }
    }
    if hides_dots(&path) { Err(InvalidPath::HiddenDotSegment) } else { Ok(path) }
}

/// Whether a path without dot segments has some if encoded separators are decoded. Dots are decoded already.
fn hides_dots(path: &str) -> bool {
    let segments = path.split("%2F").flat_map(|part| part.split("%5C"));
    segments.flat_map(|part| part.split('/')).any(|segment| dots(segment.as_bytes()) != Ok(0))
}

fn push_segment(path: &mut String, segment: &str) -> Result<(), InvalidPath> {
    let mut octets = segment.as_bytes();
    while let Some((&first, rest)) = octets.split_first() {
        octets = rest;
        let mut octet = first;
        let mut is_plain = is_path_character(octet);
        if octet == b'%' {
            octet = escaped(octets).ok_or(InvalidPath::Encoding)?;
            octets = &octets[2..];
            is_plain = is_unreserved(octet);
        }
        if octet.is_ascii_control() {
            return Err(InvalidPath::ControlCharacter);
        }
        if is_plain {
            path.push(octet.into());
        } else {
            path.extend(['%', upper_digit(octet >> 4), upper_digit(octet & 15)]);
        }
    }
    Ok(())
}

/// 1 for `.`, 2 for `..`, 0 for any other segment.
fn dots(segment: &[u8]) -> Result<usize, InvalidPath> {
    let dots = segment.iter().take_while(|&&octet| octet == b'.').count();
    match segment.get(dots) {
        _ if dots == 0 || dots > 2 => Ok(0),
        None => Ok(dots),
        Some(b';') => Err(InvalidPath::DotSegmentParameters),
        Some(_) => Ok(0),
    }
}

/// Whether [`normalize_path`] changes nothing.
fn is_normal(text: &str) -> bool {
    let path = text.as_bytes();
    let mut has_separator = false;
    if path.first() != Some(&b'/') {
        return false;
    }
    let mut at = 0;
    while let Some(&octet) = path.get(at) {
        at += 1;
        match octet {
            b'/' if path.get(at) == Some(&b'.') => {
                let end = path[at..].iter().position(|&octet| octet == b'/');
                let segment = &path[at..end.map_or(path.len(), |end| at + end)];
                if dots(segment) != Ok(0) {
                    return false;
                }
            }
            b'%' => {
                let digits = path.get(at..at + 2).unwrap_or_default();
                let is_upper = !digits.iter().any(u8::is_ascii_lowercase);
                match escaped(digits) {
                    Some(octet)
                        if is_upper && !octet.is_ascii_control() && !is_unreserved(octet) =>
                    {
                        has_separator |= [b'/', b'\\'].contains(&octet);
                        at += 2
                    }
                    _ => return false,
                }
            }
            _ if is_path_character(octet) => {}
            _ => return false,
        }
    }
    !(has_separator && hides_dots(text))
}

/// The octet that two hexadecimal digits stand for.
fn escaped(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

fn upper_digit(value: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(value & 15)])
}

fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"-._~".contains(&octet)
}

/// `pchar` of RFC 3986, and `/`.
fn is_path_character(octet: u8) -> bool {
    is_unreserved(octet) || b"/!$&'()*+,;=:@".contains(&octet)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn normal_forms() {
        let cases = [
            ("/", Ok("/")),
            ("/a/b", Ok("/a/b")),
            ("/a/./b", Ok("/a/b")),
            ("/a/../b", Ok("/b")),
            ("/a/b/..", Ok("/a/")),
            ("/a/.", Ok("/a/")),
            ("/a/..", Ok("/")),
            ("/.", Ok("/")),
            ("/a/%2e%2E/b", Ok("/b")),
            ("/a/.%2e/b", Ok("/b")),
            ("/a/%2e/b", Ok("/a/b")),
            ("/...", Ok("/...")),
            ("/.a", Ok("/.a")),
            ("/..a/.b", Ok("/..a/.b")),
            ("//a//b//", Ok("//a//b//")),
            ("/a//../b", Ok("/a/b")),
            ("//..", Ok("/")),
            ("/a%2Fb", Ok("/a%2Fb")),
            ("/a%2fb", Ok("/a%2Fb")),
            ("/a%2F.git%2F...%2F..b", Ok("/a%2F.git%2F...%2F..b")),
            ("/a%2F../../b", Ok("/b")),
            ("/a;x=1/b;y", Ok("/a;x=1/b;y")),
            ("/%61%2D%5f%7e", Ok("/a-_~")),
            ("/%252e%252e/a", Ok("/%252e%252e/a")),
            ("/%40a,%2C", Ok("/%40a,%2C")),
            ("/é", Ok("/%C3%A9")),
            ("/%c3%a9", Ok("/%C3%A9")),
            ("/a b\\\"{}", Ok("/a%20b%5C%22%7B%7D")),
            ("", Err(InvalidPath::NotAbsolute)),
            ("a", Err(InvalidPath::NotAbsolute)),
            ("*", Err(InvalidPath::NotAbsolute)),
            ("/%", Err(InvalidPath::Encoding)),
            ("/%4", Err(InvalidPath::Encoding)),
            ("/%4/1", Err(InvalidPath::Encoding)),
            ("/%zz", Err(InvalidPath::Encoding)),
            ("/%+1", Err(InvalidPath::Encoding)),
            ("/%%32e", Err(InvalidPath::Encoding)),
            ("/%é", Err(InvalidPath::Encoding)),
            ("/%00", Err(InvalidPath::ControlCharacter)),
            ("/a%0d%0aHost:b", Err(InvalidPath::ControlCharacter)),
            ("/%7F", Err(InvalidPath::ControlCharacter)),
            ("/\u{1}", Err(InvalidPath::ControlCharacter)),
            ("/..", Err(InvalidPath::AboveRoot)),
            ("/a/../../b", Err(InvalidPath::AboveRoot)),
            ("/%2e%2e/a", Err(InvalidPath::AboveRoot)),
            ("/a%2F..%2Fb", Err(InvalidPath::HiddenDotSegment)),
            ("/a/..%2fb", Err(InvalidPath::HiddenDotSegment)),
            ("/a%2f%2e%2e/b", Err(InvalidPath::HiddenDotSegment)),
            ("/a\\..\\b", Err(InvalidPath::HiddenDotSegment)),
            ("/a%5C.", Err(InvalidPath::HiddenDotSegment)),
            ("/a/..;/b", Err(InvalidPath::DotSegmentParameters)),
            ("/a/%2e%2e;x/b", Err(InvalidPath::DotSegmentParameters)),
            ("/.;/b", Err(InvalidPath::DotSegmentParameters)),
        ];
        for (raw, expected) in cases {
            assert_eq!(normalize_path(raw).as_deref().map_err(|&error| error), expected, "{raw:?}");
        }
    }

    #[test]
    fn encodings_of_one_path_compare_equal() {
        let merged = |path| comparable_path(path, Slashes::Merged);
        for (one, other) in [("/%40admin", "/@admin"), ("/a%2Cb", "/a,b"), ("/a%3Bb", "/a;b")] {
            assert_eq!(merged(one), merged(other));
        }
        for (one, other, as_sent) in [
            ("//admin", "/admin", "//admin"),
            ("/a///b//", "/a/b/", "/a///b//"),
            ("//", "/", "//"),
            ("//%40//", "/@/", "//@//"),
        ] {
            assert_eq!(merged(one), other);
            assert_eq!(comparable_path(one, Slashes::AsSent), as_sent);
        }
        for kept in ["/a%2Fb", "/a%25b", "/a%3Fb", "/%C3%A9"] {
            assert_eq!(merged(kept), kept);
        }
    }

    /// Paths made of what attacks are made of.
    fn hostile() -> impl Strategy<Value = String> {
        let pieces = vec![
            "/", "/", "//", ".", "..", "%2e", "%2E", "%2f", "%2F", "%5c", "\\", ";", "a", "b", "%",
            "%0", "%00", "%61", "%25", "é", "\u{7f}", " ", "?", "#", "%C3%A9", "@", "%40",
        ];
        proptest::collection::vec(proptest::sample::select(pieces), 0..14).prop_map(|pieces| {
            let path: String = pieces.concat();
            format!("/{path}")
        })
    }

    proptest! {
        #[test]
        fn invariants_hold(raw in prop_oneof![hostile(), any::<String>()]) {
            let Ok(path) = normalize_path(&raw) else { return Ok(()) };
            prop_assert_eq!(matches!(&path, Cow::Borrowed(_)), path == raw);
            prop_assert_eq!(normalize_path(&path), Ok(Cow::Borrowed(&*path)));
            prop_assert!(path.starts_with('/') && path.is_ascii());
            prop_assert!(path.bytes().all(|octet| octet.is_ascii_graphic()));
            prop_assert!(!path.split('/').any(|segment| [".", ".."].contains(&segment)));
            // What rules see has as many segments as what the endpoint gets, but for empty ones.
            let comparable = comparable_path(&path, Slashes::Merged);
            let segments = |path: &str| path.split('/').filter(|s| !s.is_empty()).count();
            prop_assert_eq!(segments(&comparable), segments(&path));
            prop_assert!(!comparable.contains("//"));
        }

        #[test]
        fn the_shortcut_agrees(raw in hostile()) {
            prop_assert_eq!(is_normal(&raw), resolve(&raw).as_ref() == Ok(&raw));
        }
    }
}
