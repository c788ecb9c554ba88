//! The body of a response on its way to the client.

use std::fmt::{self, Display};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use lb_http::balance::Guard;
use lb_http::compress::Coding;
use lb_http::headers::strip_trailers;
use lb_limits::{ClientNetwork, Share};
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

use super::compress::Compressor;
use super::record::RequestRecord;
use crate::metrics::UpstreamError;
use crate::outgoing::{Chunk, Reader};
use crate::upstream::{EndpointResponseBody, Lease};

/// Ends the request's record when it is dropped.
pub(crate) struct ResponseBody {
    kind: ResponseBodyKind,
    /// `None` in HTTP/1.
    reader: Option<Rc<Reader>>,
    /// `None`: the record ends with the tunnel that the connection becomes.
    record: Option<RequestRecord>,
}

enum ResponseBodyKind {
    Own(Bytes),
    Endpoint(Box<EndpointBody>),
}

/// What an endpoint sends.
pub(crate) struct EndpointBody {
    incoming: EndpointResponseBody,
    lease: Option<Lease>,
    /// The request is in flight until its response ends.
    _guard: Option<Guard>,
    read_limit: Duration,
    /// Set when the endpoint has to send more.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    compressed: Option<Compressed>,
}

/// Octets that are compressed before other tasks get their turn.
const COMPRESSED_AT_ONCE: usize = 8 << 10;

/// How far a compressed body is.
struct Compressed {
    compressor: Compressor,
    /// Held as long as the compressor takes memory.
    _share: Share<ClientNetwork>,
    /// Received, and not yet compressed.
    input: Bytes,
    /// Trailers come after what is left of the body.
    trailers: Option<Frame<Bytes>>,
    is_finished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The endpoint closed the connection, or what it sent was malformed.
    Endpoint,
    Timeout,
}

impl Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endpoint => "the endpoint did not complete its response",
            Self::Timeout => "the endpoint sent nothing for too long",
        })
    }
}

impl std::error::Error for BodyError {}

impl EndpointBody {
    pub fn new(
        incoming: EndpointResponseBody,
        lease: Lease,
        guard: Option<Guard>,
        read_limit: Duration,
    ) -> Self {
        let mut body = Self {
            incoming,
            lease: Some(lease),
            _guard: guard,
            read_limit,
            timer: None,
            is_waiting: false,
            compressed: None,
        };
        if body.incoming.is_end_stream() {
            body.finish();
        }
        body
    }

    pub fn compress(&mut self, coding: Coding, share: Share<ClientNetwork>) {
        let compressor = Compressor::new(coding);
        let compressed = Compressed {
            compressor,
            _share: share,
            input: Bytes::new(),
            trailers: None,
            is_finished: false,
        };
        self.compressed = Some(compressed);
    }

    fn poll_compressed(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(mut compressed) = self.compressed.take() else { return self.poll(cx) };
        let result = self.poll_into(&mut compressed, cx);
        self.compressed = Some(compressed);
        result
    }

    fn poll_into(
        &mut self,
        to: &mut Compressed,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let data = |octets| Poll::Ready(Some(Ok(Frame::data(octets))));
        if to.is_finished {
            return Poll::Ready(to.trailers.take().map(Ok));
        }
        loop {
            if !to.input.is_empty() {
                let part = to.input.split_to(to.input.len().min(COMPRESSED_AT_ONCE));
                if let Some(octets) = to.compressor.write(&part) {
                    return data(octets);
                }
                if !to.input.is_empty() {
                    return pin!(yield_now()).poll(cx).map(|()| None);
                }
            }
            let frame = match self.poll(cx) {
                Poll::Pending => return to.compressor.flush().map_or(Poll::Pending, data),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    to.is_finished = true;
                    return data(to.compressor.finish());
                }
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            match frame.into_data() {
                Ok(octets) => to.input = octets,
                Err(trailers) => {
                    to.trailers = Some(trailers);
                    to.is_finished = true;
                    return data(to.compressor.finish());
                }
            }
        }
    }

    fn is_end(&self) -> bool {
        match &self.compressed {
            None => self.incoming.is_end_stream(),
            Some(compressed) => compressed.is_finished && compressed.trailers.is_none(),
        }
    }

    /// The connection may serve the next request, even if the client takes its time.
    fn finish(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.finish();
        }
        self.timer = None;
        self._guard = None;
    }

    fn is_finished(&self) -> bool {
        self.lease.is_none()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_finished() {
            // The connection may serve another client.
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(BodyError::Endpoint))),
            Poll::Ready(Some(Ok(mut frame))) => {
                self.is_waiting = false;
                if let Some(trailers) = frame.trailers_mut() {
                    strip_trailers(trailers);
                }
                if self.incoming.is_end_stream() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending => self.poll_timer(cx),
        }
    }

    fn poll_timer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let limit = self.read_limit;
        let timer = self.timer.get_or_insert_with(|| {
            self.is_waiting = true;
            Box::pin(sleep(limit))
        });
        if !self.is_waiting {
            self.is_waiting = true;
            timer.as_mut().reset(tokio::time::Instant::now() + limit);
        }
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(BodyError::Timeout))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl ResponseBody {
    pub fn own(body: Bytes, mut record: RequestRecord) -> Self {
        record.is_complete = body.is_empty();
        let reader = record.client.begin_response();
        Self { kind: ResponseBodyKind::Own(body), reader, record: Some(record) }
    }

    pub(crate) fn of_endpoint(body: EndpointBody, mut record: RequestRecord) -> Self {
        record.is_complete |= body.is_finished();
        let reader = record.client.begin_response();
        Self { kind: ResponseBodyKind::Endpoint(Box::new(body)), reader, record: Some(record) }
    }

    pub fn none() -> Self {
        Self { kind: ResponseBodyKind::Own(Bytes::new()), reader: None, record: None }
    }
}

impl ResponseBody {
    fn poll_octets(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = match &mut self.kind {
            ResponseBodyKind::Own(body) if body.is_empty() => return Poll::Ready(None),
            ResponseBodyKind::Own(body) => {
                let body = std::mem::take(body);
                if let Some(record) = &mut self.record {
                    (record.sent, record.is_complete) = (body.len() as u64, true);
                }
                return Poll::Ready(Some(Ok(Frame::data(body))));
            }
            ResponseBodyKind::Endpoint(body) => body,
        };
        let result = body.poll_compressed(cx);
        let Some(record) = &mut self.record else { return result };
        record.is_complete |= body.is_finished();
        match &result {
            Poll::Ready(Some(Ok(frame))) => {
                record.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            Poll::Ready(Some(Err(error))) => {
                let (reason, kind) = match error {
                    BodyError::Endpoint => ("endpoint_closed", UpstreamError::Closed),
                    BodyError::Timeout => ("endpoint_timeout", UpstreamError::Timeout),
                };
                record.reason = Some(reason);
                record.failed(kind);
            }
            _ => {}
        }
        result
    }
}

impl Body for ResponseBody {
    type Data = Chunk;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, BodyError>>> {
        let this = self.get_mut();
        if let Some(reader) = &this.reader {
            ready!(reader.poll_room(cx));
        }
        let frame = ready!(this.poll_octets(cx));
        let chunk = |octets| match &this.reader {
            Some(reader) => reader.chunk(octets),
            None => Chunk::from(octets),
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseBodyKind::Own(body) => body.is_empty(),
            ResponseBodyKind::Endpoint(body) => body.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseBodyKind::Own(body) => SizeHint::with_exact(body.len() as u64),
            ResponseBodyKind::Endpoint(body) if body.compressed.is_some() => SizeHint::default(),
            ResponseBodyKind::Endpoint(body) => body.incoming.size_hint(),
        }
    }
}
