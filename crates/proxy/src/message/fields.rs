//! Header fields as they are written, and where they were read.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue};

/// What was received is not HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) fn write_field(name: &str, value: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}

/// Whether the last of these transfer codings is `chunked`.
pub(crate) fn ends_with_chunked(value: &HeaderValue) -> bool {
    let last = value.to_str().ok().and_then(|list| list.rsplit(',').next());
    last.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"))
}

/// The trailers that may follow a body: those that were announced, but for fields that only a head can have.
pub(super) fn write_trailers(trailers: &HeaderMap, announced: &[HeaderName], to: &mut Vec<u8>) {
    use http::header::*;
    const NEVER: [HeaderName; 12] = [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        HOST,
        MAX_FORWARDS,
        SET_COOKIE,
        TRAILER,
        TRANSFER_ENCODING,
        TE,
    ];
    for (name, value) in trailers {
        if announced.contains(name) && !NEVER.contains(name) {
            write_field(name.as_str(), value.as_bytes(), to);
        }
    }
}

/// Where a header is in what was received.
#[derive(Clone, Copy, Default)]
pub(crate) struct FieldRange {
    name: (u32, u32),
    value: (u32, u32),
}

impl FieldRange {
    /// `field`: as it was parsed from `input`, which is shorter than 4 GiB.
    pub fn of(field: &httparse::Header<'_>, input: &[u8]) -> Self {
        // An empty value is not always a part of the input.
        let value = if field.value.is_empty() { (0, 0) } else { range_in(field.value, input) };
        Self { name: range_in(field.name.as_bytes(), input), value }
    }

    pub fn name(&self) -> Range<usize> {
        self.name.0 as usize..self.name.1 as usize
    }

    pub fn value(&self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }
}

fn range_in(part: &[u8], input: &[u8]) -> (u32, u32) {
    let start = part.as_ptr() as usize - input.as_ptr() as usize;
    (start as u32, (start + part.len()) as u32)
}
