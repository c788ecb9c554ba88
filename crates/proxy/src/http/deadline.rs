//! Waits for the head of an endpoint's response, with a limit for each side that may delay it.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Response;
use lb_http::policy::Timeouts;
use tokio::time::sleep_until;

use super::outbound::Outbound;
use crate::body::{Source, State};
use crate::settings::Limits;
use crate::upstream::{EndpointResponseBody, Lease, NoResponse, Sent};

/// Why there is no response.
pub(crate) enum NoHead {
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
    source: &'a Rc<Source>,
    timeouts: &'a Timeouts,
    limits: &'a Limits,
    begun: Instant,
) -> Option<impl Future<Output = Result<Response<EndpointResponseBody>, NoHead>> + use<'a>> {
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
    source: &Source,
    timeouts: &Timeouts,
    limits: &Limits,
    begun: Instant,
) -> Result<Response<EndpointResponseBody>, NoHead> {
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
            result = &mut send => return result.map_err(NoHead::Failed),
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
    source: &Source,
    begun: Instant,
    timeouts: &Timeouts,
    limits: &Limits,
    now: Instant,
) -> Result<Duration, NoHead> {
    let (limit, over) = match source.state() {
        State::WaitsForClient => (limits.body_stall, NoHead::ClientTimeout),
        State::Whole | State::WaitsForEndpoint => (timeouts.send, NoHead::EndpointTimeout),
        State::Done => (timeouts.read, NoHead::EndpointTimeout),
    };
    let passed = now.saturating_duration_since(source.since().max(begun));
    match limit.checked_sub(passed) {
        Some(rest) if !rest.is_zero() => Ok(rest),
        _ => Err(over),
    }
}
