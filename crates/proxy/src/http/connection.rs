//! Drives a client's connection: its state machine, the connection's timer, and orders to end it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Buf;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::sleep;

use super::exchange;
use super::http1::{Closed, HeadLimits, Http1Connection, UpgradedStream, UploadBody};
use super::upgrade::ClientUpgrade;
use crate::body::ClientBody;
use crate::client::ClientConnection;
use crate::io::WatchedStream;
use crate::limits::patience::Verdict;
use crate::metrics::CutOff;
use crate::orders::Order;
use crate::tls::HttpVersion;
use crate::upstream::Local;

/// How long the rest of a connection may take to be written once nothing more is expected of it.
const CLOSE: Duration = Duration::from_secs(5);
/// How long a connection without requests is open when the proxy stops: its first request may be on the way.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// An HTTP/2 client that does not answer a ping for this long is gone without having closed its connection.
const PING_ANSWER: Duration = Duration::from_secs(20);

pub(crate) async fn serve_connection(client: Rc<ClientConnection>, stream: WatchedStream) {
    if client.worker.is_draining() {
        client.orders.give_order(Order::Drain);
    }
    let requests = client.clone();
    match client.protocol {
        HttpVersion::Http1 => {
            let limits = client.worker.limits();
            let limits = HeadLimits { octets: limits.head_bytes, headers: limits.headers };
            let serve = move |parts, body, upgraded: Option<_>| {
                let upgraded = upgraded.map(ClientUpgrade::Http1);
                exchange::serve_request(requests.clone(), parts, ClientBody::Http1(body), upgraded)
            };
            let slots = client.worker.future_slots();
            let connection = Http1Connection::new(stream, limits, slots, serve);
            Box::pin(drive(&client, connection)).await;
        }
        HttpVersion::Http2 => {
            // Hyper keeps room for a request's future while there is none: only a pointer.
            let service = service_fn(move |mut request: Request<Incoming>| {
                let is_connect = request.method() == Method::CONNECT;
                let upgraded = is_connect.then(|| hyper::upgrade::on(&mut request));
                let upgraded = upgraded.map(ClientUpgrade::Http2);
                let (parts, body) = request.into_parts();
                let body = ClientBody::Http2(body);
                Box::pin(exchange::serve_request(requests.clone(), parts, body, upgraded))
            });
            let connection = http2(&client).serve_connection(TokioIo::new(stream), service);
            Box::pin(drive(&client, connection)).await;
        }
    }
}

fn http2(client: &ClientConnection) -> http2::Builder<Local> {
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
trait ServedConnection {
    fn poll_serve(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Closed>;
    fn close_gracefully(self: Pin<&mut Self>);
    /// When the first octets of an incomplete head came.
    fn head_since(&self) -> Option<Instant>;
}

impl<V, F, B> ServedConnection for Http1Connection<WatchedStream, V, F, B>
where
    V: FnMut(Parts, UploadBody, Option<UpgradedStream<WatchedStream>>) -> F + Unpin,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data: Buf> + Unpin,
{
    fn poll_serve(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Closed> {
        self.get_mut().poll_serve(cx)
    }

    fn close_gracefully(self: Pin<&mut Self>) {
        self.get_mut().close_gracefully();
    }

    fn head_since(&self) -> Option<Instant> {
        self.head_since()
    }
}

impl<S, E> ServedConnection for http2::Connection<TokioIo<WatchedStream>, S, E>
where
    Self: Future<Output = hyper::Result<()>>,
    S: hyper::service::HttpService<Incoming>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResBody: 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn poll_serve(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Closed> {
        self.poll(cx).map(|result| match result {
            Err(error) if error.is_parse() => Closed::Malformed,
            _ => Closed::Normally,
        })
    }

    fn close_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }

    fn head_since(&self) -> Option<Instant> {
        // Frames for the connection itself arrive at any time.
        None
    }
}

/// How a connection ended.
enum ConnectionEnd {
    Closed(Closed),
    CutOff(CutOff),
}

async fn drive(client: &ClientConnection, connection: impl ServedConnection) {
    let limits = client.worker.limits();
    let mut connection = pin!(connection);
    let mut timer = pin!(sleep(limits.head.min(limits.idle)));
    let mut is_closing = false;
    let mut is_draining = false;
    let mut poll = |cx: &mut Context<'_>| {
        loop {
            match client.orders.poll_order(cx.waker()) {
                Some(Order::CutOff(reason)) => return Poll::Ready(ConnectionEnd::CutOff(reason)),
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
            if let Poll::Ready(result) = connection.as_mut().poll_serve(cx) {
                return Poll::Ready(ConnectionEnd::Closed(result));
            }
            if is_draining && !is_closing && client.was_used() {
                continue;
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let waiting = client.waiting(connection.head_since());
            let (wait, closes) = match waiting.judge(limits, Instant::now()) {
                _ if is_draining && !is_closing && !client.was_used() => (CLOSE, true),
                Verdict::Patient(wait) => (wait, false),
                Verdict::CutOff(reason) => return Poll::Ready(ConnectionEnd::CutOff(reason)),
                Verdict::Idle if is_closing => {
                    return Poll::Ready(ConnectionEnd::Closed(Closed::Normally));
                }
                Verdict::Idle => (CLOSE, true),
            };
            if closes {
                is_closing = true;
                connection.as_mut().close_gracefully();
            }
            timer.as_mut().reset(tokio::time::Instant::now() + wait);
        }
    };
    match poll_fn(|cx| poll(cx)).await {
        ConnectionEnd::CutOff(reason) => client.worker.counters.cut_off.count(reason),
        ConnectionEnd::Closed(Closed::Malformed) => {
            client.worker.counters.cut_off.count(CutOff::Malformed);
        }
        ConnectionEnd::Closed(Closed::Normally) => {}
    }
}
