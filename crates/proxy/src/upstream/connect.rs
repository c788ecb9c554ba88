//! New connections to endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use lb_http::upstream::UpstreamProtocol;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::io::{Prefixed, ProxyStream};
use crate::metrics::UpstreamError;
use crate::tls::client::EndpointTls;

/// What a connection has to be.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    /// Not one that the endpoint may be about to close.
    pub is_new: bool,
    /// For an upgrade: HTTP/2 is not offered.
    pub for_http1: bool,
    /// What it begins with: it serves this request only.
    pub preamble: Option<&'a [u8]>,
}

/// A stream on which requests can be sent, and whether it speaks HTTP/2.
pub(crate) struct Connected {
    pub stream: ProxyStream,
    pub is_http2: bool,
}

/// Connects, and completes the TLS handshake, within `limit` each.
pub(crate) async fn connect_endpoint(
    address: SocketAddr,
    protocol: UpstreamProtocol,
    tls: Option<&EndpointTls>,
    limit: Duration,
    wanted: &Wanted<'_>,
) -> Result<Connected, UpstreamError> {
    if wanted.for_http1 && matches!(protocol, UpstreamProtocol::H2c | UpstreamProtocol::Grpcs) {
        return Err(UpstreamError::Protocol);
    }
    let mut tcp = connect_tcp(address, limit).await?;
    if let Some(preamble) = wanted.preamble {
        tcp.write_all(preamble).await.map_err(|_| UpstreamError::Connect)?;
    }
    let Some(tls) = tls else {
        let is_http2 = protocol == UpstreamProtocol::H2c;
        return Ok(Connected { stream: ProxyStream::Tcp(Prefixed::from(tcp)), is_http2 });
    };
    let connector = TlsConnector::from(tls.config.clone());
    let name = tls.name(address.ip());
    let handshake = if wanted.for_http1 {
        connector.with_alpn(vec![b"http/1.1".to_vec()]).connect(name, tcp)
    } else {
        connector.connect(name, tcp)
    };
    let stream =
        timeout(limit, handshake).await.map_err(|_| UpstreamError::Timeout)?.map_err(|error| {
            tracing::debug!(%address, %error, "tls handshake with endpoint failed");
            UpstreamError::Tls
        })?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if protocol == UpstreamProtocol::Grpcs && !is_http2 {
        return Err(UpstreamError::Protocol);
    }
    Ok(Connected { stream: ProxyStream::Client(Box::new(stream)), is_http2 })
}

pub(crate) async fn connect_tcp(
    address: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, UpstreamError> {
    let tcp = timeout(limit, TcpStream::connect(address))
        .await
        .map_err(|_| UpstreamError::Timeout)?
        .map_err(|_| UpstreamError::Connect)?;
    // Heads and bodies are written as a whole; waiting for more would only delay them.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}
