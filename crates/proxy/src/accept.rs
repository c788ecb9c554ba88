//! From an accepted connection to the first octet of its first request: limits, PROXY protocol, TLS, and which HTTP
//! it speaks.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Buf, Bytes, BytesMut};
use lb_connections::accept_connections;
use lb_http::proxy_protocol;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::client::{Arrival, ClientConnection};
use crate::http::connection;
use crate::io::{Prefixed, ProxyStream, WatchedStream};
use crate::metrics::{Handshake, Listener, Refusal};
use crate::passthrough::{self, Forwarding};
use crate::tls::server::{self, Accepted};
use crate::tls::{ClientTls, HttpVersion};
use crate::worker::{Arriving, Worker};

/// The beginning of HTTP/2 without TLS (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Accepts connections until the task is dropped.
pub(crate) async fn serve_listener(worker: Rc<Worker>, listener: TcpListener, kind: Listener) {
    let begin = |(tcp, peer)| {
        let arriving = worker.begin_arrival();
        tokio::task::spawn_local(begin(worker.clone(), arriving, tcp, peer, kind));
    };
    // No connection is closed for another one: they end when their clients are idle or slow.
    accept_connections(|| listener.accept(), begin, || false).await;
}

enum Prepared {
    Serve { stream: ProxyStream, tls: Option<ClientTls>, protocol: HttpVersion, arrival: Arrival },
    Forward(Forwarding),
}

async fn begin(
    worker: Rc<Worker>,
    arriving: Arriving,
    tcp: TcpStream,
    peer: SocketAddr,
    kind: Listener,
) {
    let limit = worker.limits().handshake;
    // Each step has memory of its own, so that an idle connection has no more than it needs.
    match timeout(limit, Box::pin(prepare(&worker, tcp, peer, kind))).await {
        Ok(Ok(Prepared::Serve { stream, tls, protocol, arrival })) => {
            let watched = WatchedStream::new(stream);
            let client =
                ClientConnection::new(&worker, arrival, tls, protocol, watched.progress.clone());
            drop(arriving);
            Box::pin(connection::serve_connection(client, watched)).await;
        }
        Ok(Ok(Prepared::Forward(connection))) => {
            Box::pin(passthrough::forward_connection(&worker, connection)).await;
        }
        Ok(Err(refusal)) => worker.counters.refused.count(refusal),
        Err(_) => worker.counters.refused.count(Refusal::NoRequest),
    }
}

async fn prepare(
    worker: &Rc<Worker>,
    mut tcp: TcpStream,
    peer: SocketAddr,
    listener: Listener,
) -> Result<Prepared, Refusal> {
    let mut permit = worker.shared.sources.admit()?;
    let _ = tcp.set_nodelay(true);
    let mut local = tcp.local_addr().map_err(|_| Refusal::NoRequest)?;
    local.set_port(worker.shared.settings.port_of(listener));
    let mut prefix = Bytes::new();
    let mut source = peer;
    let address = peer.ip().to_canonical();
    if worker.shared.settings.proxy_protocol.iter().any(|network| network.contains(&address)) {
        let (header, rest) = read_proxy_header(&mut tcp).await?;
        prefix = rest;
        if let Some(addresses) = header.addresses {
            (source, local) = (addresses.source, addresses.destination);
        }
    }
    // Others' connections come through a trusted proxy. Its clients are counted by their requests.
    if !worker.shared.settings.forwarding.trusts(source.ip()) {
        permit.count_source(source.ip())?;
    }
    let arrival = Arrival { listener, peer, source, local, permit };
    if listener == Listener::Http {
        let (protocol, prefix) = read_preface(&mut tcp, prefix).await?;
        let stream = ProxyStream::Tcp(Prefixed { prefix, stream: tcp });
        return Ok(Prepared::Serve { stream, tls: None, protocol, arrival });
    }
    let config = worker.config();
    let handshakes = &worker.counters.handshakes;
    let waiting = PendingHandshake(worker);
    let accepted = Box::pin(worker.shared.handshakes.accept(tcp, prefix, &config)).await;
    waiting.end();
    match accepted {
        Ok(Accepted::Terminated { stream, tls, protocol }) => {
            handshakes.count(server::handshake_kind(&stream));
            Ok(Prepared::Serve {
                stream: ProxyStream::Server(stream),
                tls: Some(tls),
                protocol,
                arrival,
            })
        }
        Ok(Accepted::Passthrough { host, server_name, hello, tcp }) => {
            handshakes.count(Handshake::Passthrough);
            Ok(Prepared::Forward(Forwarding { host, server_name, hello, tcp, arrival }))
        }
        Err(result) => {
            handshakes.count(result);
            Err(Refusal::NoRequest)
        }
    }
}

/// Counts a handshake that is dropped because its time is over.
struct PendingHandshake<'w>(&'w Worker);

impl PendingHandshake<'_> {
    fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for PendingHandshake<'_> {
    fn drop(&mut self) {
        self.0.counters.handshakes.count(Handshake::Timeout);
    }
}

/// The header, and what the client has sent after it.
async fn read_proxy_header(
    tcp: &mut TcpStream,
) -> Result<(proxy_protocol::ProxyHeader, Bytes), Refusal> {
    let mut buffer = BytesMut::with_capacity(512);
    loop {
        let read = tcp.read_buf(&mut buffer).await.map_err(|_| Refusal::ProxyProtocol)?;
        if read == 0 {
            return Err(Refusal::ProxyProtocol);
        }
        match proxy_protocol::parse_proxy_header(&buffer) {
            Ok(Some(header)) => {
                let mut rest = buffer.freeze();
                rest.advance(header.length);
                return Ok((header, rest));
            }
            Ok(None) if buffer.len() < proxy_protocol::MOST_OCTETS => {}
            Ok(None) | Err(_) => return Err(Refusal::ProxyProtocol),
        }
    }
}

/// Waits for the first octets, which tell HTTP/2 from HTTP/1.
async fn read_preface(tcp: &mut TcpStream, prefix: Bytes) -> Result<(HttpVersion, Bytes), Refusal> {
    // Before the first octet, a connection has no buffer.
    if prefix.is_empty() {
        tcp.readable().await.map_err(|_| Refusal::NoRequest)?;
    }
    let mut buffer = BytesMut::from(prefix);
    loop {
        let shared = buffer.len().min(PREFACE.len());
        if shared == PREFACE.len() && buffer[..shared] == *PREFACE {
            return Ok((HttpVersion::Http2, buffer.freeze()));
        }
        if shared > 0 && buffer[..shared] != PREFACE[..shared] {
            return Ok((HttpVersion::Http1, buffer.freeze()));
        }
        buffer.reserve(PREFACE.len());
        if tcp.read_buf(&mut buffer).await.map_err(|_| Refusal::NoRequest)? == 0 {
            return Err(Refusal::NoRequest);
        }
    }
}
