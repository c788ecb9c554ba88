//! Heads of HTTP/1.1: those of requests are written, those of responses read.

use std::mem::MaybeUninit;

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use http_body::SizeHint;
use lb_http::headers::{ClientReport, list_tokens};

use crate::message::{FieldRange, Framing, Malformed, ends_with_chunked, write_field};

/// Most headers of a response.
const MOST_HEADERS: usize = 100;

/// Where the body of a response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    Length(u64),
    Chunked,
    /// Where the connection ends.
    Closed,
}

#[derive(Debug)]
pub(super) struct ResponseHead {
    pub status: StatusCode,
    pub version: Version,
    pub headers: HeaderMap,
    pub body: BodyEnd,
    /// The endpoint keeps the connection open after the body.
    pub keeps_alive: bool,
}

/// The head of a request, in parts: it is written without building it before.
pub(crate) struct UpstreamRequestHead<'a> {
    pub method: &'a Method,
    pub target: &'a PathAndQuery,
    pub host: &'a [u8],
    /// The protocol that the connection is to change to.
    pub upgrade: Option<&'a HeaderValue>,
    /// All others, without those of the connection.
    pub headers: &'a HeaderMap,
    pub report: Option<ClientReport<'a>>,
}

/// Appends the head of a request. `body`: what is known about the length of its body, if it has one.
pub(super) fn write_request_head(
    head: &UpstreamRequestHead<'_>,
    body: Option<&SizeHint>,
    to: &mut Vec<u8>,
) -> Framing {
    let &UpstreamRequestHead { method, target, host, upgrade, headers, report } = head;
    to.reserve(512 + target.as_str().len() + 48 * headers.len());
    to.extend_from_slice(method.as_str().as_bytes());
    to.push(b' ');
    if target.as_str().starts_with('?') {
        to.push(b'/');
    }
    to.extend_from_slice(target.as_str().as_bytes());
    to.extend_from_slice(b" HTTP/1.1\r\n");
    write_field("host", host, to);
    let stated = content_length(headers).ok().flatten();
    let known = body.map_or(Some(0), |body| stated.or(body.exact()));
    for (name, value) in headers {
        // Two statements about the length are what smuggling is made of, and so is one that is wrong.
        let is_statement = name == TRANSFER_ENCODING
            || (name == CONTENT_LENGTH && (stated.is_none() || stated != known));
        if !is_statement {
            write_field(name.as_str(), value.as_bytes(), to);
        }
    }
    if let Some(report) = report {
        report.list_headers(|name, value| write_field(name.as_str(), value, to));
    }
    if let Some(protocol) = upgrade {
        write_field("connection", b"upgrade", to);
        write_field("upgrade", protocol.as_bytes(), to);
    }
    let framing = match known {
        Some(length) => {
            if body.is_some() && stated.is_none() {
                write_field("content-length", length.to_string().as_bytes(), to);
            }
            Framing::Length(length)
        }
        None => {
            write_field("transfer-encoding", b"chunked", to);
            let names = headers.get_all(TRAILER).iter().flat_map(list_tokens);
            Framing::Chunked(names.filter_map(|name| HeaderName::try_from(name).ok()).collect())
        }
    };
    to.extend_from_slice(b"\r\n");
    framing
}

/// Takes the head of a response from the beginning of what was received. `None`: more of it has to come.
pub(super) fn take_response_head(
    input: &mut BytesMut,
    method: &Method,
) -> Result<Option<ResponseHead>, Malformed> {
    let mut ranges = [FieldRange::default(); MOST_HEADERS];
    let (length, status, version, count) = {
        let mut fields = [const { MaybeUninit::uninit() }; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let parsed = config.parse_response_with_uninit_headers(&mut response, input, &mut fields);
        let httparse::Status::Complete(length) = parsed.map_err(|_| Malformed)? else {
            return Ok(None);
        };
        for (range, field) in ranges.iter_mut().zip(response.headers.iter()) {
            *range = FieldRange::of(field, input);
        }
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
        let version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
        (length, status.ok_or(Malformed)?, version, response.headers.len())
    };
    // Values share the memory that was received.
    let head = input.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(count);
    let mut encoding = None;
    let (mut says_close, mut says_keep_alive) = (false, false);
    for range in &ranges[..count] {
        let name = HeaderName::from_bytes(&head[range.name()]).map_err(|_| Malformed)?;
        let value = HeaderValue::from_maybe_shared(head.slice(range.value()));
        let value = value.map_err(|_| Malformed)?;
        match name {
            TRANSFER_ENCODING => encoding = Some(ends_with_chunked(&value)),
            CONNECTION => {
                let says = |wanted| list_tokens(&value).any(|t| t.eq_ignore_ascii_case(wanted));
                says_close |= says("close");
                says_keep_alive |= says("keep-alive");
            }
            _ => {}
        }
        headers.append(name, value);
    }
    let body = find_body_end(status, version, encoding, &headers, method)?;
    let keeps_alive =
        body != BodyEnd::Closed && !says_close && (version == Version::HTTP_11 || says_keep_alive);
    Ok(Some(ResponseHead { status, version, headers, body, keeps_alive }))
}

/// RFC 9112, 6.3. `encoding`: whether the last transfer coding is `chunked`, if there is one.
fn find_body_end(
    status: StatusCode,
    version: Version,
    encoding: Option<bool>,
    headers: &HeaderMap,
    method: &Method,
) -> Result<BodyEnd, Malformed> {
    let has_none = status.is_informational()
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status)
        || method == Method::HEAD;
    if has_none {
        return Ok(BodyEnd::Length(0));
    }
    match encoding {
        Some(_) if version == Version::HTTP_10 => return Err(Malformed),
        Some(true) => return Ok(BodyEnd::Chunked),
        Some(false) => return Ok(BodyEnd::Closed),
        None => {}
    }
    Ok(content_length(headers)?.map_or(BodyEnd::Closed, BodyEnd::Length))
}

/// The length that all values state.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for number in value.to_str().map_err(|_| Malformed)?.split(',') {
            let number = number.trim();
            let is_plain = !number.is_empty() && number.bytes().all(|octet| octet.is_ascii_digit());
            let number = number.parse().ok().filter(|_| is_plain).ok_or(Malformed)?;
            if *length.get_or_insert(number) != number {
                return Err(Malformed);
            }
        }
    }
    // Hyper's own limit: larger numbers have meanings of their own.
    if length.is_some_and(|length| length > u64::MAX - 2) { Err(Malformed) } else { Ok(length) }
}
