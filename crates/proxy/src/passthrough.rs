//! TLS connections that are forwarded by their server name, without being decrypted.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lb_http::balance::{Pick, RequestOutcome};
use lb_http::proxy_protocol::ProxiedAddresses;
use lb_http::respond;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::Arrival;
use crate::config;
use crate::http::access;
use crate::metrics::Refusal;
use crate::tunnel;
use crate::upstream;
use crate::worker::Worker;

/// A connection that is to be forwarded.
pub(crate) struct Forwarding {
    pub host: Arc<config::Passthrough>,
    pub server_name: Option<Box<str>>,
    /// What the client has sent already.
    pub hello: Bytes,
    pub tcp: TcpStream,
    pub arrival: Arrival,
}

/// Limit on connecting to an endpoint.
const CONNECT: Duration = Duration::from_secs(5);
/// Endpoints that are tried.
const TRIES: usize = 3;
/// How long a connection may be silent. The proxy cannot see requests, so this is longer than any of their limits.
const IDLE: Duration = Duration::from_secs(600);

/// A fatal alert before any key is agreed: `access_denied`.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

pub(crate) async fn forward_connection(worker: &Rc<Worker>, connection: Forwarding) {
    let Forwarding { host, server_name, hello, mut tcp, arrival } = connection;
    let now = Instant::now();
    let client = arrival.source.ip().to_canonical();
    let may_connect = respond::may_use_route(&host.allowed_sources, &host.denied_sources, client);
    let permit = match may_connect {
        true => access::limit_rate(worker, &client, &host.owner, &host.limits, now)
            .map_err(|_| Refusal::RateLimit),
        false => Err(Refusal::Denied),
    };
    let _permit = match permit {
        Ok(permit) => permit,
        Err(refusal) => {
            worker.counters.refused.count(refusal);
            let _ = tcp.write_all(&ACCESS_DENIED).await;
            return;
        }
    };
    let Some(endpoints) = worker.endpoints(&host.upstream, now) else { return };
    let mut tried = Vec::new();
    while tried.len() < TRIES {
        let pick = Pick {
            now: Instant::now(),
            random: worker.random(),
            hash: None,
            affinity: None,
            tried: &tried,
        };
        let Some(guard) = endpoints.balancer.choose(&pick) else { break };
        let address = guard.address();
        let mut endpoint = match upstream::connect_tcp(address, CONNECT).await {
            Ok(endpoint) => endpoint,
            Err(_) => {
                endpoints.balancer.report(&guard, RequestOutcome::Failure, Instant::now());
                tried.push(address);
                continue;
            }
        };
        endpoints.balancer.report(&guard, RequestOutcome::Success, Instant::now());
        let addresses = ProxiedAddresses { source: arrival.source, destination: arrival.local };
        let mut first =
            host.proxy_protocol.map_or_else(Vec::new, |version| version.encode(&addresses));
        first.extend_from_slice(&hello);
        let _passed = worker.pass(arrival.listener);
        if endpoint.write_all(&first).await.is_ok() {
            let (end, sent, received) = tunnel::join_streams(tcp, endpoint, IDLE).await;
            tracing::debug!(
                server_name = server_name.as_deref(),
                endpoint = %address,
                ?end,
                sent,
                received,
                "passthrough connection ended"
            );
        }
        return;
    }
    tracing::debug!(server_name = server_name.as_deref(), "no endpoint for passthrough");
}
