//! A connection of HTTP/1.1 to an endpoint. It has no task of its own: whoever waits for the response reads and writes, so
//! a request needs no messages between tasks. Only a body that is still sent when the response has begun gets a task.
//!
//! Invariants:
//! - One request at a time. The connection is reusable only if request and response were complete, and nothing else came.
//! - A body yields nothing of a later exchange.
//! - Interim responses are taken, not passed on.
//! - An idle connection holds no buffer.
//!
//! ```text
//! idle ──begin_request──> poll_head ──> body (poll_frame) ──> is_reusable ──> idle
//!                             └──101──> take_upgraded
//! ```

mod chunked;
mod head;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use self::chunked::{ChunkDecoder, Decoded};
pub(crate) use self::head::RequestHead;
use self::head::{BodyEnd, Framing, Malformed, ResponseHead};
use crate::body::{Gate, RequestBody};
use crate::io::{Prefixed, Stream};

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

/// First read of a response. Most heads and short bodies fit.
const FIRST_READ: usize = 8 << 10;
/// Largest read of a body.
const LARGEST_READ: usize = 64 << 10;
/// Octets of a body after which other tasks get their turn, however fast the endpoint is.
const FAIR_SHARE: usize = 64 << 10;
/// Heads below this size are parsed after each read, larger ones only when their end has come.
const SMALL_HEAD: usize = 4 << 10;

pub(crate) struct Http1<S = Stream, B = RequestBody>(RefCell<State<S, B>>);

struct State<S, B> {
    /// `None`: closed, or taken for an upgrade.
    stream: Option<S>,
    /// The number of the current exchange, or of the last one.
    exchange: u64,
    most_head: usize,
    input: BytesMut,
    /// Octets at the beginning of the input in which a large head does not end.
    scanned: usize,
    /// Octets that were read.
    read: u64,
    /// More octets in all are an error.
    most_read: u64,
    output: Output,
    /// The stream may hold back octets that were written, as TLS does.
    is_unflushed: bool,
    written: u64,
    sending: Option<Sending<B>>,
    reading: Reading,
    /// Octets of the body that were read without waiting.
    read_at_once: usize,
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

enum Reading {
    /// No response is expected, or it was complete.
    Nothing,
    Head,
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClosed,
    /// The response broke off.
    Broken,
}

/// What has to be written, in this order.
#[derive(Default)]
struct Output {
    /// Heads, sizes of chunks, trailers.
    text: Vec<u8>,
    text_written: usize,
    data: Bytes,
    after: &'static [u8],
}

impl Output {
    fn is_empty(&self) -> bool {
        self.text_written == self.text.len() && self.data.is_empty() && self.after.is_empty()
    }

    fn advance(&mut self, mut count: usize) {
        let of_text = count.min(self.text.len() - self.text_written);
        self.text_written += of_text;
        count -= of_text;
        let of_data = count.min(self.data.len());
        self.data.advance(of_data);
        self.after = &self.after[count - of_data..];
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
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
        Rc::new(Self(RefCell::new(State {
            stream: Some(stream),
            exchange: 0,
            most_head,
            input: BytesMut::new(),
            scanned: 0,
            read: 0,
            most_read: u64::MAX,
            output: Output::default(),
            is_unflushed: false,
            written: 0,
            sending: None,
            reading: Reading::Nothing,
            read_at_once: 0,
            method: Method::GET,
            keeps_alive: true,
            is_upgraded: false,
            is_broken: false,
            reader: None,
            writer: None,
        })))
    }

    /// Begins a request. [`Http1::poll_head`] sends it. At most `most_read` octets may come before the response's body.
    pub(crate) fn begin_request(&self, head: &RequestHead<'_>, body: B, most_read: u64) {
        let mut state = self.0.borrow_mut();
        state.exchange += 1;
        let hint = (!body.is_end_stream()).then(|| body.size_hint());
        let mut text = Vec::new();
        let framing = head::write_request_head(head, hint.as_ref(), &mut text);
        state.output = Output { text, ..Output::default() };
        state.sending = hint.is_some().then_some(Sending { body, framing });
        state.written = 0;
        state.method = head.method.clone();
        state.reading = Reading::Head;
        (state.keeps_alive, state.scanned) = (false, 0);
        state.most_read = state.read.saturating_add(most_read);
    }

    /// Sends the request, and reads the head of its response. Interim responses of status 100 open the gate.
    pub(crate) fn poll_head(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        gate: Option<&Gate>,
    ) -> Poll<Result<Response<ReceivedBody<S, B>>, NoResponse>> {
        let mut state = self.0.borrow_mut();
        if state.is_sending() {
            match state.poll_send(cx) {
                Poll::Ready(Err(SendFailure::Body)) => {
                    return Poll::Ready(Err(NoResponse::RequestBody));
                }
                Poll::Ready(Err(SendFailure::Io)) if state.written == 0 => {
                    return Poll::Ready(Err(NoResponse::NotSent));
                }
                // The endpoint may have said why it takes no more.
                Poll::Ready(Err(SendFailure::Io)) => state.stop_sending(),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        let head = ready!(state.poll_response_head(cx, gate))?;
        state.most_read = u64::MAX;
        let ResponseHead { status, version, headers, body, keeps_alive } = head;
        state.keeps_alive = keeps_alive && !state.is_broken;
        state.reading = match body {
            BodyEnd::Length(0) => Reading::Nothing,
            BodyEnd::Length(length) => Reading::Length(length),
            BodyEnd::Chunked => Reading::Chunked(ChunkDecoder::default()),
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
        self.0.borrow().read
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
            && matches!(state.reading, Reading::Nothing)
            && state.keeps_alive
            && state.input.is_empty()
    }

    /// Ends when an idle connection can no longer be used: it was closed, or octets came that no request asked for.
    pub(crate) fn poll_unusable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        state.input = BytesMut::new();
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

impl<S, B> State<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    fn is_sending(&self) -> bool {
        self.sending.is_some() || !self.output.is_empty() || self.is_unflushed
    }

    fn stop_sending(&mut self) {
        self.sending = None;
        self.output.clear();
        self.is_unflushed = false;
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
            if self.output.data.is_empty() && self.output.after.is_empty() {
                match self.poll_request_body(cx) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => waits_for_body = true,
                }
            }
            ready!(self.poll_write(cx)).map_err(|_| SendFailure::Io)?;
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
        if output.text_written == output.text.len() {
            output.text.clear();
            output.text_written = 0;
        }
        let frame = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            None => None,
            Some(Err(_)) => return Poll::Ready(Err(SendFailure::Body)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let is_last = body.is_end_stream();
                    match framing {
                        Framing::Length(rest) => {
                            let count = data.len() as u64;
                            *rest = rest.checked_sub(count).ok_or(SendFailure::Body)?;
                            output.data = data;
                            if is_last && *rest == 0 {
                                self.sending = None;
                            }
                        }
                        Framing::Chunked(_) => {
                            if !data.is_empty() {
                                let _ = write!(output.text, "{:X}\r\n", data.len());
                                output.data = data;
                                output.after = if is_last { b"\r\n0\r\n\r\n" } else { b"\r\n" };
                            } else if is_last {
                                output.after = b"0\r\n\r\n";
                            }
                            if is_last {
                                self.sending = None;
                            }
                        }
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(frame) => frame.into_trailers().ok(),
            },
        };
        match framing {
            Framing::Length(0) => {}
            Framing::Length(_) => return Poll::Ready(Err(SendFailure::Body)),
            Framing::Chunked(announced) => {
                output.text.extend_from_slice(b"0\r\n");
                if let Some(trailers) = frame {
                    head::write_trailers(&trailers, announced, &mut output.text);
                }
                output.text.extend_from_slice(b"\r\n");
            }
        }
        self.sending = None;
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        while !self.output.is_empty() {
            let Output { text, text_written, data, after } = &self.output;
            let text = &text[*text_written..];
            let written = if data.is_empty() && after.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, text))?
            } else {
                let slices = [IoSlice::new(text), IoSlice::new(data), IoSlice::new(after)];
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written as u64;
            self.is_unflushed = true;
            self.output.advance(written);
        }
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.is_unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        gate: Option<&Gate>,
    ) -> Poll<Result<ResponseHead, NoResponse>> {
        loop {
            let is_worth_parsing = match self.input.len() {
                0 => false,
                length if length <= SMALL_HEAD => true,
                length => {
                    let from = self.scanned.min(length).saturating_sub(2);
                    self.scanned = length;
                    has_end_of_head(&self.input[from..])
                }
            };
            if is_worth_parsing {
                let parsed = head::take_response_head(&mut self.input, &self.method);
                match parsed.map_err(|Malformed| NoResponse::Malformed)? {
                    Some(head) if is_interim(head.status) => {
                        if let Some(gate) = gate.filter(|_| head.status == StatusCode::CONTINUE) {
                            gate.open();
                        }
                        self.scanned = 0;
                        continue;
                    }
                    Some(head) => return Poll::Ready(Ok(head)),
                    None => {}
                }
            }
            if self.input.len() >= self.most_head {
                return Poll::Ready(Err(NoResponse::Malformed));
            }
            let count = ready!(self.poll_fill(cx, FIRST_READ)).map_err(|_| NoResponse::Closed)?;
            if count == 0 {
                return Poll::Ready(Err(NoResponse::Closed));
            }
        }
    }

    /// Reads into the input. 0: the endpoint has closed the connection.
    fn poll_fill(&mut self, cx: &mut Context<'_>, size: usize) -> Poll<io::Result<usize>> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let count = if self.input.is_empty() && matches!(self.reading, Reading::Head) {
            // Memory for what came, not for what may come: malloc is fast up to a KiB.
            let mut octets = [MaybeUninit::uninit(); FIRST_READ];
            let mut octets = ReadBuf::uninit(&mut octets);
            ready!(Pin::new(stream).poll_read(cx, &mut octets))?;
            self.input.extend_from_slice(octets.filled());
            octets.filled().len()
        } else {
            if self.input.capacity() - self.input.len() < FIRST_READ / 4 {
                self.input.reserve(size);
            }
            ready!(pin!(stream.read_buf(&mut self.input)).poll(cx))?
        };
        self.read += count as u64;
        if self.read > self.most_read {
            return Poll::Ready(Err(io::Error::other("too many octets")));
        }
        Poll::Ready(Ok(count))
    }

    /// The error comes with the next look, after what was received has been written: hyper drops that on an error.
    fn break_off<T>(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        self.close();
        self.reading = Reading::Broken;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The next part of the response's body.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Malformed>>> {
        loop {
            let size = match &mut self.reading {
                Reading::Nothing | Reading::Head => return Poll::Ready(None),
                Reading::Broken => return Poll::Ready(Some(Err(Malformed))),
                Reading::Length(rest) => {
                    if !self.input.is_empty() {
                        let most = usize::try_from(*rest).unwrap_or(usize::MAX);
                        let data = self.input.split_to(self.input.len().min(most)).freeze();
                        *rest -= data.len() as u64;
                        if *rest == 0 {
                            self.reading = Reading::Nothing;
                        }
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    usize::try_from(*rest).unwrap_or(usize::MAX)
                }
                Reading::Chunked(decoder) => match decoder.decode(&mut self.input) {
                    Err(Malformed) => return self.break_off(cx),
                    Ok(Decoded::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Ok(Decoded::End(trailers)) => {
                        self.reading = Reading::Nothing;
                        return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                    }
                    Ok(Decoded::Partial) => LARGEST_READ,
                },
                Reading::UntilClosed => {
                    if !self.input.is_empty() {
                        let data = self.input.split().freeze();
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    LARGEST_READ
                }
            };
            if self.read_at_once >= FAIR_SHARE {
                self.read_at_once = 0;
                // Unlike waking the task at once, this also looks at all sockets before.
                return pin!(yield_now()).poll(cx).map(|()| None);
            }
            let count = match self.poll_fill(cx, size.clamp(FIRST_READ, LARGEST_READ)) {
                Poll::Ready(count) => {
                    self.read_at_once += count.as_ref().map_or(0, |count| *count);
                    count
                }
                Poll::Pending => {
                    self.read_at_once = 0;
                    if self.is_sending() {
                        self.reader = Some(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
            };
            match (count, &self.reading) {
                (Ok(0), Reading::UntilClosed) => {
                    self.reading = Reading::Nothing;
                    return Poll::Ready(None);
                }
                (Ok(0) | Err(_), _) => return self.break_off(cx),
                (Ok(_), _) => {}
            }
        }
    }
}

fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

/// Whether an empty line is in a part of a head.
fn has_end_of_head(part: &[u8]) -> bool {
    let mut line_ends = part.iter().enumerate().filter(|(_, octet)| **octet == b'\n');
    line_ends.any(|(at, _)| matches!(part[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

/// The body of a response, with the number of its exchange: the connection may serve another one before the body is
/// dropped.
pub(crate) struct ReceivedBody<S = Stream, B = RequestBody>(Rc<Http1<S, B>>, u64);

impl ReceivedBody {
    /// The connection after the endpoint's 101, once.
    pub(crate) fn take_upgraded(&self) -> Option<Prefixed<Stream>> {
        let mut state = self.0.0.borrow_mut();
        if !std::mem::take(&mut state.is_upgraded) {
            return None;
        }
        let prefix = std::mem::take(&mut state.input).freeze();
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
        state.exchange != self.1 || matches!(state.reading, Reading::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.0.0.borrow();
        match state.reading {
            _ if state.exchange != self.1 => SizeHint::with_exact(0),
            Reading::Nothing => SizeHint::with_exact(0),
            Reading::Length(rest) => SizeHint::with_exact(rest),
            _ => SizeHint::default(),
        }
    }
}
