//! Connections that change their protocol, such as WebSockets: after the endpoint's 101, octets are exchanged until
//! both sides have closed, or are silent for longer than the route's read limit.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use lb_http::balance::Guard;

use super::http1::UpgradedStream;

use super::record::RequestRecord;
use crate::io::{Prefixed, ProxyStream, WatchedStream};
use crate::tunnel::{self, TunnelEnd};

/// The client's side, once its connection has left HTTP.
pub(crate) enum ClientUpgrade {
    Http1(UpgradedStream<WatchedStream>),
    Http2(OnUpgrade),
}

/// Joins both sides once each has left HTTP. The client's connection, the request in flight and the record end with
/// the tunnel.
pub(crate) fn join_upgraded(
    client: ClientUpgrade,
    endpoint: Prefixed<ProxyStream>,
    idle: Duration,
    guard: Guard,
    record: RequestRecord,
) {
    tokio::task::spawn_local(async move {
        // As a whole: its end is the end of the request.
        let (mut record, _guard) = (record, guard);
        let (end, received, sent) = match client {
            ClientUpgrade::Http1(client) => {
                let Ok(client) = client.await else { return };
                tunnel::join_streams(client, endpoint, idle).await
            }
            ClientUpgrade::Http2(client) => {
                let Ok(client) = client.await else { return };
                tunnel::join_streams(TokioIo::new(client), endpoint, idle).await
            }
        };
        record.sent = sent;
        record.tunnelled = received;
        record.is_complete = true;
        record.reason = match end {
            TunnelEnd::Closed => None,
            TunnelEnd::Idle => Some("tunnel_idle"),
            TunnelEnd::Failed => Some("tunnel_failed"),
        };
    });
}
