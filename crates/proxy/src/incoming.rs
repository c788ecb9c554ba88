//! Bodies that are received, whatever HTTP their senders speak.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

pub(crate) enum IncomingBody<B> {
    Http1(B),
    Http2(Incoming),
    /// It was received before.
    Octets(Bytes),
}

/// The sender has gone, or what it sent was malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenBody;

impl<B: Body<Data = Bytes> + Unpin> Body for IncomingBody<B> {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(|_| BrokenBody),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(|_| BrokenBody),
            Self::Octets(octets) if octets.is_empty() => Poll::Ready(None),
            Self::Octets(octets) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(octets))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Octets(octets) => octets.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Octets(octets) => SizeHint::with_exact(octets.len() as u64),
        }
    }
}
