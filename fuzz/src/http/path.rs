//! Paths: the normal form means what the client's form means, and nothing else.

use std::borrow::Cow;

use lb_http::path::{Slashes, comparable_path, normalize_path};

use super::text;
use crate::Input;

pub const PIECES: [&str; 34] = [
    "/",
    "/",
    "/",
    "//",
    ".",
    "..",
    "/../",
    "/./",
    "%2e",
    "%2E",
    "%2f",
    "%2F",
    "%5c",
    "\\",
    ";",
    "..;",
    "a",
    "b",
    "A",
    "%61",
    "%41",
    "%",
    "%0",
    "%00",
    "%0a",
    "%7f",
    "%25",
    "%25%32%65",
    "é",
    "%c3%a9",
    "@",
    "%40",
    " ",
    "%zz",
];

pub fn fuzz_path(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let raw = match input.chance(64) {
        true => String::from_utf8_lossy(input.rest()).into_owned(),
        false => format!("/{}", text(&mut input, &PIECES, 20)),
    };
    let expected = meaning(&raw);
    let Ok(normal) = normalize_path(&raw) else {
        assert_eq!(expected, None, "{raw:?} is refused");
        return "refused";
    };
    let segments: Option<Vec<Vec<u8>>> =
        normal.strip_prefix('/').and_then(|path| path.split('/').map(decode).collect());
    assert_eq!(segments, expected, "{raw:?} became {normal:?}");
    assert_eq!(normalize_path(&normal), Ok(Cow::Borrowed(&*normal)), "not normal after all");
    assert!(
        normal.bytes().all(|octet| octet.is_ascii_graphic() && !b"\\\"<>^`{|}?#".contains(&octet)),
        "{normal:?}"
    );
    let segments = |path: &str| path.split('/').filter(|segment| !segment.is_empty()).count();
    for slashes in [Slashes::Merged, Slashes::AsSent] {
        assert_eq!(segments(&comparable_path(&normal, slashes)), segments(&normal));
    }
    if matches!(normal, Cow::Borrowed(_)) { "kept" } else { "changed" }
}

/// The decoded segments that an endpoint sees when it decodes each segment and then resolves dot segments. `None` if
/// the path must be refused.
fn meaning(raw: &str) -> Option<Vec<Vec<u8>>> {
    let raw_segments: Vec<&str> = raw.strip_prefix('/')?.split('/').collect();
    let mut resolved: Vec<(&str, Vec<u8>)> = Vec::new();
    for (at, raw_segment) in raw_segments.iter().enumerate() {
        let segment = decode(raw_segment)?;
        if has_parameters_of_dots(raw_segment)? {
            return None;
        }
        let is_last = at + 1 == raw_segments.len();
        match segment.as_slice() {
            b"." => {}
            b".." => {
                resolved.pop()?;
            }
            _ => {
                resolved.push((raw_segment, segment));
                continue;
            }
        }
        if is_last {
            resolved.push(("", Vec::new()));
        }
    }
    // Endpoints may decode separators before they resolve dot segments.
    for (raw_segment, _) in &resolved {
        let separators = ["%2F", "%2f", "%5C", "%5c", "\\"];
        let parts = separators.iter().fold(vec![*raw_segment], |parts, separator| {
            parts.into_iter().flat_map(|part| part.split(separator)).collect()
        });
        for part in parts {
            if [&b"."[..], b".."].contains(&&*decode(part)?) || has_parameters_of_dots(part)? {
                return None;
            }
        }
    }
    Some(resolved.into_iter().map(|(_, segment)| segment).collect())
}

/// Whether it is a dot segment with parameters. An encoded semicolon separates none.
fn has_parameters_of_dots(raw_segment: &str) -> Option<bool> {
    let Some((name, _)) = raw_segment.split_once(';') else { return Some(false) };
    let name = decode(name)?;
    Some(name == b"." || name == b"..")
}

fn decode(segment: &str) -> Option<Vec<u8>> {
    let mut octets = segment.bytes();
    let mut decoded = Vec::new();
    while let Some(octet) = octets.next() {
        let octet = match octet {
            b'%' => {
                let digits = [octets.next()?, octets.next()?];
                let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            octet => octet,
        };
        decoded.push((octet >= 0x20 && octet != 0x7f).then_some(octet)?);
    }
    Some(decoded)
}
