//! New connections to endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use lb_http::upstream::Protocol;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::io::{Prefixed, Stream};
use crate::metrics::UpstreamError;
use crate::tls::client::EndpointTls;

/// A stream on which requests can be sent, and whether it speaks HTTP/2.
pub(crate) struct Connected {
    pub stream: Stream,
    pub is_http2: bool,
}

/// Connects, and completes the TLS handshake, within `limit` each. `for_http1`: does not offer HTTP/2.
pub(crate) async fn connect(
    address: SocketAddr,
    protocol: Protocol,
    tls: Option<&EndpointTls>,
    limit: Duration,
    for_http1: bool,
) -> Result<Connected, UpstreamError> {
    if for_http1 && matches!(protocol, Protocol::H2c | Protocol::Grpcs) {
        return Err(UpstreamError::Protocol);
    }
    let tcp = tcp(address, limit).await?;
    let Some(tls) = tls else {
        let is_http2 = protocol == Protocol::H2c;
        return Ok(Connected { stream: Stream::Tcp(Prefixed::from(tcp)), is_http2 });
    };
    let connector = TlsConnector::from(tls.config.clone());
    let name = tls.name(address.ip());
    let handshake = if for_http1 {
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
    if protocol == Protocol::Grpcs && !is_http2 {
        return Err(UpstreamError::Protocol);
    }
    Ok(Connected { stream: Stream::Client(Box::new(stream)), is_http2 })
}

pub(crate) async fn tcp(address: SocketAddr, limit: Duration) -> Result<TcpStream, UpstreamError> {
    let tcp = timeout(limit, TcpStream::connect(address))
        .await
        .map_err(|_| UpstreamError::Timeout)?
        .map_err(|_| UpstreamError::Connect)?;
    // Heads and bodies are written as a whole; waiting for more would only delay them.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}
