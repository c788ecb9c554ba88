//! Accepts connections, performs the TLS handshake, serves them, and closes those that stall.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::service::Service;

/// Limits on what clients may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// Concurrent requests of all clients, not counting watches.
    pub requests: usize,
    pub watches: usize,
    /// Size of a request's body in bytes.
    pub body: usize,
    /// Time limit for the handshake, the headers, and the body, each.
    pub patience: Duration,
    /// The longest time that a client may block a write. Then its connection is closed.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            requests: 256,
            watches: 2048,
            body: 3 << 20,
            patience: Duration::from_secs(30),
            stall: Duration::from_secs(60),
        }
    }
}

/// Concurrent streams of one connection.
const STREAMS: u32 = 250;
const PING: Duration = Duration::from_secs(30);

/// Serves until the task is aborted.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, service: Service) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(service.limits().connections));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the client has gone. Both are temporary.
                tracing::debug!(%error, "connection not accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (acceptor, service) = (acceptor.clone(), service.clone());
        tokio::spawn(async move {
            connection(stream, client, acceptor, service).await;
            drop(place);
        });
    }
}

async fn connection(
    stream: TcpStream,
    client: SocketAddr,
    acceptor: TlsAcceptor,
    service: Service,
) {
    let limits = *service.limits();
    // Responses are written whole, so waiting to fill packets only delays them.
    let _ = stream.set_nodelay(true);
    let stream = Impatient::new(stream, limits.stall);
    let stream = match timeout(limits.patience, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%client, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            let timeout_ms = limits.patience.as_millis();
            tracing::debug!(%client, timeout_ms, "TLS handshake timed out");
            return;
        }
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.patience)
        .keep_alive(true)
        .max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(64 << 10);
    let service = hyper::service::service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
    });
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%client, %error, "connection failed");
    }
}

/// A connection that fails when its client blocks a write for too long.
struct Impatient {
    stream: TcpStream,
    stall: Duration,
    /// Set while a write is blocked.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TcpStream, stall: Duration) -> Self {
        Self { stream, stall, waiting: None }
    }

    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let deadline = Instant::now() + self.stall;
        let waiting =
            self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.judge(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.judge(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, poll)
    }
}
