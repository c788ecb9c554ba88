//! Accepts connections, performs the TLS handshake, serves them, and closes those that stall.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lb_connections::{Permit, Room, Tcp, accept_all, is_local};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, Sleep, interval, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::identity::{CertifiedClient, ClientIdentity};
use super::issued::IssuedCertificates;
use super::limits::ApiLimits;
use super::service::ApiService;
use super::shares::UserShares;

/// Concurrent streams of one connection.
const MAX_STREAMS: u32 = 250;
/// How often a connection checks whether its certificate was revoked.
const REVOCATION_INTERVAL: Duration = Duration::from_secs(2);
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Size of all headers of a request in bytes.
const MAX_HEADERS: u32 = 64 << 10;

/// Serves until the task is aborted, which also closes all connections. Never waits for a client.
pub async fn serve_api(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    issued: IssuedCertificates,
    service: ApiService,
) {
    let acceptor = TlsAcceptor::from(tls);
    let limits = service.limits();
    // A real client needs milliseconds for its handshake, so hardly one is closed for another.
    let ApiLimits { handshakes, patience, .. } = *limits;
    let handshakes = lb_connections::AdmissionLimits {
        head: patience,
        ..lb_connections::AdmissionLimits::new(handshakes, handshakes, handshakes.div_ceil(4))
    };
    let connections = UserShares::new(limits.connections);
    accept_all(Tcp { listener, is_local }, Room::new(handshakes), |stream, handshake| {
        let (acceptor, service) = (acceptor.clone(), service.clone());
        let (connections, issued) = (connections.clone(), issued.clone());
        async move {
            let client = stream.peer_addr();
            let connection =
                connection(stream, &handshake, &acceptor, &connections, &issued, service);
            if let Err(error) = connection.await {
                tracing::debug!(?client, error = format!("{error:#}"), "connection closed");
            }
        }
    })
    .await;
}

/// `handshake`: until the handshake is complete, the connection has a deadline, and may be closed for another one.
async fn connection(
    stream: TcpStream,
    handshake: &Permit,
    acceptor: &TlsAcceptor,
    connections: &UserShares,
    issued: &IssuedCertificates,
    service: ApiService,
) -> Result<()> {
    let limits = *service.limits();
    // Responses are written whole, so waiting to fill packets only delays them.
    let _ = stream.set_nodelay(true);
    let stream = IdleTimeoutStream::new(stream, limits.stall);
    let stream = acceptor.accept(stream).await.context("TLS handshake failed")?;
    handshake.leave();
    let CertifiedClient { identity, serial, .. } = authenticate_client(&stream)?;
    let user = identity.user.clone();
    if !issued.has(&serial) {
        bail!("the certificate of {user} was revoked");
    }
    let Some(_share) = connections.take_one(&identity) else {
        bail!("{user} has too many connections");
    };
    tokio::select! {
        served = serve_requests(stream, identity, service) => served,
        () = revoked(issued, &serial) => bail!("the certificate of {user} was revoked"),
    }
}

fn authenticate_client(stream: &TlsStream<IdleTimeoutStream>) -> Result<CertifiedClient> {
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(<[_]>::first).context("no client certificate")?;
    CertifiedClient::of_certificate(certificate)
}

/// Returns when the certificate is not accepted any more.
async fn revoked(issued: &IssuedCertificates, serial: &str) {
    let mut times = interval(REVOCATION_INTERVAL);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        if !issued.has(serial) {
            return;
        }
    }
}

/// The protocol is that of the handshake, so no client can delay its detection.
async fn serve_requests(
    mut stream: TlsStream<IdleTimeoutStream>,
    identity: ClientIdentity,
    service: ApiService,
) -> Result<()> {
    let limits = *service.limits();
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if is_http2 {
        // A client that is alive replies to pings.
        stream.get_mut().0.limit_reads(PING_INTERVAL + limits.stall);
    }
    let identity = Arc::new(identity);
    let service = hyper::service::service_fn(move |request| {
        let (service, identity) = (service.clone(), Arc::clone(&identity));
        async move { Ok::<_, std::convert::Infallible>(service.respond(request, &identity).await) }
    });
    let stream = TokioIo::new(stream);
    if is_http2 {
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(limits.stall)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .serve_connection(stream, service)
            .await?;
    } else {
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.patience)
            .keep_alive(true)
            .max_buf_size(MAX_HEADERS as usize)
            .serve_connection(stream, service)
            .await?;
    }
    Ok(())
}

/// A connection that fails when its client blocks a write for too long, or sends nothing for longer
/// than it may.
struct IdleTimeoutStream {
    stream: TcpStream,
    stall: Duration,
    /// Set while a write is blocked.
    waiting: Option<Pin<Box<Sleep>>>,
    /// The longest silence, and when the current one ends the connection.
    silence: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl IdleTimeoutStream {
    fn new(stream: TcpStream, stall: Duration) -> Self {
        Self { stream, stall, waiting: None, silence: None }
    }

    /// From now on the client must send something at least this often.
    fn limit_reads(&mut self, silence: Duration) {
        self.silence = Some((silence, Box::pin(sleep(silence))));
    }

    /// Fails a write that has been blocked for too long.
    fn limit_write<T>(
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

impl AsyncRead for IdleTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some((silence, deadline)) = &mut self.silence else {
            return poll;
        };
        if poll.is_ready() {
            deadline.as_mut().reset(Instant::now() + *silence);
            return poll;
        }
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for IdleTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.limit_write(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.limit_write(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.limit_write(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(context);
        self.limit_write(context, poll)
    }
}
