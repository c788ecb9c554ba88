//! Connections that change their protocol, such as WebSockets: after the endpoint's 101, octets are exchanged until
//! both sides have closed, or are silent for longer than the route's read limit.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use lb_http::balance::Guard;

use super::record::Record;
use crate::io::{Prefixed, Stream};
use crate::tunnel::{self, End};

/// Joins both sides once each has left HTTP. The client's connection, the request in flight and the record end with
/// the tunnel.
pub(crate) fn join_upgraded(
    client: OnUpgrade,
    endpoint: Prefixed<Stream>,
    idle: Duration,
    guard: Guard,
    record: Record,
) {
    tokio::task::spawn_local(async move {
        // As a whole: its end is the end of the request.
        let (mut record, _guard) = (record, guard);
        let Ok(client) = client.await else { return };
        let (end, received, sent) =
            tunnel::join_streams(TokioIo::new(client), endpoint, idle).await;
        record.sent = sent;
        record.tunnelled = received;
        record.is_complete = true;
        record.reason = match end {
            End::Closed => None,
            End::Idle => Some("tunnel_idle"),
            End::Failed => Some("tunnel_failed"),
        };
    });
}
