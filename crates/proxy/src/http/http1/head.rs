//! Heads of a client's connection: those of requests are read, those of responses written.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, EXPECT, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body::SizeHint;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use lb_http::headers::{has_token, list_tokens};

use crate::message::{FieldRange, Framing, ends_with_chunked, write_field};

/// Headers up to this number are parsed without memory of their own.
const FEW_HEADERS: usize = 100;
/// `Uri` has no longer ones.
const LONGEST_URI: usize = u16::MAX as usize - 1;

/// Bounds of a request's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLimits {
    pub octets: usize,
    pub headers: usize,
}

pub(super) struct RequestHead {
    pub parts: Parts,
    pub body: RequestBodyEnd,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    pub wants_upgrade: bool,
    pub facts: RequestFacts,
}

/// Where the body of a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestBodyEnd {
    Length(u64),
    Chunked,
}

/// What the response depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestFacts {
    pub version: Version,
    pub is_head: bool,
    pub takes_trailers: bool,
    pub keeps_alive: bool,
}

impl RequestFacts {
    /// Until there is a request.
    pub fn unknown() -> Self {
        Self { version: Version::HTTP_11, is_head: false, takes_trailers: false, keeps_alive: true }
    }
}

/// Takes the head of a request from the beginning of what was received. `None`: more of it has to come. An error is the
/// status of the response to what is no head.
pub(super) fn take_request_head(
    input: &mut BytesMut,
    limits: &HeadLimits,
) -> Result<Option<RequestHead>, StatusCode> {
    if limits.headers <= FEW_HEADERS {
        let mut ranges = [FieldRange::default(); FEW_HEADERS];
        let located = {
            let mut fields = [const { MaybeUninit::uninit() }; FEW_HEADERS];
            locate_fields(input, limits, &mut fields[..limits.headers], &mut ranges)?
        };
        located.map(|located| located.take(input, &ranges)).transpose()
    } else {
        let mut ranges = vec![FieldRange::default(); limits.headers];
        let located = {
            let mut fields = vec![MaybeUninit::uninit(); limits.headers];
            locate_fields(input, limits, &mut fields, &mut ranges)?
        };
        located.map(|located| located.take(input, &ranges)).transpose()
    }
}

/// The parts of a head, in what was received.
struct LocatedHead {
    length: usize,
    method: Method,
    target: (usize, usize),
    version: Version,
    count: usize,
}

fn locate_fields<'b>(
    input: &'b [u8],
    limits: &HeadLimits,
    fields: &mut [MaybeUninit<httparse::Header<'b>>],
    ranges: &mut [FieldRange],
) -> Result<Option<LocatedHead>, StatusCode> {
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(input, fields) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        Err(_) => return Err(StatusCode::BAD_REQUEST),
    };
    if length > limits.octets {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(StatusCode::BAD_REQUEST);
    };
    if target.len() > LONGEST_URI {
        return Err(StatusCode::URI_TOO_LONG);
    }
    for (range, field) in ranges.iter_mut().zip(request.headers.iter()) {
        *range = FieldRange::of(field, input);
    }
    let start = target.as_ptr() as usize - input.as_ptr() as usize;
    Ok(Some(LocatedHead {
        length,
        method: Method::from_bytes(method.as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)?,
        target: (start, start + target.len()),
        version: if request.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 },
        count: request.headers.len(),
    }))
}

impl LocatedHead {
    /// `ranges`: of the headers. Values share the memory that was received.
    fn take(self, input: &mut BytesMut, ranges: &[FieldRange]) -> Result<RequestHead, StatusCode> {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        let head = input.split_to(self.length).freeze();
        let is_http11 = self.version == Version::HTTP_11;
        let is_head = self.method == Method::HEAD;
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.uri =
            Uri::from_maybe_shared(head.slice(self.target.0..self.target.1)).map_err(|_| BAD)?;
        let mut wants_upgrade = self.method == Method::CONNECT;
        parts.method = self.method;
        parts.version = self.version;
        let mut headers = HeaderMap::with_capacity(self.count);
        let mut length = None;
        let mut encoding = None;
        let (mut expects_continue, mut takes_trailers) = (false, false);
        let (mut says_close, mut says_keep_alive, mut has_length) = (false, false, false);
        for range in &ranges[..self.count] {
            let name = HeaderName::from_bytes(&head[range.name()]).map_err(|_| BAD)?;
            let value = HeaderValue::from_maybe_shared(head.slice(range.value()));
            let value = value.map_err(|_| BAD)?;
            match name {
                TRANSFER_ENCODING if !is_http11 => return Err(BAD),
                TRANSFER_ENCODING => encoding = Some(ends_with_chunked(&value)),
                CONTENT_LENGTH => {
                    has_length = true;
                    // A length beside an encoding is not looked at (RFC 9112, 6.3).
                    if encoding.is_some() {
                        continue;
                    }
                    let number = plain_number(value.as_bytes()).ok_or(BAD)?;
                    match length {
                        Some(known) if known != number => return Err(BAD),
                        Some(_) => continue,
                        // Larger numbers have meanings of their own in hyper, which takes bodies to HTTP/2.
                        None if number > u64::MAX - 2 => {
                            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
                        }
                        None => length = Some(number),
                    }
                }
                CONNECTION => {
                    let mut tokens = list_tokens(&value);
                    says_close |= tokens.any(|token| token.eq_ignore_ascii_case("close"));
                    let mut tokens = list_tokens(&value);
                    says_keep_alive |= tokens.any(|token| token.eq_ignore_ascii_case("keep-alive"));
                }
                EXPECT => {
                    expects_continue = value.as_bytes().eq_ignore_ascii_case(b"100-continue");
                }
                UPGRADE => wants_upgrade |= is_http11,
                TE => {
                    let mut tokens = list_tokens(&value);
                    takes_trailers |= tokens.any(|token| token.eq_ignore_ascii_case("trailers"));
                }
                _ => {}
            }
            headers.append(name, value);
        }
        let mut keeps_alive = !says_close && (is_http11 || says_keep_alive);
        let body = match encoding {
            None => RequestBodyEnd::Length(length.unwrap_or(0)),
            Some(false) => return Err(BAD),
            Some(true) => {
                if has_length {
                    // The client, or a proxy before it, is confused or hostile (RFC 9112, 6.1).
                    headers.remove(CONTENT_LENGTH);
                    keeps_alive = false;
                }
                RequestBodyEnd::Chunked
            }
        };
        parts.headers = headers;
        let has_body = body != RequestBodyEnd::Length(0);
        let version = self.version;
        Ok(RequestHead {
            parts,
            body,
            expects_continue: expects_continue && has_body && is_http11,
            wants_upgrade,
            facts: RequestFacts { version, is_head, takes_trailers, keeps_alive },
        })
    }
}

/// A number without sign, spaces or prefix.
fn plain_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// How a response goes on after its head.
#[derive(Debug)]
pub(super) struct ResponseFraming {
    /// `None`: the response has no body, whatever the head says.
    pub body: Option<Framing>,
    /// Another request may follow on the connection.
    pub keeps_alive: bool,
}

/// Appends the head of a response. `body`: what is known about the length of its body, if there is one to send.
pub(super) fn write_response_head(
    status: StatusCode,
    headers: &HeaderMap,
    body: Option<&SizeHint>,
    request: &RequestFacts,
    to: &mut Vec<u8>,
) -> ResponseFraming {
    to.reserve(160 + 48 * headers.len());
    let is_http10 = request.version == Version::HTTP_10;
    write_status_line(status, is_http10, to);
    let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
    let is_bodiless_status =
        is_switch || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    let has_body = !is_bodiless_status && !request.is_head;
    let mut stated = None;
    let mut says_close = false;
    let mut has_date = false;
    for (name, value) in headers {
        match *name {
            // They are written below, once.
            CONTENT_LENGTH => {
                stated.get_or_insert_with(|| plain_number(value.as_bytes()));
                continue;
            }
            TRANSFER_ENCODING => continue,
            CONNECTION if !is_switch => {
                says_close |= has_token(headers, &CONNECTION, "close");
                continue;
            }
            TRAILER if is_http10 || !has_body => continue,
            DATE => has_date = true,
            _ => {}
        }
        write_field(name.as_str(), value.as_bytes(), to);
    }
    let stated = stated.flatten();
    let length = match body {
        Some(body) => body.exact().or(stated),
        // The length that the response to another method would have.
        None if request.is_head => stated,
        None => Some(0),
    };
    let framing = match length {
        Some(length) => {
            if !is_bodiless_status {
                write_length(length, to);
            }
            Framing::Length(length)
        }
        None if !has_body => Framing::Length(0),
        None if is_http10 => Framing::Closed,
        None => {
            to.extend_from_slice(b"transfer-encoding: chunked\r\n");
            let announced = headers.get_all(TRAILER).iter().flat_map(list_tokens);
            let announced = announced.filter_map(|name| HeaderName::try_from(name).ok());
            Framing::Chunked(match request.takes_trailers {
                true => announced.collect(),
                false => Vec::new(),
            })
        }
    };
    let keeps_alive =
        request.keeps_alive && !says_close && !is_switch && !matches!(framing, Framing::Closed);
    match (is_http10, keeps_alive) {
        _ if is_switch => {}
        (true, true) => to.extend_from_slice(b"connection: keep-alive\r\n"),
        (_, false) => to.extend_from_slice(b"connection: close\r\n"),
        (false, true) => {}
    }
    if !has_date {
        write_date(to);
    }
    to.extend_from_slice(b"\r\n");
    ResponseFraming { body: (has_body && body.is_some()).then_some(framing), keeps_alive }
}

/// Appends the head of an interim response, which has no body.
pub(super) fn write_interim_head(status: StatusCode, headers: &HeaderMap, to: &mut Vec<u8>) {
    write_status_line(status, false, to);
    for (name, value) in headers {
        // Another endpoint may give the final response: then this one sets no cookies.
        if name != CONTENT_LENGTH && name != SET_COOKIE {
            write_field(name.as_str(), value.as_bytes(), to);
        }
    }
    to.extend_from_slice(b"\r\n");
}

fn write_status_line(status: StatusCode, is_http10: bool, to: &mut Vec<u8>) {
    if status == StatusCode::OK && !is_http10 {
        return to.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    to.extend_from_slice(if is_http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    to.extend_from_slice(status.as_str().as_bytes());
    to.push(b' ');
    to.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
    to.extend_from_slice(b"\r\n");
}

fn write_length(length: u64, to: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = length;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    write_field("content-length", &digits[start..], to);
}

thread_local! {
    /// The line as of a second since 1970.
    static DATE_LINE: RefCell<(u64, Vec<u8>)> = const { RefCell::new((0, Vec::new())) };
}

/// Formatted once a second.
fn write_date(to: &mut Vec<u8>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    DATE_LINE.with_borrow_mut(|(second, line)| {
        if *second != now || line.is_empty() {
            *second = now;
            line.clear();
            let timestamp =
                i64::try_from(now).ok().and_then(|now| Timestamp::from_second(now).ok());
            let date =
                DateTimePrinter::new().timestamp_to_rfc9110_string(&timestamp.unwrap_or_default());
            if let Ok(date) = date {
                write_field("date", date.as_bytes(), line);
            }
        }
        to.extend_from_slice(line);
    });
}
