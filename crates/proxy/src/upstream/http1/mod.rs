//! A connection of HTTP/1.1 to an endpoint. It has no task of its own: whoever waits for the response reads and writes, so
//! a request needs no messages between tasks. Only a body that is still sent when the response has begun gets a task.
//!
//! Invariants:
//! - One request at a time. The connection is reusable only if request and response were complete, and nothing else came.
//! - A body yields nothing of a later exchange.
//! - An interim response has no body, and ends no exchange.
//! - An idle connection holds no buffer.
//!
//! ```text
//! idle ──begin_request──> poll_head ──> body (poll_frame) ──> is_reusable ──> idle
//!                             └──101──> take_upgraded
//! ```

mod head;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(crate) use self::head::UpstreamRequestHead;
use self::head::{BodyEnd, ResponseHead};
use crate::body::RequestBody;
use crate::io::{Prefixed, ProxyStream};
use crate::message::{Framing, Malformed, Output, ReadBuffer, Reading, TrailerLimits, WrongLength};

/// Why there is no head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoResponse {
    /// The connection was closed before anything of the request was sent.
    NotSent,
    Closed,
    Malformed,
    /// The body of the request broke off.
    RequestBody,
}

pub(crate) struct Http1<S = ProxyStream, B = RequestBody>(RefCell<Http1ClientState<S, B>>);

struct Http1ClientState<S, B> {
    /// `None`: closed, or taken for an upgrade.
    stream: Option<S>,
    /// The number of the current exchange, or of the last one.
    exchange: u64,
    most_head: usize,
    read_buffer: ReadBuffer,
    output: Output,
    sending: Option<Sending<B>>,
    method: Method,
    keeps_alive: bool,
    is_upgraded: bool,
    /// Request or response broke off.
    is_broken: bool,
    /// Waits for the response, or for the end of the request.
    reader: Option<Waker>,
    /// Waits until more of the body can be sent.
    writer: Option<Waker>,
}

struct Sending<B> {
    body: B,
    framing: Framing,
}

/// Why a request could not be sent to its end.
enum SendFailure {
    Io,
    Body,
}

impl<S, B> Http1<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    /// `most_head`: the longest head of a response.
    pub fn new(stream: S, most_head: usize) -> Rc<Self> {
        Rc::new(Self(RefCell::new(Http1ClientState {
            stream: Some(stream),
            exchange: 0,
            most_head,
            read_buffer: ReadBuffer::new(Reading::Nothing),
            output: Output::default(),
            sending: None,
            method: Method::GET,
            keeps_alive: true,
            is_upgraded: false,
            is_broken: false,
            reader: None,
            writer: None,
        })))
    }

    /// Begins a request. [`Http1::poll_head`] sends it. At most `most_read` octets may come before the response's body.
    pub(crate) fn begin_request(&self, head: &UpstreamRequestHead<'_>, body: B, most_read: u64) {
        let mut state = self.0.borrow_mut();
        state.exchange += 1;
        let hint = (!body.is_end_stream()).then(|| body.size_hint());
        state.output.clear();
        let framing = head::write_request_head(head, hint.as_ref(), &mut state.output.text);
        state.sending = hint.is_some().then_some(Sending { body, framing });
        state.method = head.method.clone();
        state.keeps_alive = false;
        state.read_buffer.expect_head();
        state.read_buffer.most_read = state.read_buffer.read.saturating_add(most_read);
    }

    /// Sends the request, and reads the head of its response. `on_interim` gets each interim response before it.
    pub(crate) fn poll_head(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        on_interim: impl FnMut(StatusCode, HeaderMap),
    ) -> Poll<Result<Response<ReceivedBody<S, B>>, NoResponse>> {
        let mut state = self.0.borrow_mut();
        if state.is_sending() {
            match state.poll_send(cx) {
                Poll::Ready(Err(SendFailure::Body)) => {
                    return Poll::Ready(Err(NoResponse::RequestBody));
                }
                Poll::Ready(Err(SendFailure::Io)) if state.output.written() == 0 => {
                    return Poll::Ready(Err(NoResponse::NotSent));
                }
                // The endpoint may have said why it takes no more.
                Poll::Ready(Err(SendFailure::Io)) => state.stop_sending(),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        let head = ready!(state.poll_response_head(cx, on_interim))?;
        state.read_buffer.most_read = u64::MAX;
        let ResponseHead { status, version, headers, body, keeps_alive } = head;
        state.keeps_alive = keeps_alive && !state.is_broken;
        state.read_buffer.reading = match body {
            BodyEnd::Length(0) => Reading::Nothing,
            BodyEnd::Length(length) => Reading::Length(length),
            BodyEnd::Chunked => Reading::chunked(TrailerLimits::default()),
            BodyEnd::Closed => Reading::UntilClosed,
        };
        if status == StatusCode::SWITCHING_PROTOCOLS {
            (state.keeps_alive, state.is_upgraded) = (false, !state.is_sending());
        }
        let mut response = Response::new(ReceivedBody(self.clone(), state.exchange));
        *response.status_mut() = status;
        *response.version_mut() = version;
        *response.headers_mut() = headers;
        Poll::Ready(Ok(response))
    }

    /// Octets that were read.
    pub fn read(&self) -> u64 {
        self.0.borrow().read_buffer.read
    }

    /// Whether the request has still to be sent, or a part of it.
    pub(crate) fn is_sending(&self) -> bool {
        self.0.borrow().is_sending()
    }

    /// Sends the rest of a request whose response has begun.
    pub(crate) async fn send_rest(&self) {
        let sent = poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            state.writer = Some(cx.waker().clone());
            state.poll_send(cx)
        });
        let sent = sent.await;
        let mut state = self.0.borrow_mut();
        state.writer = None;
        match sent {
            Ok(()) => {}
            Err(SendFailure::Io) => state.stop_sending(),
            // The endpoint can no longer know what it responds to.
            Err(SendFailure::Body) => state.close(),
        }
        state.wake_reader();
    }

    /// Waits until [`Http1::send_rest`] has ended.
    pub async fn sent(&self) {
        poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            if !state.is_sending() {
                return Poll::Ready(());
            }
            state.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether another request can follow.
    pub(crate) fn is_reusable(&self) -> bool {
        let state = self.0.borrow();
        state.stream.is_some()
            && !state.is_sending()
            && state.read_buffer.is_body_complete()
            && state.keeps_alive
            && state.read_buffer.input.is_empty()
    }

    /// Ends when an idle connection can no longer be used: it was closed, or octets came that no request asked for.
    pub(crate) fn poll_unusable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        state.read_buffer.input = BytesMut::new();
        state.output.clear();
        let Some(stream) = &mut state.stream else { return Poll::Ready(()) };
        // Closing a connection whose octets were not read resets it.
        let mut octets = [MaybeUninit::uninit(); 1 << 10];
        Pin::new(stream).poll_read(cx, &mut ReadBuf::uninit(&mut octets)).map(|_| ())
    }

    pub fn close(&self) {
        self.0.borrow_mut().close();
    }
}

impl<S, B> Http1ClientState<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    fn is_sending(&self) -> bool {
        self.sending.is_some() || !self.output.is_done()
    }

    fn stop_sending(&mut self) {
        self.sending = None;
        self.output.clear();
        (self.keeps_alive, self.is_broken) = (false, true);
    }

    fn close(&mut self) {
        self.stream = None;
        self.stop_sending();
        self.wake_reader();
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendFailure>> {
        loop {
            // Data that is there already goes out with the head.
            let mut waits_for_body = false;
            if self.output.has_room() {
                match self.poll_request_body(cx) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => waits_for_body = true,
                }
            }
            let stream = self.stream.as_mut().ok_or(SendFailure::Io)?;
            ready!(self.output.poll_write_to(stream, cx)).map_err(|_| SendFailure::Io)?;
            if self.sending.is_none() {
                return Poll::Ready(Ok(()));
            }
            if waits_for_body {
                return Poll::Pending;
            }
        }
    }

    /// Takes the next part of the body into the output.
    fn poll_request_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendFailure>> {
        let Some(Sending { body, framing }) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let output = &mut self.output;
        let is_sent = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Err(_)) => return Poll::Ready(Err(SendFailure::Body)),
            None => framing.put_end(None, output).map(|()| true),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => framing.put_data(data, body.is_end_stream(), output),
                Err(frame) => framing.put_end(frame.trailers_ref(), output).map(|()| true),
            },
        };
        if is_sent.map_err(|WrongLength| SendFailure::Body)? {
            self.sending = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        mut on_interim: impl FnMut(StatusCode, HeaderMap),
    ) -> Poll<Result<ResponseHead, NoResponse>> {
        loop {
            if self.read_buffer.may_have_head() {
                let parsed = head::take_response_head(&mut self.read_buffer.input, &self.method);
                match parsed.map_err(|Malformed| NoResponse::Malformed)? {
                    Some(head) if is_interim(head.status) => {
                        on_interim(head.status, head.headers);
                        self.read_buffer.expect_head();
                        continue;
                    }
                    Some(head) => return Poll::Ready(Ok(head)),
                    None => {}
                }
            }
            if self.read_buffer.input.len() >= self.most_head {
                return Poll::Ready(Err(NoResponse::Malformed));
            }
            let count = ready!(self.read_buffer.poll_fill_head(self.stream.as_mut(), cx));
            let count = count.map_err(|_| NoResponse::Closed)?;
            if count == 0 {
                return Poll::Ready(Err(NoResponse::Closed));
            }
        }
    }

    /// The error comes with the next look, after what was received has been written: hyper drops that on an error.
    fn break_off<T>(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        self.close();
        self.read_buffer.reading = Reading::Broken;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The next part of the response's body.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Malformed>>> {
        let was_broken = matches!(self.read_buffer.reading, Reading::Broken);
        match self.read_buffer.poll_body(self.stream.as_mut(), cx) {
            Poll::Ready(Some(Err(Malformed))) if !was_broken => self.break_off(cx),
            Poll::Pending => {
                if self.is_sending() {
                    self.reader = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            next => next,
        }
    }
}

fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

/// The body of a response, with the number of its exchange: the connection may serve another one before the body is
/// dropped.
pub(crate) struct ReceivedBody<S = ProxyStream, B = RequestBody>(Rc<Http1<S, B>>, u64);

impl ReceivedBody {
    /// The connection after the endpoint's 101, once.
    pub(crate) fn take_upgraded(&self) -> Option<Prefixed<ProxyStream>> {
        let mut state = self.0.0.borrow_mut();
        if !std::mem::take(&mut state.is_upgraded) {
            return None;
        }
        let prefix = std::mem::take(&mut state.read_buffer.input).freeze();
        Some(Prefixed { prefix, stream: state.stream.take()? })
    }
}

impl<S, B> Body for ReceivedBody<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = Malformed;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Malformed>>> {
        let mut state = self.0.0.borrow_mut();
        if state.exchange == self.1 { state.poll_body(cx) } else { Poll::Ready(None) }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.0.borrow();
        state.exchange != self.1 || state.read_buffer.is_body_complete()
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.0.0.borrow();
        if state.exchange == self.1 {
            state.read_buffer.body_size()
        } else {
            SizeHint::with_exact(0)
        }
    }
}
