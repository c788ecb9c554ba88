//! Waits for the head of an endpoint's response, with a limit for each side that may delay it.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Response;
use lb_http::policy::Timeouts;
use tokio::time::sleep_until;

use super::outbound::Outbound;
use crate::body::{BodySource, BodyState};
use crate::settings::ProxyLimits;
use crate::upstream::{EndpointResponseBody, Lease, NoResponse, Sent};

/// Why there is no response.
pub(crate) enum NoResponseHead {
    /// The connection failed.
    Failed(NoResponse),
    /// The endpoint took too long to take the request, or to respond.
    EndpointTimeout,
    /// The client took too long to send the body.
    ClientTimeout,
}

/// `begun`: now, or a moment ago. `None`: the connection cannot carry the request.
pub(crate) fn send_request<'a>(
    lease: &mut Lease,
    outbound: &Outbound<'_>,
    source: &'a Rc<BodySource>,
    timeouts: &'a Timeouts,
    limits: &'a ProxyLimits,
    begun: Instant,
) -> Option<impl Future<Output = Result<Response<EndpointResponseBody>, NoResponseHead>> + use<'a>>
{
    if let Some(gate) = source.gate()
        && lease.is_http2()
    {
        // Interim responses of HTTP/2 are not seen. The endpoint's window keeps back what it does not want.
        gate.open();
        source.open();
    }
    let send = lease.send(outbound, source)?;
    Some(wait(send, source, timeouts, limits, begun))
}

async fn wait(
    send: impl Future<Output = Sent>,
    source: &BodySource,
    timeouts: &Timeouts,
    limits: &ProxyLimits,
    begun: Instant,
) -> Result<Response<EndpointResponseBody>, NoResponseHead> {
    let gate = source.gate();
    let first = match gate {
        Some(gate) if !gate.is_open() => limits.expectation,
        _ => timeouts.read.min(timeouts.send).min(limits.body_stall),
    };
    let mut timer = pin!(sleep_until((begun + first).into()));
    let mut send = pin!(send);
    let mut is_gate_open = gate.is_none_or(|gate| gate.is_open());
    loop {
        let opened = async {
            match gate {
                Some(gate) if !is_gate_open => gate.opened().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = &mut send => return result.map_err(NoResponseHead::Failed),
            () = opened => {
                is_gate_open = true;
                source.open();
            }
            () = &mut timer => {
                if !is_gate_open {
                    is_gate_open = true;
                    source.open();
                }
                let wait = judge(source, begun, timeouts, limits, Instant::now())?;
                timer.as_mut().reset(tokio::time::Instant::now() + wait);
            }
        }
    }
}

/// How much longer to wait for the side, client or endpoint, that the exchange waits for.
fn judge(
    source: &BodySource,
    begun: Instant,
    timeouts: &Timeouts,
    limits: &ProxyLimits,
    now: Instant,
) -> Result<Duration, NoResponseHead> {
    let (limit, over) = match source.state() {
        BodyState::WaitsForClient => (limits.body_stall, NoResponseHead::ClientTimeout),
        BodyState::Whole | BodyState::WaitsForEndpoint => {
            (timeouts.send, NoResponseHead::EndpointTimeout)
        }
        BodyState::Done => (timeouts.read, NoResponseHead::EndpointTimeout),
    };
    let passed = now.saturating_duration_since(source.since().max(begun));
    match limit.checked_sub(passed) {
        Some(rest) if !rest.is_zero() => Ok(rest),
        _ => Err(over),
    }
}
