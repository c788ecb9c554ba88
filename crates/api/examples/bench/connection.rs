//! HTTP/2 connections: over TLS to the embedded API, plain to etcd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// One connection. Clones share it.
#[derive(Clone)]
pub struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    pub async fn plain(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    pub async fn tls(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(config).connect(name, stream).await.unwrap();
        Self::over(stream).await
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(16 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Response<hyper::body::Incoming> {
        let mut sender = self.0.clone();
        sender.ready().await.unwrap();
        sender.send_request(request).await.unwrap()
    }

    /// The whole body of the response.
    pub async fn fetch(&self, request: Request<Full<Bytes>>) -> Bytes {
        let response = self.send(request).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        body
    }
}

/// Performs a request for each number, this many at a time. Returns the latencies.
pub async fn perform<F: Future<Output = ()>>(
    numbers: usize,
    clients: usize,
    request: impl Fn(usize) -> F,
) -> Vec<Duration> {
    use futures::StreamExt;
    let one = |number| {
        let request = request(number);
        async move {
            let began = std::time::Instant::now();
            request.await;
            began.elapsed()
        }
    };
    futures::stream::iter((0..numbers).map(one)).buffer_unordered(clients).collect().await
}
