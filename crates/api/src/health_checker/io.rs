//! One probe of one address. It costs the checker little, whatever the server sends: a few octets
//! are read, and time is limited by the caller.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lb_connections::AnyCertificate;
use rustls::client::{ClientConfig, Resumption};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::ProbeProtocol;

/// Sessions that are remembered: resuming one saves most of a handshake.
const MAX_TLS_SESSIONS: usize = 16_384;
/// The longest response to `Health/Check` in octets.
const MAX_RESPONSE_BYTES: usize = 4096;

/// Fails with the reason if the server is not healthy.
pub(crate) async fn probe_endpoint(protocol: &ProbeProtocol, address: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect(address).await?;
    // The end is a reset: otherwise each probe would leave a socket in TIME_WAIT for a minute.
    stream.set_zero_linger()?;
    match protocol {
        ProbeProtocol::Tcp => Ok(()),
        ProbeProtocol::Http { path } => get(stream, path, address).await,
        ProbeProtocol::Https { path } => {
            let name = ServerName::from(address.ip());
            let connector = TlsConnector::from(Arc::clone(&TLS_CONFIG));
            let stream = connector.connect(name, stream).await.context("TLS handshake failed")?;
            get(stream, path, address).await
        }
        ProbeProtocol::Grpc { service } => check_grpc_health(stream, service, address).await,
    }
}

async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    address: SocketAddr,
) -> Result<()> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: millrace-health-check\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    // `HTTP/1.1 200`
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    let status = String::from_utf8_lossy(&head).into_owned();
    ensure!(
        status.starts_with("HTTP/1.") && matches!(head[9], b'2' | b'3'),
        "it returned {status:?}"
    );
    Ok(())
}

/// `grpc.health.v1.Health/Check`, over HTTP/2 without TLS.
async fn check_grpc_health(stream: TcpStream, service: &str, address: SocketAddr) -> Result<()> {
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(8192)
        .initial_stream_window_size(u32::try_from(MAX_RESPONSE_BYTES)?)
        .initial_connection_window_size(65_535)
        .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await?;
    let request = hyper::Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "millrace-health-check")
        .body(Full::new(Bytes::from(framed(&health_request(service)))))?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        ensure!(response.status() == 200, "it returned HTTP status {}", response.status());
        // An error may come without a body, in the headers.
        grpc_status(response.headers())?;
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("no response: {error}"))?;
        if let Some(trailers) = body.trailers() {
            grpc_status(trailers)?;
        }
        let status = serving_status(&body.to_bytes()).context("it returned no health status")?;
        ensure!(status == SERVING_STATUS, "it returned health status {status}, not SERVING");
        Ok(())
    };
    tokio::select! {
        result = exchange => result,
        ended = connection => match ended {
            Ok(()) => bail!("it closed the connection"),
            Err(error) => Err(error.into()),
        },
    }
}

fn grpc_status(headers: &hyper::HeaderMap) -> Result<()> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        None | Some(b"0") => Ok(()),
        Some(status) => bail!("it returned gRPC status {}", String::from_utf8_lossy(status)),
    }
}

/// `HealthCheckRequest`: field 1 is the service. It has at most 253 octets, so two for the length.
fn health_request(service: &str) -> Vec<u8> {
    if service.is_empty() {
        return Vec::new();
    }
    let length = service.len();
    let mut message = vec![0x0a];
    if length < 0x80 {
        message.push(u8::try_from(length).unwrap_or_default());
    } else {
        let low = u8::try_from(length & 0x7f).unwrap_or_default();
        message.extend([low | 0x80, u8::try_from(length >> 7).unwrap_or_default()]);
    }
    message.extend(service.as_bytes());
    message
}

/// A message as gRPC sends it: not compressed, with its length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or_default();
    [&[0][..], &length.to_be_bytes(), message].concat()
}

const SERVING_STATUS: u8 = 1;

/// `HealthCheckResponse`: field 1 is the status, 0 if it is missing.
fn serving_status(body: &[u8]) -> Option<u8> {
    let message = body.get(5..)?;
    match message {
        [] => Some(0),
        [0x08, status @ 0..=0x7f, ..] => Some(*status),
        _ => None,
    }
}

static TLS_CONFIG: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        // Invariant: ring supports both versions.
        .expect("the default protocol versions")
        .dangerous()
        // A check asks whether the server is up, and sends no secrets.
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(MAX_TLS_SESSIONS);
    Arc::new(config)
});

#[cfg(test)]
mod tests {
    use super::super::servers::{self, Grpc};
    use super::*;

    async fn get_of(response: &'static str) -> Result<()> {
        let protocol = ProbeProtocol::Http { path: "/".to_owned() };
        probe_endpoint(&protocol, servers::start_plain_server(response).await).await
    }

    #[tokio::test]
    async fn http_and_tcp_probes_report_whether_a_server_responds() {
        assert!(
            probe_endpoint(&ProbeProtocol::Tcp, servers::start_plain_server("").await)
                .await
                .is_ok()
        );
        assert!(get_of("HTTP/1.1 204 No Content\r\n\r\n").await.is_ok());
        assert!(get_of("HTTP/1.1 503 Busy\r\n\r\n").await.is_err());
        assert!(get_of("SSH-2.0-OpenSSH_9.9\r\n").await.is_err());
        assert!(probe_endpoint(&ProbeProtocol::Tcp, servers::CLOSED).await.is_err());
    }

    #[tokio::test]
    async fn an_https_probe_accepts_any_certificate_and_no_plain_server() {
        let https = ProbeProtocol::Https { path: "/".to_owned() };
        let server = servers::start_tls_server("HTTP/1.1 200 OK\r\n\r\n").await;
        probe_endpoint(&https, server).await.unwrap();
        // Again, with the session.
        probe_endpoint(&https, server).await.unwrap();
        let broken = servers::start_tls_server("HTTP/1.1 500 Broken\r\n\r\n").await;
        assert!(probe_endpoint(&https, broken).await.is_err());
        assert!(
            probe_endpoint(&https, servers::start_plain_server("HTTP/1.1 200 OK\r\n\r\n").await)
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn a_grpc_probe_wants_serving() {
        let of = |service: &str| ProbeProtocol::Grpc { service: service.to_owned() };
        let serving = servers::start_grpc_server(Grpc { status: 1, error: None }).await;
        probe_endpoint(&of(""), serving).await.unwrap();
        probe_endpoint(&of("shop.Cart"), serving).await.unwrap();
        probe_endpoint(&of(&"s".repeat(253)), serving).await.unwrap();
        for (grpc, expected) in [
            (Grpc { status: 2, error: None }, "not SERVING"),
            (Grpc { status: 0, error: None }, "not SERVING"),
            (Grpc { status: 1, error: Some("12") }, "gRPC status 12"),
        ] {
            let server = servers::start_grpc_server(grpc).await;
            let error = format!("{:#}", probe_endpoint(&of(""), server).await.unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert!(
            probe_endpoint(&of(""), servers::start_plain_server("HTTP/1.1 200 OK\r\n\r\n").await)
                .await
                .is_err()
        );
    }
}
