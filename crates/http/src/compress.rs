//! Which responses are compressed on their way to the client, and what that changes in their heads.

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::headers::{has_token, list_tokens};

/// Smaller ones grow, or shrink by less than a packet.
const LEAST_OCTETS: u64 = 256;

/// A content coding that responses can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Brotli,
}

impl Coding {
    /// As in `Content-Encoding`.
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
        }
    }

    /// What the client prefers (RFC 9110, 12.5.3), and Brotli if it takes both alike. `*` stands for gzip: what does not
    /// know Brotli may send it.
    pub fn accepted(headers: &HeaderMap) -> Option<Self> {
        let (mut gzip, mut brotli, mut any) = (None, None, None);
        for coding in headers.get_all(ACCEPT_ENCODING).iter().flat_map(list_tokens) {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let named = match name.trim() {
                name if name.eq_ignore_ascii_case("gzip") => &mut gzip,
                name if name.eq_ignore_ascii_case("br") => &mut brotli,
                "*" => &mut any,
                _ => continue,
            };
            named.get_or_insert(weight(parameters));
        }
        let (gzip, brotli) = (gzip.or(any).unwrap_or(0.0), brotli.unwrap_or(0.0));
        match () {
            () if brotli > 0.0 && brotli >= gzip => Some(Self::Brotli),
            () if gzip > 0.0 => Some(Self::Gzip),
            () => None,
        }
    }
}

fn weight(parameters: &str) -> f32 {
    let weight = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
    weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))
}

/// Whether a response may be compressed, for clients that accept it. `length`: of its body, if it is known.
pub fn is_compressible(
    method: &Method,
    status: StatusCode,
    headers: &HeaderMap,
    length: Option<u64>,
) -> bool {
    let has_whole_body = method != Method::HEAD
        && (status.is_success() || status.is_client_error() || status.is_server_error())
        && ![StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT, StatusCode::PARTIAL_CONTENT]
            .contains(&status);
    has_whole_body
        && length.is_none_or(|length| length >= LEAST_OCTETS)
        && !headers.contains_key(CONTENT_ENCODING)
        && !headers.contains_key(CONTENT_RANGE)
        && !has_token(headers, &CACHE_CONTROL, "no-transform")
        && headers.get(CONTENT_TYPE).is_some_and(is_text)
}

/// What is text by its media type. Events are sent as they come, and gain nothing.
fn is_text(value: &HeaderValue) -> bool {
    let Ok(value) = value.to_str() else { return false };
    let media = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.split_once('/') {
        Some(("text", "event-stream")) => false,
        Some(("text", _)) => true,
        Some(("application", subtype)) => {
            ["json", "javascript", "x-javascript", "xml", "wasm", "vnd.ms-fontobject"]
                .contains(&subtype)
                || subtype.ends_with("+json")
                || subtype.ends_with("+xml")
        }
        Some(("image", subtype)) => ["svg+xml", "x-icon"].contains(&subtype),
        Some(("font", subtype)) => ["ttf", "otf"].contains(&subtype),
        _ => false,
    }
}

/// `Vary: Accept-Encoding`, for caches: clients get different responses. It is added to every response that may be
/// compressed, whether this one is or not.
pub fn add_vary(headers: &mut HeaderMap) {
    if !has_token(headers, &VARY, "accept-encoding") && !has_token(headers, &VARY, "*") {
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// Describes the compressed body. It is no longer equal octet by octet, so a strong validator becomes a weak one.
pub fn describe_coding(headers: &mut HeaderMap, coding: Coding) {
    headers.remove(CONTENT_LENGTH);
    headers.remove(ACCEPT_RANGES);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    let strong = headers.get(ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""));
    let weak =
        strong.and_then(|tag| HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()).ok());
    if let Some(weak) = weak {
        headers.insert(ETAG, weak);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            headers.append(HeaderName::try_from(name).unwrap(), value.try_into().unwrap());
        }
        headers
    }

    #[test]
    fn clients_say_what_they_accept() {
        let (gzip, brotli) = (Some(Coding::Gzip), Some(Coding::Brotli));
        let cases = [
            ("gzip", gzip),
            ("br", brotli),
            ("gzip, deflate, br, zstd", brotli),
            ("br, GZIP;q=0.5", brotli),
            ("BR;q=0.5, gzip", gzip),
            ("br;q=0, gzip", gzip),
            ("gzip;q=0", None),
            ("gzip; q=0.000", None),
            ("gzip;q=NaN, br;q=NaN", None),
            ("*", gzip),
            ("*;q=0, gzip", gzip),
            ("*;q=0, br", brotli),
            ("gzip;q=0, *", None),
            ("gzip;q=x", None),
            ("deflate", None),
        ];
        for (value, coding) in cases {
            let headers = headers(&format!("accept-encoding: {value}"));
            assert_eq!(Coding::accepted(&headers), coding, "{value}");
        }
        assert_eq!(Coding::accepted(&HeaderMap::new()), None);
    }

    #[test]
    fn only_whole_texts_are_compressed() {
        let cases = [
            ("content-type: text/html; charset=utf-8", true),
            ("content-type: application/problem+json", true),
            ("content-type: image/svg+xml", true),
            ("content-type: text/event-stream", false),
            ("content-type: application/grpc", false),
            ("content-type: image/png", false),
            ("content-type: text/html\ncontent-encoding: br", false),
            ("content-type: text/html\ncontent-range: bytes 0-1/2", false),
            ("content-type: text/html\ncache-control: public, no-transform", false),
            ("x-a: b", false),
        ];
        for (lines, compressible) in cases {
            let headers = headers(lines);
            let is = |method, status, length| is_compressible(&method, status, &headers, length);
            assert_eq!(is(Method::GET, StatusCode::OK, None), compressible, "{lines}");
            assert_eq!(is(Method::GET, StatusCode::OK, Some(256)), compressible, "{lines}");
            assert!(!is(Method::GET, StatusCode::OK, Some(255)));
            assert!(!is(Method::HEAD, StatusCode::OK, None));
            assert!(!is(Method::GET, StatusCode::PARTIAL_CONTENT, None));
            assert!(!is(Method::GET, StatusCode::NOT_MODIFIED, None));
        }
    }

    #[test]
    fn the_head_describes_the_compressed_body() {
        let mut changed =
            headers("content-length: 9\naccept-ranges: bytes\netag: \"a\"\nvary: Origin");
        add_vary(&mut changed);
        add_vary(&mut changed);
        describe_coding(&mut changed, Coding::Gzip);
        assert_eq!(
            changed,
            headers("vary: Origin\nvary: Accept-Encoding\ncontent-encoding: gzip\netag: W/\"a\"")
        );
    }
}
