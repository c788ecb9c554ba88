//! Builds HTTP responses.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WARNING};
use hyper::{Response, StatusCode};
use serde_json::Value;

use crate::failure::ApiFailure;

pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) const JSON_CONTENT_TYPE: &str = "application/json";

pub(crate) fn respond_full(
    code: u16,
    content_type: &str,
    body: impl Into<Bytes>,
) -> Response<ResponseBody> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
    set_header(&mut response, CONTENT_TYPE, content_type);
    set_header(&mut response, CACHE_CONTROL, "no-cache, private");
    response
}

pub(crate) fn respond_json(code: u16, value: &Value, pretty: bool) -> Response<ResponseBody> {
    let mut text = if pretty { format!("{value:#}") } else { value.to_string() };
    text.push('\n');
    respond_full(code, JSON_CONTENT_TYPE, text)
}

pub(crate) fn respond_failure(failure: &ApiFailure, pretty: bool) -> Response<ResponseBody> {
    let mut response = respond_json(failure.code, &failure.status(), pretty);
    if let Some(seconds) = failure.retry_after_seconds() {
        set_header(&mut response, RETRY_AFTER, &seconds.to_string());
    }
    response
}

/// Sets a header if its value is valid.
pub(crate) fn set_header(response: &mut Response<ResponseBody>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// The limit of all warnings of a response in bytes, as in a real API server.
const MAX_WARNING_BYTES: usize = 4 << 10;

/// Adds `Warning` headers. kubectl prints them.
pub(crate) fn add_warnings(response: &mut Response<ResponseBody>, warnings: &[String]) {
    let mut size = 0;
    for warning in warnings {
        size += warning.len();
        if size > MAX_WARNING_BYTES {
            return;
        }
        let plain: String = warning.chars().filter(|c| !c.is_control()).collect();
        let quoted = plain.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}
