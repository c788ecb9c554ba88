//! The body of an endpoint's response, whatever the endpoint speaks.

use std::fmt::{self, Display};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http1::ReceivedBody;
use crate::io::{Prefixed, Stream};

pub(crate) enum EndpointResponseBody {
    Http1(ReceivedBody),
    Http2(Incoming),
}

/// The endpoint closed the connection, or what it sent was malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenResponse;

impl Display for BrokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the endpoint did not complete its response")
    }
}

impl std::error::Error for BrokenResponse {}

impl EndpointResponseBody {
    /// The connection after the endpoint's 101, once.
    pub(crate) fn take_upgraded(&self) -> Option<Prefixed<Stream>> {
        match self {
            Self::Http1(body) => body.take_upgraded(),
            Self::Http2(_) => None,
        }
    }
}

impl Body for EndpointResponseBody {
    type Data = Bytes;
    type Error = BrokenResponse;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenResponse>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|_| BrokenResponse))),
            Self::Http2(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|_| BrokenResponse))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}
