//! The reasons to refuse a request.

use std::fmt::{self, Display};

use http::StatusCode;

use crate::host::InvalidHost;
use crate::path::InvalidPath;

/// Why a request is refused. The connection of HTTP/1 must be closed: what follows may be the rest of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Method,
    UriTooLong,
    Scheme,
    AsteriskForm,
    Path(InvalidPath),
    MissingHost,
    DuplicateHost,
    Host(InvalidHost),
    /// The request line or `:authority` names another host than `Host`.
    ContradictoryHost,
    TransferEncoding,
    ContentLength,
    /// A header of HTTP/1 connections in HTTP/2.
    ConnectionHeader,
    UpgradeWithBody,
    Expectation,
}

impl Refusal {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// For logs and metrics: one word a variant.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::UriTooLong => "uri_too_long",
            Self::Scheme => "scheme",
            Self::AsteriskForm => "asterisk_form",
            Self::Path(_) => "path",
            Self::MissingHost => "missing_host",
            Self::DuplicateHost => "duplicate_host",
            Self::Host(_) => "host",
            Self::ContradictoryHost => "contradictory_host",
            Self::TransferEncoding => "transfer_encoding",
            Self::ContentLength => "content_length",
            Self::ConnectionHeader => "connection_header",
            Self::UpgradeWithBody => "upgrade_with_body",
            Self::Expectation => "expectation",
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => f.write_str("method is not forwarded"),
            Self::UriTooLong => f.write_str("path and query are too long"),
            Self::Scheme => f.write_str("scheme is neither http nor https"),
            Self::AsteriskForm => f.write_str("request for the server itself (*)"),
            Self::Path(error) => write!(f, "{error}"),
            Self::MissingHost => f.write_str("request without Host or :authority"),
            Self::DuplicateHost => f.write_str("several Host headers"),
            Self::Host(error) => write!(f, "{error}"),
            Self::ContradictoryHost => {
                f.write_str("Host differs from the host of the request line or :authority")
            }
            Self::TransferEncoding => f.write_str("Transfer-Encoding is not just \"chunked\""),
            Self::ContentLength => f.write_str("several or invalid lengths of the body"),
            Self::ConnectionHeader => f.write_str("header of HTTP/1 connections in HTTP/2"),
            Self::UpgradeWithBody => f.write_str("request to change the protocol has a body"),
            Self::Expectation => f.write_str("Expect is not 100-continue"),
        }
    }
}

impl std::error::Error for Refusal {}
