//! The connections of one worker to one endpoint.
//!
//! Invariants:
//! - A connection of HTTP/1 carries one request at a time, and is used again only after its response was complete.
//! - Unused connections are bounded in number and age.

use std::cell::{Cell, RefCell};
use std::error::Error as _;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http2};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use lb_http::upstream::UpstreamProtocol;
use pin_project_lite::pin_project;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connect::{Connected, Wanted, connect_endpoint};
use super::http1::{Http1, NoResponse, ReceivedBody, UpstreamRequestHead};
use crate::body::{BodySource, RequestBody};
use crate::http::outbound::Outbound;
use crate::incoming::IncomingBody;
use crate::io::{Prefixed, WatchedStream};
use crate::metrics::UpstreamError;
use crate::settings::ProxyLimits;
use crate::tls::client::EndpointTls;

/// For the rest of a request after its response has ended.
const SEND_REST_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct ConnectionPool {
    address: SocketAddr,
    protocol: UpstreamProtocol,
    tls: Option<Rc<EndpointTls>>,
    /// The one that was used last is used first, so that others become old.
    idle: RefCell<Vec<Idle>>,
    /// Of the task that notices which of them can no longer be used.
    idle_watcher: RefCell<Option<Waker>>,
    multiplexed: RefCell<Vec<Rc<Multiplexed>>>,
    /// What the endpoint spoke last.
    is_http2: Cell<bool>,
    /// A connection is being made that all can use.
    is_connecting: Cell<bool>,
    connected: Notify,
    /// Connections of HTTP/2 that were made.
    opened: Cell<u64>,
    is_closed: Cell<bool>,
}

struct Idle {
    connection: Rc<Http1>,
    since: Instant,
}

/// A connection of HTTP/2.
struct Multiplexed {
    sender: http2::SendRequest<RequestBody>,
    /// Requests that the endpoint takes at the same time, as of its last request.
    most: Cell<usize>,
    streams: Cell<usize>,
    idle_since: Cell<Instant>,
}

/// The body of an endpoint's response, as its connection has it.
pub(crate) type EndpointResponseBody = IncomingBody<ReceivedBody>;

impl EndpointResponseBody {
    /// The connection after the endpoint's 101, once.
    pub(crate) fn take_upgraded(&self) -> Option<Prefixed<crate::io::ProxyStream>> {
        match self {
            Self::Http1(body) => body.take_upgraded(),
            Self::Http2(_) | Self::Octets(_) => None,
        }
    }
}

/// The head of a response.
pub(crate) type Sent = Result<Response<EndpointResponseBody>, NoResponse>;

pin_project! {
    /// A request that was given to a connection. Not an `async` function: that would hold the request twice.
    #[project = SendingProjection]
    enum Sending<F> {
        Http1 { connection: Rc<Http1>, source: Rc<BodySource> },
        Http2 { #[pin] response: F },
    }
}

type SentByHyper = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

impl<F: Future<Output = SentByHyper>> Future for Sending<F> {
    type Output = Sent;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Sent> {
        match self.project() {
            SendingProjection::Http1 { connection, source } => {
                let on_interim = |status, headers| source.receive_interim(status, headers);
                let response = ready!(connection.poll_head(cx, on_interim))?;
                if connection.is_sending() {
                    let connection = connection.clone();
                    tokio::task::spawn_local(async move { connection.send_rest().await });
                }
                Poll::Ready(Ok(response.map(EndpointResponseBody::Http1)))
            }
            SendingProjection::Http2 { response } => {
                let response = ready!(response.poll(cx)).map_err(why_no_response);
                Poll::Ready(response.map(|response| response.map(EndpointResponseBody::Http2)))
            }
        }
    }
}

fn why_no_response(mut error: TrySendError<Request<RequestBody>>) -> NoResponse {
    let was_sent = error.take_message().is_none();
    let error = error.into_error();
    tracing::debug!(%error, source = error.source(), "no response of HTTP/2");
    if !was_sent || is_unprocessed(&error) {
        NoResponse::NotSent
    } else if error.is_parse() {
        NoResponse::Malformed
    } else {
        NoResponse::Closed
    }
}

/// The endpoint says that it has not processed the request (RFC 9113, 8.7). A GOAWAY is the error of the streams that
/// it leaves out, and of no other.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_refused || error.is_go_away())
    })
}

/// A connection for one request.
pub(crate) struct Lease {
    pool: Rc<ConnectionPool>,
    kind: LeasedConnection,
    /// The connection served a request before, so the endpoint may be about to close it.
    pub is_reused: bool,
    /// The connection was there when it was needed.
    pub is_immediate: bool,
    most_idle: usize,
    most_before_response: u64,
}

enum LeasedConnection {
    Http1 { connection: Option<Rc<Http1>>, read_before: u64 },
    Http2(LeasedStream),
}

/// One stream of a connection, for the life of the lease.
struct LeasedStream(Rc<Multiplexed>);

impl LeasedStream {
    fn begin(connection: &Rc<Multiplexed>) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        Self(connection.clone())
    }
}

impl Multiplexed {
    fn is_free(&self, limits: &ProxyLimits) -> bool {
        // Even an endpoint that takes no request now may take one later.
        let most = self.most.get().max(1).min(limits.upstream_streams);
        self.streams.get() < most
    }
}

impl Drop for LeasedStream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        self.0.idle_since.set(Instant::now());
    }
}

/// Runs hyper's tasks on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move {
            task.await;
        });
    }
}

impl ConnectionPool {
    pub fn new(
        address: SocketAddr,
        protocol: UpstreamProtocol,
        tls: Option<Rc<EndpointTls>>,
    ) -> Rc<Self> {
        let is_http2 = matches!(protocol, UpstreamProtocol::H2c | UpstreamProtocol::Grpcs);
        Rc::new(Self {
            address,
            protocol,
            tls,
            idle: RefCell::default(),
            idle_watcher: RefCell::default(),
            multiplexed: RefCell::default(),
            is_http2: Cell::new(is_http2),
            is_connecting: Cell::new(false),
            connected: Notify::new(),
            opened: Cell::new(0),
            is_closed: Cell::new(false),
        })
    }

    /// A connection that is ready for a request.
    pub async fn lease(
        self: &Rc<Self>,
        limits: &ProxyLimits,
        connect_limit: Duration,
        wanted: &Wanted<'_>,
    ) -> Result<Lease, UpstreamError> {
        let needs_own =
            wanted.is_new || wanted.preamble.is_some() || (wanted.for_http1 && self.is_http2.get());
        let (mut may_wait, mut is_immediate) = (true, true);
        loop {
            if needs_own {
                return Box::pin(self.open(limits, connect_limit, wanted)).await;
            }
            if let Some(kind) = self.take_open(limits) {
                return Ok(Lease {
                    pool: self.clone(),
                    kind,
                    is_reused: true,
                    is_immediate,
                    most_idle: limits.idle_upstreams,
                    most_before_response: limits.interim_bytes,
                });
            }
            // One connection serves many requests: do not open one for each that comes meanwhile. If it fails, do not
            // wait for others' attempts one after the other.
            if self.is_http2.get() && self.is_connecting.get() && may_wait {
                let opened = self.opened.get();
                self.connected.notified().await;
                is_immediate = false;
                may_wait = self.opened.get() != opened;
                continue;
            }
            return Box::pin(self.open(limits, connect_limit, wanted)).await;
        }
    }

    fn take_open(&self, limits: &ProxyLimits) -> Option<LeasedConnection> {
        {
            let mut multiplexed = self.multiplexed.borrow_mut();
            multiplexed.retain(|connection| !connection.sender.is_closed());
            let is_free = |connection: &&Rc<Multiplexed>| connection.is_free(limits);
            let free = multiplexed.iter().find(is_free).or_else(|| {
                // No more connections: wait for the end of one of the fewest requests.
                let is_full = multiplexed.len() >= limits.upstream_connections;
                is_full.then(|| multiplexed.iter().min_by_key(|c| c.streams.get())).flatten()
            });
            if let Some(connection) = free {
                return Some(LeasedConnection::Http2(LeasedStream::begin(connection)));
            }
        }
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { connection, .. }) = idle.pop() {
            if connection.poll_unusable(&mut Context::from_waker(Waker::noop())).is_pending() {
                let read_before = connection.read();
                return Some(LeasedConnection::Http1 { connection: Some(connection), read_before });
            }
        }
        None
    }

    async fn open(
        self: &Rc<Self>,
        limits: &ProxyLimits,
        connect_limit: Duration,
        wanted: &Wanted<'_>,
    ) -> Result<Lease, UpstreamError> {
        let _connecting = Connecting::begin(self);
        let Connected { stream, is_http2 } = connect_endpoint(
            self.address,
            self.protocol,
            self.tls.as_deref(),
            connect_limit,
            wanted,
        )
        .await?;
        if !wanted.for_http1 {
            self.is_http2.set(is_http2);
        }
        let kind = if is_http2 {
            let watched = WatchedStream::new(stream);
            let progress = watched.progress.clone();
            let mut builder = http2::Builder::new(Local);
            builder
                .timer(TokioTimer::new())
                .max_header_list_size(u32::try_from(limits.response_head_bytes).unwrap_or(u32::MAX))
                .initial_stream_window_size(limits.upstream_window)
                .initial_connection_window_size(connection_window(limits))
                .max_send_buf_size(limits.stream_buffer)
                // An endpoint that has gone away without closing its connections is noticed while requests wait for it.
                .keep_alive_interval(Duration::from_secs(20))
                .keep_alive_timeout(Duration::from_secs(10));
            let (sender, mut connection) = builder
                .handshake(TokioIo::new(watched))
                .await
                .map_err(|_| UpstreamError::Protocol)?;
            // The endpoint's settings say how many requests it takes at the same time.
            tokio::select! {
                biased;
                _ = &mut connection => return Err(UpstreamError::Protocol),
                begun = timeout(connect_limit, progress.begun()) => {
                    begun.map_err(|_| UpstreamError::Timeout)?;
                }
            }
            let multiplexed = Rc::new(Multiplexed {
                sender,
                most: Cell::new(connection.current_max_send_streams()),
                streams: Cell::new(0),
                idle_since: Cell::new(Instant::now()),
            });
            let known = Rc::downgrade(&multiplexed);
            tokio::task::spawn_local(poll_fn(move |cx| {
                let poll = Pin::new(&mut connection).poll(cx);
                if let Some(known) = known.upgrade() {
                    known.most.set(connection.current_max_send_streams());
                }
                poll
            }));
            if !self.is_closed.get() && wanted.preamble.is_none() {
                self.multiplexed.borrow_mut().push(multiplexed.clone());
                self.opened.set(self.opened.get() + 1);
            }
            LeasedConnection::Http2(LeasedStream::begin(&multiplexed))
        } else {
            let connection = Http1::new(stream, limits.response_head_bytes);
            LeasedConnection::Http1 { connection: Some(connection), read_before: 0 }
        };
        let most_idle = if wanted.preamble.is_some() { 0 } else { limits.idle_upstreams };
        let most_before_response = limits.interim_bytes;
        let (is_reused, is_immediate) = (false, false);
        let pool = self.clone();
        Ok(Lease { pool, kind, is_reused, is_immediate, most_idle, most_before_response })
    }

    /// Closes connections that were not used for long, and those that the endpoint closed.
    pub(crate) fn tend(&self, limits: &ProxyLimits, now: Instant) {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= limits.upstream_idle;
        self.idle.borrow_mut().retain(|idle| !is_old(idle.since));
        self.multiplexed.borrow_mut().retain(|connection| {
            let is_unused = connection.streams.get() == 0 && is_old(connection.idle_since.get());
            !is_unused && !connection.sender.is_closed()
        });
    }

    /// The endpoint gets no more requests. Current ones continue.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.idle.borrow_mut().clear();
        self.multiplexed.borrow_mut().clear();
    }

    fn keep(self: &Rc<Self>, connection: Rc<Http1>, most: usize) {
        if self.is_closed.get() || self.idle.borrow().len() >= most || !connection.is_reusable() {
            // The body of its response may hold it as long as the client likes.
            return connection.close();
        }
        let watcher = self.idle_watcher.borrow().clone();
        if watcher.is_none() {
            self.watch_idle();
        }
        let watcher = watcher.as_ref().unwrap_or(Waker::noop());
        if connection.poll_unusable(&mut Context::from_waker(watcher)).is_pending() {
            self.idle.borrow_mut().push(Idle { connection, since: Instant::now() });
        } else {
            connection.close();
        }
    }

    /// Closes idle connections as soon as their endpoint does, or sends what no request asked for.
    fn watch_idle(self: &Rc<Self>) {
        *self.idle_watcher.borrow_mut() = Some(Waker::noop().clone());
        let pool = Rc::downgrade(self);
        tokio::task::spawn_local(poll_fn(move |cx| {
            let Some(pool) = pool.upgrade() else { return Poll::Ready(()) };
            *pool.idle_watcher.borrow_mut() = Some(cx.waker().clone());
            let mut idle = pool.idle.borrow_mut();
            idle.retain(|idle| idle.connection.poll_unusable(cx).is_pending());
            Poll::Pending
        }));
    }
}

/// Enough for all streams at once.
fn connection_window(limits: &ProxyLimits) -> u32 {
    let streams = u32::try_from(limits.upstream_streams).unwrap_or(u32::MAX);
    // The largest window of HTTP/2.
    limits.upstream_window.saturating_mul(streams).min((1 << 31) - 1)
}

/// Others wait meanwhile, and look again afterwards, however it ended.
struct Connecting<'p>(&'p ConnectionPool);

impl<'p> Connecting<'p> {
    fn begin(pool: &'p ConnectionPool) -> Self {
        pool.is_connecting.set(true);
        Self(pool)
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.notify_waiters();
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        if let Some(watcher) = self.idle_watcher.take() {
            watcher.wake();
        }
    }
}

impl Lease {
    pub fn is_http2(&self) -> bool {
        matches!(self.kind, LeasedConnection::Http2(_))
    }

    /// Sends a request, and resolves to the head of its response. The source gets interim responses of HTTP/1.1.
    /// `None`: HTTP/2 cannot carry the request.
    pub fn send(
        &mut self,
        outbound: &Outbound<'_>,
        source: &Rc<BodySource>,
    ) -> Option<impl Future<Output = Sent> + use<>> {
        Some(match &mut self.kind {
            LeasedConnection::Http1 { connection, .. } => {
                // It is there until the lease ends.
                let connection = connection.as_ref().expect("lease has ended").clone();
                let address = outbound.host.is_none().then(|| self.pool.address.to_string());
                let host = outbound.host.as_ref().map(HeaderValue::as_bytes);
                let head = UpstreamRequestHead {
                    method: &outbound.method,
                    target: &outbound.uri,
                    host: host.or(address.as_deref().map(str::as_bytes)).unwrap_or_default(),
                    upgrade: outbound.upgrade.as_ref(),
                    headers: &outbound.headers,
                    report: outbound.report,
                };
                let body = RequestBody::of(source);
                connection.begin_request(&head, body, self.most_before_response);
                Sending::Http1 { connection, source: source.clone() }
            }
            LeasedConnection::Http2(stream) => {
                let request = outbound.http2_request(self.pool.address, source)?;
                let mut sender = stream.0.sender.clone();
                Sending::Http2 { response: sender.try_send_request(request) }
            }
        })
    }

    /// Whether the endpoint sent anything since the lease began.
    pub(crate) fn has_received(&self) -> bool {
        match &self.kind {
            LeasedConnection::Http1 { connection, read_before } => {
                connection.as_ref().is_some_and(|connection| connection.read() != *read_before)
            }
            LeasedConnection::Http2(_) => false,
        }
    }

    /// Whether a part of the request has still to be sent. HTTP/2 does not tell.
    pub(crate) fn is_sending(&self) -> bool {
        match &self.kind {
            LeasedConnection::Http1 { connection, .. } => {
                connection.as_ref().is_some_and(|connection| connection.is_sending())
            }
            LeasedConnection::Http2(_) => false,
        }
    }

    /// The response was received to its end: the connection may serve another request.
    pub fn finish(mut self) {
        let LeasedConnection::Http1 { connection, .. } = &mut self.kind else { return };
        let Some(connection) = connection.take() else { return };
        let (pool, most_idle) = (self.pool.clone(), self.most_idle);
        if connection.is_sending() {
            tokio::task::spawn_local(async move {
                // A connection that is still sending is not kept.
                let _ = timeout(SEND_REST_LIMIT, connection.sent()).await;
                pool.keep(connection, most_idle);
            });
        } else {
            pool.keep(connection, most_idle);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let LeasedConnection::Http1 { connection: Some(connection), .. } = &self.kind {
            connection.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use http::HeaderMap;
    use tokio::net::TcpStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::io::{Prefixed, ProxyStream};

    fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    /// A connection whose endpoint has replied to a request of this size. The pool keeps none.
    async fn leased(size: usize) -> (Rc<Http1>, Lease, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tcp = TcpStream::connect(address).await.unwrap();
        let (mut endpoint, _) = listener.accept().unwrap();
        endpoint.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        let value = HeaderValue::from_bytes(&vec![b'x'; size]).unwrap();
        let head = UpstreamRequestHead {
            method: &http::Method::GET,
            target: &"/".parse().unwrap(),
            host: b"a.test",
            upgrade: None,
            headers: &HeaderMap::from_iter([(http::header::COOKIE, value)]),
            report: None,
        };
        let connection = Http1::new(ProxyStream::Tcp(Prefixed::from(tcp)), 64 << 10);
        connection.begin_request(&head, RequestBody::Empty, u64::MAX);
        let source = BodySource::empty(Instant::now());
        let sending: Sending<std::future::Pending<SentByHyper>> =
            Sending::Http1 { connection: connection.clone(), source };
        assert!(sending.await.is_ok());
        let lease = Lease {
            pool: ConnectionPool::new(address, UpstreamProtocol::Http1, None),
            kind: LeasedConnection::Http1 { connection: Some(connection.clone()), read_before: 0 },
            is_reused: false,
            is_immediate: false,
            most_idle: 0,
            most_before_response: 0,
        };
        (connection, lease, endpoint)
    }

    #[test]
    fn a_connection_that_is_not_kept_is_closed_whoever_holds_it() {
        run(async {
            let (_held, lease, mut endpoint) = leased(1).await;
            lease.finish();
            endpoint.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            endpoint.read_to_end(&mut Vec::new()).unwrap();
        });
    }

    #[test]
    fn an_endpoint_that_takes_no_more_of_a_request_loses_its_connection() {
        run(async {
            // More than sockets buffer.
            let (connection, lease, _endpoint) = leased(32 << 20).await;
            assert!(connection.is_sending());
            lease.finish();
            tokio::time::sleep(SEND_REST_LIMIT / 2).await;
            assert!(connection.is_sending());
            tokio::time::sleep(SEND_REST_LIMIT).await;
            assert!(!connection.is_sending());
        });
    }
}
