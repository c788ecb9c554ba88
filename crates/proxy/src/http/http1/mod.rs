//! A client's connection of HTTP/1.1. One state machine reads requests and writes responses; the body of a request is
//! read by whoever forwards it.
//!
//! Invariants:
//! - One exchange at a time. The next head is read only when request and response are complete, so no octet of a body
//!   becomes a head.
//! - A body yields nothing of a later exchange.
//! - After a malformed head or body, after a body that nobody reads, and when the response says so, nothing more is
//!   read as HTTP. The response says it, if it is known when its head is written.
//! - Nothing is read ahead of what is served but what one look finds, and a response is written before its body goes on.
//! - An idle connection holds no buffer.
//!
//! ```text
//! Head ──> Exchange ──> Response ──> Rest ──> Head
//!   │                                  └──101──> the tunnel takes the stream
//!   └──malformed, closed, idle──> Shutdown ──> Linger
//! ```

mod head;
mod slots;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use lb_http::headers::strip_response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

pub(crate) use self::head::HeadLimits;
use self::head::{RequestBodyEnd, RequestFacts, RequestHead};
use self::slots::FutureSlot;
pub(crate) use self::slots::FutureSlots;
use crate::io::{Prefixed, ResetOnClose, WatchedStream};
use crate::message::{Framing, Malformed, Output, ReadBuffer, Reading, TrailerLimits, WrongLength};

/// Steps of one connection, a few for each request, before other tasks get their turn.
const STEPS_AT_ONCE: usize = 64;

/// A client that still sends when its connection ends gets this long to read the last response.
const LINGER_LIMIT: Duration = Duration::from_secs(2);
/// Octets of such a client that are read and discarded. Further ones are not read.
const MOST_DISCARDED: usize = 256 << 10;

/// Interim responses of endpoints that a client gets for one request. Some clients fail after five.
const MOST_INTERIM: u8 = 4;
/// Octets of them that wait for the client. What would exceed them is left out.
const MOST_INTERIM_OCTETS: usize = 8 << 10;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What a connection and the body of its current request share.
struct Incoming<S>(RefCell<Http1ServerState<S>>);

struct Http1ServerState<S> {
    /// `None`: a tunnel has taken it.
    stream: Option<S>,
    read_buffer: ReadBuffer,
    /// The number of the current exchange.
    exchange: u64,
    interim: Interim,
    /// Heads of the endpoint's interim responses that are to be written.
    interim_heads: Vec<u8>,
    /// How many more there may be.
    interim_left: u8,
    /// Nobody reads the rest of the body.
    is_body_dropped: bool,
    /// Of the connection's task, if that waits for the end of the body.
    connection: Option<Waker>,
    /// Of the task that waits for more of the body.
    reader: Option<Waker>,
}

/// Whether the client gets `100 Continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interim {
    NotExpected,
    Expected,
    /// The body is read.
    Wanted,
}

impl<S: ResetOnClose> Incoming<S> {
    /// For the client, a response without length and chunks is complete when the connection ends, unless that is reset.
    fn mark_incomplete(&self, framing: &Framing) {
        if let (Framing::Closed, Some(stream)) = (framing, &self.0.borrow().stream) {
            stream.reset_on_close();
        }
    }
}

impl<S> Http1ServerState<S> {
    fn wake_connection(&mut self) {
        if let Some(waker) = self.connection.take() {
            waker.wake();
        }
    }
}

/// The stream of a connection that changes its protocol, once the client has the 101.
pub(crate) type UpgradedStream<S> = oneshot::Receiver<Prefixed<S>>;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    Normally,
    /// After what is no head of a request.
    Malformed,
}

/// `V` makes the future `F` of a request, whose response has the body `B`.
pub(crate) struct Http1Connection<S, V, F, B> {
    incoming: Rc<Incoming<S>>,
    serve: V,
    limits: HeadLimits,
    slots: Rc<FutureSlots<F>>,
    output: Output,
    stage: Stage<F, B>,
    request: RequestFacts,
    upgrade: Option<oneshot::Sender<Prefixed<S>>>,
    /// No request is served after the current one.
    is_closing: bool,
    /// What the connection ends with.
    closed: Closed,
    /// When the first octets of a head came that is not complete.
    head_since: Option<Instant>,
}

enum Stage<F, B> {
    Head,
    Exchange(FutureSlot<F>),
    /// Boxed, because an idle connection has no room for it.
    Response(Box<B>, Framing),
    /// The response is complete, but perhaps not written, and the request not complete.
    Rest,
    /// What is in the output is the last thing that the client gets.
    Shutdown,
    /// The client may still be sending. Closing the socket with unread octets would reset the connection, and the client
    /// would lose what it has not read (RFC 9112, 9.6).
    Linger(Box<Linger>),
    /// As [`Stage::Shutdown`], but the client must not take the response for complete.
    BreakOff,
}

struct Linger {
    timer: Pin<Box<Sleep>>,
    /// Octets that may still be discarded.
    rest: usize,
}

impl<S, V, F, B> Http1Connection<S, V, F, B>
where
    S: AsyncRead + AsyncWrite + ResetOnClose + Unpin,
    V: FnMut(Parts, UploadBody<S>, Option<UpgradedStream<S>>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data: Buf> + Unpin,
{
    pub fn new(stream: S, limits: HeadLimits, slots: Rc<FutureSlots<F>>, serve: V) -> Self {
        let state = Http1ServerState {
            stream: Some(stream),
            read_buffer: ReadBuffer::new(Reading::Head),
            exchange: 0,
            interim: Interim::NotExpected,
            interim_heads: Vec::new(),
            interim_left: 0,
            is_body_dropped: false,
            connection: None,
            reader: None,
        };
        Self {
            incoming: Rc::new(Incoming(RefCell::new(state))),
            serve,
            limits,
            slots,
            output: Output::default(),
            stage: Stage::Head,
            request: RequestFacts::unknown(),
            upgrade: None,
            is_closing: false,
            closed: Closed::Normally,
            head_since: None,
        }
    }

    pub fn head_since(&self) -> Option<Instant> {
        self.head_since.filter(|_| matches!(self.stage, Stage::Head))
    }

    /// The connection ends after the current exchange, and at once if there is none.
    pub fn close_gracefully(&mut self) {
        self.is_closing = true;
        let state = self.incoming.0.borrow();
        // The first request may be on the way.
        let is_first = state.exchange == 0 && !state.read_buffer.input.is_empty();
        if matches!(self.stage, Stage::Head) && !is_first {
            drop(state);
            self.stage = Stage::Shutdown;
        }
    }

    pub fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        for _ in 0..STEPS_AT_ONCE {
            let is_over = match &mut self.stage {
                Stage::Head => ready!(self.poll_head(cx)),
                Stage::Exchange(_) => ready!(self.poll_exchange(cx)),
                Stage::Response(..) => ready!(self.poll_response(cx)),
                Stage::Rest => ready!(self.poll_rest(cx)),
                Stage::Shutdown => ready!(self.poll_shutdown(cx)),
                Stage::Linger(_) => ready!(self.poll_linger(cx)),
                Stage::BreakOff => {
                    let _ = ready!(self.poll_write(cx));
                    IsOver(true)
                }
            };
            if is_over.0 {
                return Poll::Ready(self.closed);
            }
        }
        // Unlike waking the task at once, this also looks at all sockets before.
        pin!(yield_now()).poll(cx).map(|()| self.closed)
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<IsOver> {
        match ready!(self.poll_request_head(cx)) {
            Ok(head) => self.begin_exchange(head),
            Err(NoRequestHead::Refused(status)) => self.refuse_head(status),
            Err(NoRequestHead::End) => self.stage = Stage::Shutdown,
            Err(NoRequestHead::BrokenOff) => self.stage = Stage::BreakOff,
        }
        Poll::Ready(IsOver(false))
    }

    fn poll_request_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RequestHead, NoRequestHead>> {
        let mut state = self.incoming.0.borrow_mut();
        let state = &mut *state;
        let read_buffer = &mut state.read_buffer;
        loop {
            if read_buffer.may_have_head() {
                let head = head::take_request_head(&mut read_buffer.input, &self.limits);
                if let Some(head) = head.map_err(NoRequestHead::Refused)? {
                    self.head_since = None;
                    return Poll::Ready(Ok(head));
                }
            }
            if read_buffer.input.len() >= self.limits.octets {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                return Poll::Ready(Err(NoRequestHead::Refused(status)));
            }
            match read_buffer.poll_fill_head(state.stream.as_mut(), cx) {
                Poll::Ready(Ok(0)) => {
                    let no_head = if has_begun(&read_buffer.input) {
                        NoRequestHead::BrokenOff
                    } else {
                        NoRequestHead::End
                    };
                    return Poll::Ready(Err(no_head));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(NoRequestHead::BrokenOff)),
                Poll::Pending => {
                    if read_buffer.input.is_empty() {
                        self.output.clear();
                    } else if self.head_since.is_none() && has_begun(&read_buffer.input) {
                        self.head_since = Some(Instant::now());
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn begin_exchange(&mut self, head: RequestHead) {
        let RequestHead { parts, body, expects_continue, wants_upgrade, facts } = head;
        self.request = facts;
        let exchange = {
            let mut state = self.incoming.0.borrow_mut();
            let trailers = TrailerLimits { octets: self.limits.octets, count: self.limits.headers };
            state.read_buffer.reading = match body {
                RequestBodyEnd::Length(0) => Reading::Nothing,
                RequestBodyEnd::Length(length) => Reading::Length(length),
                RequestBodyEnd::Chunked => Reading::chunked(trailers),
            };
            state.interim = if expects_continue { Interim::Expected } else { Interim::NotExpected };
            // A client of HTTP/1.0 would take one for the final response.
            state.interim_left = if facts.version == Version::HTTP_10 { 0 } else { MOST_INTERIM };
            state.is_body_dropped = false;
            state.exchange += 1;
            state.exchange
        };
        let upgraded = wants_upgrade.then(oneshot::channel);
        let (sender, upgraded) = upgraded.map_or((None, None), |(s, u)| (Some(s), Some(u)));
        self.upgrade = sender;
        let body = UploadBody { incoming: self.incoming.clone(), exchange };
        let exchange = (self.serve)(parts, body, upgraded);
        self.stage = Stage::Exchange(self.slots.put(exchange));
    }

    /// Replies to what is no head of a request. What follows may be the rest of an attack.
    fn refuse_head(&mut self, status: StatusCode) {
        let facts = RequestFacts { keeps_alive: false, is_head: false, ..self.request };
        head::write_response_head(status, &HeaderMap::new(), None, &facts, &mut self.output.text);
        self.closed = Closed::Malformed;
        self.stage = Stage::Shutdown;
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<IsOver> {
        let Stage::Exchange(future) = &mut self.stage else { return Poll::Ready(IsOver(true)) };
        let is_body_complete = {
            let mut state = self.incoming.0.borrow_mut();
            // This task need not be woken by what it does itself.
            state.connection = None;
            // Before the endpoint gets anything: nobody would take the response.
            if state.read_buffer.is_body_complete() && state.is_client_gone(cx) {
                return Poll::Ready(IsOver(true));
            }
            state.read_buffer.is_body_complete()
        };
        match future.poll(cx) {
            Poll::Ready(Ok(response)) => {
                self.begin_response(response, cx);
                Poll::Ready(IsOver(false))
            }
            Poll::Pending => {
                self.write_interim();
                if !self.output.is_done()
                    && let Poll::Ready(Err(_)) = self.poll_write(cx)
                {
                    return Poll::Ready(IsOver(true));
                }
                if is_body_complete { Poll::Pending } else { self.wait_for_client(cx) }
            }
        }
    }

    fn write_interim(&mut self) {
        let mut state = self.incoming.0.borrow_mut();
        if state.interim == Interim::Wanted {
            state.interim = Interim::NotExpected;
            // Nobody reads what the client would send.
            if !state.is_body_dropped {
                self.output.text.extend_from_slice(CONTINUE);
            }
        }
        if self.output.has_room() {
            self.output.text.extend_from_slice(&std::mem::take(&mut state.interim_heads));
        }
    }

    fn begin_response(&mut self, response: Response<B>, cx: &mut Context<'_>) {
        let (parts, body) = response.into_parts();
        self.write_interim();
        {
            let mut state = self.incoming.0.borrow_mut();
            // Before the end of the body, the response is final.
            (state.interim, state.interim_left) = (Interim::NotExpected, 0);
            state.interim_heads = Vec::new();
            self.request.keeps_alive &= !self.is_closing && state.drain_body(cx);
        }
        let is_switch = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        let is_valid = if is_switch {
            self.upgrade.is_some() && self.incoming.0.borrow().read_buffer.is_body_complete()
        } else {
            !parts.status.is_informational()
        };
        if !is_valid {
            drop(body);
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            let facts = RequestFacts { keeps_alive: false, ..self.request };
            let text = &mut self.output.text;
            head::write_response_head(status, &HeaderMap::new(), None, &facts, text);
            self.stage = Stage::Shutdown;
            return;
        }
        if !is_switch {
            self.upgrade = None;
        }
        let hint = (!body.is_end_stream()).then(|| body.size_hint());
        let text = &mut self.output.text;
        let framing = head::write_response_head(
            parts.status,
            &parts.headers,
            hint.as_ref(),
            &self.request,
            text,
        );
        self.request.keeps_alive = framing.keeps_alive;
        self.stage = match framing.body {
            Some(framing) => self.gather_body(body, framing, cx),
            None => Stage::Rest,
        };
    }

    /// Takes what there is of a body that has begun: most are there as a whole, and go out with the head.
    fn gather_body(
        &mut self,
        mut body: B,
        mut framing: Framing,
        cx: &mut Context<'_>,
    ) -> Stage<F, B> {
        match gather(&mut body, &mut framing, &mut self.output, cx) {
            Gathered::End => Stage::Rest,
            Gathered::Broken => {
                self.incoming.mark_incomplete(&framing);
                Stage::BreakOff
            }
            Gathered::Enough | Gathered::Waits => Stage::Response(Box::new(body), framing),
        }
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<IsOver> {
        loop {
            let Stage::Response(body, framing) = &mut self.stage else {
                return Poll::Ready(IsOver(false));
            };
            let waits = match gather(&mut **body, framing, &mut self.output, cx) {
                Gathered::End => {
                    self.stage = Stage::Rest;
                    return Poll::Ready(IsOver(false));
                }
                Gathered::Broken => {
                    self.incoming.mark_incomplete(framing);
                    self.stage = Stage::BreakOff;
                    return Poll::Ready(IsOver(false));
                }
                Gathered::Enough => false,
                Gathered::Waits => true,
            };
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) if !waits => {}
                Poll::Ready(Ok(())) | Poll::Pending => return self.wait_for_client(cx),
                Poll::Ready(Err(_)) => return Poll::Ready(IsOver(true)),
            }
        }
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<IsOver> {
        match self.poll_write(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(IsOver(true)),
            Poll::Pending => return self.wait_for_client(cx),
        }
        let mut state = self.incoming.0.borrow_mut();
        if let Some(upgrade) = self.upgrade.take()
            && let Some(stream) = state.stream.take()
        {
            let prefix = std::mem::take(&mut state.read_buffer.input).freeze();
            // Without a receiver, the tunnel has ended before it began.
            let _ = upgrade.send(Prefixed { prefix, stream });
            return Poll::Ready(IsOver(true));
        }
        match state.drain_body(cx) {
            _ if state.read_buffer.is_body_complete() => {
                if self.request.keeps_alive && !self.is_closing {
                    state.read_buffer.expect_head();
                    self.stage = Stage::Head;
                } else {
                    self.stage = Stage::Shutdown;
                }
            }
            // Somebody still forwards the body.
            true => {
                drop(state);
                return self.wait_for_client(cx);
            }
            false => self.stage = Stage::Shutdown,
        }
        Poll::Ready(IsOver(false))
    }

    /// Returns `Pending`, unless the client has closed the connection: the exchange ends then.
    fn wait_for_client(&self, cx: &mut Context<'_>) -> Poll<IsOver> {
        let mut state = self.incoming.0.borrow_mut();
        if !state.read_buffer.is_body_complete() {
            // Whoever forwards the body notices the end of the connection.
            state.connection = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if state.is_client_gone(cx) { Poll::Ready(IsOver(true)) } else { Poll::Pending }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.incoming.0.borrow_mut();
        let stream = state.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        self.output.poll_write_to(stream, cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<IsOver> {
        if ready!(self.poll_write(cx)).is_err() {
            return Poll::Ready(IsOver(true));
        }
        let state = &mut *self.incoming.0.borrow_mut();
        if let Some(stream) = &mut state.stream
            && ready!(Pin::new(stream).poll_shutdown(cx)).is_err()
        {
            return Poll::Ready(IsOver(true));
        }
        let read_buffer = &state.read_buffer;
        let may_send_more = self.closed == Closed::Malformed
            || read_buffer.has_body()
            || matches!(read_buffer.reading, Reading::Broken)
            || !read_buffer.input.is_empty();
        if may_send_more {
            let timer = Box::pin(sleep(LINGER_LIMIT));
            self.stage = Stage::Linger(Box::new(Linger { timer, rest: MOST_DISCARDED }));
        }
        Poll::Ready(IsOver(!may_send_more))
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<IsOver> {
        let state = &mut *self.incoming.0.borrow_mut();
        let (Stage::Linger(linger), Some(stream)) = (&mut self.stage, &mut state.stream) else {
            return Poll::Ready(IsOver(true));
        };
        while linger.rest > 0 {
            let mut octets = [MaybeUninit::uninit(); 8 << 10];
            let mut octets = ReadBuf::uninit(&mut octets);
            match Pin::new(&mut *stream).poll_read(cx, &mut octets) {
                Poll::Ready(Ok(())) if !octets.filled().is_empty() => {
                    linger.rest = linger.rest.saturating_sub(octets.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(IsOver(true)),
                Poll::Pending => break,
            }
        }
        linger.timer.as_mut().poll(cx).map(|()| IsOver(true))
    }
}

/// Whether a head has begun. Empty lines before it are no part of it.
fn has_begun(input: &[u8]) -> bool {
    input.iter().any(|octet| !matches!(octet, b'\r' | b'\n'))
}

/// What [`gather`] has found.
enum Gathered {
    End,
    Broken,
    /// The output is full: it must be written before more of the body is taken.
    Enough,
    Waits,
}

/// Takes parts of a body into the output, so that few writes are needed.
fn gather<B: Body<Data: Buf> + Unpin>(
    body: &mut B,
    framing: &mut Framing,
    output: &mut Output,
    cx: &mut Context<'_>,
) -> Gathered {
    while output.has_room() {
        let Poll::Ready(next) = Pin::new(&mut *body).poll_frame(cx) else {
            return Gathered::Waits;
        };
        let is_end = match next {
            None => framing.put_end(None, output).map(|()| true),
            Some(Err(_)) => return Gathered::Broken,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    let data = data.copy_to_bytes(data.remaining());
                    framing.put_data(data, body.is_end_stream(), output)
                }
                Err(frame) => framing.put_end(frame.trailers_ref(), output).map(|()| true),
            },
        };
        match is_end {
            Ok(false) => {}
            Ok(true) => return Gathered::End,
            Err(WrongLength) => return Gathered::Broken,
        }
    }
    Gathered::Enough
}

impl<S, V, F, B> Drop for Http1Connection<S, V, F, B> {
    /// Whoever still forwards a body must not keep the stream.
    fn drop(&mut self) {
        let mut state = self.incoming.0.borrow_mut();
        state.stream = None;
        if state.read_buffer.has_body() {
            state.read_buffer.reading = Reading::Broken;
        }
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

/// Why there is no next request.
enum NoRequestHead {
    /// With this status.
    Refused(StatusCode),
    /// The client has closed the connection between requests.
    End,
    BrokenOff,
}

/// Whether the connection has ended.
struct IsOver(bool);

impl<S: AsyncRead + Unpin> Http1ServerState<S> {
    /// Whether the client has closed the connection behind its request. Its next request waits until this one is served.
    fn is_client_gone(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.read_buffer.input.is_empty() {
            return false;
        }
        let read = self.read_buffer.poll_fill_head(self.stream.as_mut(), cx);
        matches!(read, Poll::Ready(Ok(0) | Err(_)))
    }

    /// Takes the rest of a body that nobody reads, if it is there, and is not more than the connection's share of the
    /// thread. Whether more may be read from the connection.
    fn drain_body(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_body_dropped && !self.read_buffer.is_body_complete() {
            while self.read_buffer.has_body()
                && self.read_buffer.poll_body(self.stream.as_mut(), cx).is_ready()
            {}
            return self.read_buffer.is_body_complete();
        }
        !matches!(self.read_buffer.reading, Reading::Broken)
    }
}

/// The body of a client's request, read from the connection as it is asked for.
pub(crate) struct UploadBody<S = WatchedStream> {
    incoming: Rc<Incoming<S>>,
    exchange: u64,
}

impl<S> UploadBody<S> {
    /// Sends the client an interim response of the endpoint. Those after a few, and long ones, are left out.
    pub(crate) fn send_interim(&self, status: StatusCode, mut headers: HeaderMap) {
        let state = &mut *self.incoming.0.borrow_mut();
        let length = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
        let octets: usize = headers.iter().map(length).sum();
        if state.exchange == self.exchange
            && state.interim_left > 0
            && state.interim_heads.len() + octets <= MOST_INTERIM_OCTETS
        {
            state.interim_left -= 1;
            strip_response(&mut headers);
            head::write_interim_head(status, &headers, &mut state.interim_heads);
        }
    }
}

impl<S: AsyncRead + Unpin> Body for UploadBody<S> {
    type Data = Bytes;
    type Error = Malformed;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Malformed>>> {
        let mut state = self.incoming.0.borrow_mut();
        let state = &mut *state;
        if state.exchange != self.exchange {
            return Poll::Ready(None);
        }
        if state.interim == Interim::Expected {
            state.interim = Interim::Wanted;
            state.wake_connection();
        }
        let frame = state.read_buffer.poll_body(state.stream.as_mut(), cx);
        state.reader = frame.is_pending().then(|| cx.waker().clone());
        if matches!(state.read_buffer.reading, Reading::Nothing | Reading::Broken) {
            state.wake_connection();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let state = self.incoming.0.borrow();
        state.exchange != self.exchange
            || matches!(state.read_buffer.reading, Reading::Nothing | Reading::Head)
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            return SizeHint::with_exact(0);
        }
        self.incoming.0.borrow().read_buffer.body_size()
    }
}

impl<S> Drop for UploadBody<S> {
    fn drop(&mut self) {
        let mut state = self.incoming.0.borrow_mut();
        if state.exchange == self.exchange && state.read_buffer.has_body() {
            state.is_body_dropped = true;
            state.wake_connection();
        }
    }
}
