//! The body of a request on its way to an endpoint: passed on as it comes, never held as a whole.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use lb_http::RoutePolicy;
use lb_http::headers::strip_request_trailers;

use crate::http::http1::UploadBody;
use crate::incoming::{BrokenBody, IncomingBody};

/// The body of a request as the client's connection has it.
pub(crate) type ClientBody = IncomingBody<UploadBody>;

/// What the exchange knows about its request's body. Shared with the [`RequestBody`]s of all tries.
pub(crate) struct BodySource {
    incoming: RefCell<Option<ClientBody>>,
    /// Decides about trailers. `None` without a body: then no count is changed that workers share.
    policy: Option<Arc<RoutePolicy>>,
    most: u64,
    received: Cell<u64>,
    state: Cell<BodyState>,
    /// When the state changed.
    since: Cell<Instant>,
    failure: Cell<Option<BodyFailure>>,
    gate: Option<Gate>,
    is_open: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// The number of the try that gets the body.
    current: Cell<u32>,
    copy: RefCell<Option<BodyCopy>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// Nothing was read, so the body can be sent to another endpoint.
    Whole,
    /// The client has to send more.
    WaitsForClient,
    /// The endpoint has to take what was read.
    WaitsForEndpoint,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFailure {
    TooLarge,
    /// The client has gone, or what it sends is malformed.
    Client,
}

impl Display for BodyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "the request's body is too large",
            Self::Client => "the client did not complete the request's body",
        })
    }
}

impl std::error::Error for BodyFailure {}

/// What a copy of a body is told, until it says that it wants no more.
pub(crate) enum CopiedBody {
    /// The copy has `from` octets, and would have `by` more.
    Grows {
        from: usize,
        by: usize,
    },
    Complete(Bytes),
    /// The body was not complete, or the endpoint did not take all of it.
    Broken,
}

/// A copy of the body that is being made while the body is passed on.
struct BodyCopy {
    octets: BytesMut,
    /// Whether to go on.
    tell: Box<dyn FnMut(CopiedBody) -> bool>,
}

/// Keeps back the body of a request with `Expect: 100-continue` until the endpoint wants it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_open: Cell<bool>,
    notify: tokio::sync::Notify,
}

impl Gate {
    pub fn open(&self) {
        self.is_open.set(true);
        self.notify.notify_one();
    }

    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    pub async fn opened(&self) {
        if !self.is_open() {
            self.notify.notified().await;
        }
    }
}

impl BodySource {
    pub fn new(
        incoming: ClientBody,
        policy: &Arc<RoutePolicy>,
        most: Option<u64>,
        expects_continue: bool,
        now: Instant,
    ) -> Rc<Self> {
        let is_empty = incoming.is_end_stream();
        let state = if is_empty { BodyState::Done } else { BodyState::Whole };
        Rc::new(Self {
            incoming: RefCell::new(Some(incoming)),
            policy: (!is_empty).then(|| policy.clone()),
            most: most.unwrap_or(u64::MAX),
            received: Cell::new(0),
            state: Cell::new(state),
            since: Cell::new(now),
            failure: Cell::new(None),
            gate: expects_continue.then(Gate::default),
            is_open: Cell::new(false),
            waker: RefCell::default(),
            current: Cell::new(0),
            copy: RefCell::default(),
        })
    }

    /// The body of a request without one.
    pub fn empty(now: Instant) -> Rc<Self> {
        Self::of_octets(Bytes::new(), now)
    }

    /// A body that is known as a whole.
    pub(crate) fn of_octets(octets: Bytes, now: Instant) -> Rc<Self> {
        let state = if octets.is_empty() { BodyState::Done } else { BodyState::Whole };
        Rc::new(Self {
            most: octets.len() as u64,
            incoming: RefCell::new((!octets.is_empty()).then_some(ClientBody::Octets(octets))),
            policy: None,
            received: Cell::new(0),
            state: Cell::new(state),
            since: Cell::new(now),
            failure: Cell::new(None),
            gate: None,
            is_open: Cell::new(true),
            waker: RefCell::default(),
            current: Cell::new(0),
            copy: RefCell::default(),
        })
    }

    pub fn received(&self) -> u64 {
        self.received.get()
    }

    pub fn state(&self) -> BodyState {
        self.state.get()
    }

    pub fn since(&self) -> Instant {
        self.since.get()
    }

    pub fn failure(&self) -> Option<BodyFailure> {
        self.failure.get()
    }

    /// What keeps the body back until the endpoint wants it.
    pub(crate) fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// The endpoint has sent an interim response. `100 Continue` is for the proxy; clients of HTTP/1.1 get all others.
    pub(crate) fn receive_interim(&self, status: StatusCode, headers: HeaderMap) {
        if status != StatusCode::CONTINUE {
            if let Some(ClientBody::Http1(body)) = &*self.incoming.borrow() {
                body.send_interim(status, headers);
            }
        } else if let Some(gate) = &self.gate {
            gate.open();
        }
    }

    /// Whether the body can be sent again: there is none, or none of it was read. One that failed is not there any more.
    pub(crate) fn is_replayable(&self) -> bool {
        match self.state.get() {
            BodyState::Whole => true,
            BodyState::Done => self.received.get() == 0 && self.failure.get().is_none(),
            _ => false,
        }
    }

    /// Lets the body through; see [`Gate`].
    pub fn open(&self) {
        self.is_open.set(true);
        self.wake();
    }

    /// The number of a new try. The one before gets nothing of the body any more, so its connection ends.
    fn next_try(&self) -> u32 {
        self.current.set(self.current.get() + 1);
        self.wake();
        self.current.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The exchange has ended. A body that was kept back until then will not be sent any more.
    pub fn end(&self) {
        if self.gate.is_some() && !self.is_open.get() {
            self.abandon();
        }
    }

    /// No endpoint gets the rest of the body, and a connection to one must not wait for it. If that happens before the
    /// head of the response is written, the head says whether the client's connection is kept.
    pub fn abandon(&self) {
        // First: a body that ends without a failure is complete.
        if self.state.get() != BodyState::Done {
            self.failure.set(Some(BodyFailure::Client));
            self.enter(BodyState::Done);
        }
        self.incoming.take();
        self.open();
    }

    /// The endpoint has replied. It gets no body that it did not ask for.
    pub fn end_expectation(&self) {
        match &self.gate {
            Some(gate) if gate.is_open() => self.open(),
            // The endpoint's connection waits until the exchange ends: it still has to send its response.
            Some(_) => drop(self.incoming.take()),
            None => {}
        }
    }

    /// Copies the body from its beginning, while it is passed on.
    pub(crate) fn copy_body(&self, tell: impl FnMut(CopiedBody) -> bool + 'static) {
        let copy = BodyCopy { octets: BytesMut::new(), tell: Box::new(tell) };
        self.copy.replace(Some(copy));
    }

    fn add_to_copy(&self, frame: &Frame<Bytes>, is_last: bool) {
        let Some(mut copy) = self.copy.take() else { return };
        if let Some(octets) = frame.data_ref() {
            let (from, by) = (copy.octets.len(), octets.len());
            if !(copy.tell)(CopiedBody::Grows { from, by }) {
                return;
            }
            copy.octets.extend_from_slice(octets);
        }
        self.copy.replace(Some(copy));
        if is_last {
            self.complete_copy();
        }
    }

    fn complete_copy(&self) {
        if let Some(mut copy) = self.copy.take() {
            (copy.tell)(CopiedBody::Complete(copy.octets.split().freeze()));
        }
    }

    fn break_copy(&self) {
        if let Some(mut copy) = self.copy.take() {
            (copy.tell)(CopiedBody::Broken);
        }
    }

    fn enter(&self, state: BodyState) {
        self.state.set(state);
        self.since.set(Instant::now());
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        if self.gate.is_some() && !self.is_open.get() {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut incoming = self.incoming.borrow_mut();
        let Some(body) = incoming.as_mut() else {
            return Poll::Ready(self.failure.get().map(Err));
        };
        let frame = match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                if self.state.get() != BodyState::WaitsForClient {
                    self.enter(BodyState::WaitsForClient);
                }
                return Poll::Pending;
            }
        };
        let fail = |failure| {
            self.break_copy();
            self.failure.set(Some(failure));
            self.enter(BodyState::Done);
            Poll::Ready(Some(Err(failure)))
        };
        match frame {
            None => {
                self.complete_copy();
                self.enter(BodyState::Done);
                Poll::Ready(None)
            }
            Some(Err(BrokenBody)) => fail(BodyFailure::Client),
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut()
                    && let Some(policy) = &self.policy
                {
                    strip_request_trailers(trailers, policy);
                }
                let count = frame.data_ref().map_or(0, Bytes::len) as u64;
                let received = self.received.get() + count;
                self.received.set(received);
                if received > self.most {
                    return fail(BodyFailure::TooLarge);
                }
                let is_last = frame.is_trailers() || body.is_end_stream();
                self.add_to_copy(&frame, is_last);
                self.enter(if is_last { BodyState::Done } else { BodyState::WaitsForEndpoint });
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }
}

impl Drop for BodySource {
    fn drop(&mut self) {
        self.break_copy();
    }
}

/// The body of one try.
pub(crate) enum RequestBody {
    Empty,
    Source { source: Rc<BodySource>, number: u32 },
}

impl RequestBody {
    pub fn of(source: &Rc<BodySource>) -> Self {
        match source.state() {
            BodyState::Done => Self::Empty,
            _ => Self::Source { source: source.clone(), number: source.next_try() },
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFailure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Source { source, number } if *number != source.current.get() => {
                // For the connection this is as if the client had gone.
                Poll::Ready(Some(Err(BodyFailure::Client)))
            }
            Self::Source { source, .. } => Poll::Ready(ready!(source.poll(cx))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Source { source, .. } => {
                source.incoming.borrow().as_ref().is_none_or(Body::is_end_stream)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Source { source, .. } => {
                let incoming = source.incoming.borrow();
                incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its length would be announced to the next endpoint, which then takes another request for the body.
    #[test]
    fn a_body_that_failed_before_its_first_octet_is_not_sent_again() {
        let source = BodySource::empty(Instant::now());
        assert!(source.is_replayable());
        source.failure.set(Some(BodyFailure::Client));
        assert!(!source.is_replayable());
    }
}
