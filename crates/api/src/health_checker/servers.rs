//! Servers that tests probe.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Serves each connection until the test ends. Returns the address.
async fn serve_connections<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    serve_at("127.0.0.1:0", serve).await
}

/// Serves each connection to the address until the test ends. Returns the address.
pub async fn serve_at<F>(place: &str, serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(place).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Sends this response, and waits until the client has read it.
pub async fn respond_with(mut stream: impl AsyncRead + AsyncWrite + Unpin, response: &'static str) {
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.flush().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

pub(crate) async fn start_plain_server(response: &'static str) -> SocketAddr {
    serve_connections(move |stream| respond_with(stream, response)).await
}

/// An address without a listener: not one that the kernel chooses, which another test may get.
pub(crate) const CLOSED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

pub fn self_signed_config() -> Arc<ServerConfig> {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["other.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    Arc::new(config)
}

pub(crate) async fn start_tls_server(response: &'static str) -> SocketAddr {
    let acceptor = TlsAcceptor::from(self_signed_config());
    let one = move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                respond_with(stream, response).await;
            }
        }
    };
    serve_connections(one).await
}

/// What a server of `grpc.health.v1.Health` responds.
#[derive(Debug, Clone, Copy)]
pub struct Grpc {
    pub status: u8,
    pub error: Option<&'static str>,
}

pub(crate) async fn start_grpc_server(grpc: Grpc) -> SocketAddr {
    serve_connections(move |stream| async move {
        let service = service_fn(move |request| answer_grpc_check(grpc, request));
        let server = http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

pub type Frames =
    StreamBody<futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

pub async fn answer_grpc_check(
    grpc: Grpc,
    request: Request<Incoming>,
) -> Result<Response<Frames>, Infallible> {
    let is_check = request.uri().path() == "/grpc.health.v1.Health/Check";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // A frame whose length is that of its message.
    let is_framed = body.len() >= 5 && body[1..5] == u32::to_be_bytes(body.len() as u32 - 5);
    let error = if is_check && is_framed { grpc.error } else { Some("3") };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", error.unwrap_or("0").parse().unwrap());
    let message = match grpc.status {
        0 => vec![0, 0, 0, 0, 0],
        status => vec![0, 0, 0, 0, 2, 0x08, status],
    };
    let frames = vec![Ok(Frame::data(message.into())), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(StreamBody::new(futures::stream::iter(frames)));
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    Ok(response)
}
