//! Drives a client's connection: hyper, the connection's timer, and orders to end it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::time::sleep;

use super::exchange;
use crate::client::{Client, Order};
use crate::io::Watched;
use crate::limits::patience::Verdict;
use crate::metrics::CutOff;
use crate::settings::Limits;
use crate::tls::Protocol;
use crate::upstream::Local;

/// How long the rest of a connection may take to be written once nothing more is expected of it.
const CLOSE: Duration = Duration::from_secs(5);
/// How long a connection without requests is open when the proxy stops: its first request may be on the way.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// An HTTP/2 client that does not answer a ping for this long is gone without having closed its connection.
const PING_ANSWER: Duration = Duration::from_secs(20);
/// What hyper needs at least.
const LEAST_BUFFER: usize = 8 << 10;

pub(crate) async fn serve_connection(client: Rc<Client>, stream: Watched) {
    if client.worker.is_draining() {
        client.order(Order::Drain);
    }
    let requests = client.clone();
    // Hyper keeps room for a request's future while there is none: only a pointer.
    let service =
        service_fn(move |request| Box::pin(exchange::serve_request(requests.clone(), request)));
    let limits = client.worker.limits();
    match client.protocol {
        Protocol::Http1 => {
            let connection = http1(limits).serve_connection(stream, service).with_upgrades();
            Box::pin(drive(&client, connection)).await;
        }
        Protocol::Http2 => {
            let connection = http2(&client).serve_connection(stream, service);
            Box::pin(drive(&client, connection)).await;
        }
    }
}

fn http1(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // The connection's own timer does that, without one for each request.
        .header_read_timeout(None)
        .max_header_size(limits.head_bytes)
        .max_buf_size((limits.head_bytes + limits.head_bytes / 4).max(LEAST_BUFFER));
    // Any number but hyper's own takes an allocation for each request.
    if limits.headers != 100 {
        builder.max_headers(limits.headers);
    }
    builder
}

fn http2(client: &Client) -> http2::Builder<Local> {
    let limits = client.worker.limits();
    let mut builder = http2::Builder::new(Local);
    builder
        .timer(TokioTimer::new())
        // WebSockets (RFC 8441).
        .enable_connect_protocol()
        .max_concurrent_streams(limits.streams)
        .max_pending_accept_reset_streams(limits.pending_resets)
        .max_local_error_reset_streams(limits.provoked_resets)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(u32::try_from(client.buffer).unwrap_or(u32::MAX))
        .max_send_buf_size(limits.stream_buffer.min(client.buffer / 4))
        .keep_alive_interval(limits.idle)
        .keep_alive_timeout(PING_ANSWER);
    builder
}

/// What both kinds of connections can do.
trait Connection: Future<Output = hyper::Result<()>> {
    fn close_gracefully(self: Pin<&mut Self>);
}

impl<S> Connection for http1::UpgradeableConnection<Watched, S>
where
    Self: Future<Output = hyper::Result<()>>,
    S: hyper::service::HttpService<hyper::body::Incoming>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResBody: 'static,
    <S::ResBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn close_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, E> Connection for http2::Connection<Watched, S, E>
where
    Self: Future<Output = hyper::Result<()>>,
    S: hyper::service::HttpService<hyper::body::Incoming>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResBody: 'static,
    <S::ResBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn close_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// How a connection ended.
enum End {
    Closed(hyper::Result<()>),
    CutOff(CutOff),
}

async fn drive(client: &Client, connection: impl Connection) {
    let limits = client.worker.limits();
    let mut connection = pin!(connection);
    let mut timer = pin!(sleep(limits.head.min(limits.idle)));
    let mut is_closing = false;
    let mut is_draining = false;
    let mut poll = |cx: &mut Context<'_>| {
        loop {
            match client.poll_order(cx.waker()) {
                Some(Order::CutOff(reason)) => return Poll::Ready(End::CutOff(reason)),
                Some(Order::Drain) if !is_draining => {
                    is_draining = true;
                    timer.as_mut().reset(tokio::time::Instant::now() + FIRST_REQUEST);
                }
                _ => {}
            }
            if is_draining && !is_closing && client.was_used() {
                is_closing = true;
                connection.as_mut().close_gracefully();
            }
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                return Poll::Ready(End::Closed(result));
            }
            if is_draining && !is_closing && client.was_used() {
                continue;
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let wait = match client.waiting().judge(limits, Instant::now()) {
                _ if is_draining && !client.was_used() => CLOSE,
                Verdict::Patient(wait) => wait,
                Verdict::CutOff(reason) => return Poll::Ready(End::CutOff(reason)),
                Verdict::Idle if is_closing => return Poll::Ready(End::Closed(Ok(()))),
                Verdict::Idle => CLOSE,
            };
            if wait == CLOSE && !is_closing {
                is_closing = true;
                connection.as_mut().close_gracefully();
            }
            timer.as_mut().reset(tokio::time::Instant::now() + wait);
        }
    };
    match poll_fn(|cx| poll(cx)).await {
        End::CutOff(reason) => client.worker.counters.cut_off.count(reason),
        End::Closed(Err(error)) if error.is_parse() => {
            client.worker.counters.cut_off.count(CutOff::Malformed);
        }
        End::Closed(_) => {}
    }
}
