//! Waits for the head of an endpoint's response, with a limit for each side that may delay it.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use lb_http::policy::Timeouts;
use tokio::time::sleep_until;

use crate::body::{Gate, RequestBody, Source, State};
use crate::settings::Limits;
use crate::upstream::{Lease, Sent};

/// Why there is no response.
pub(crate) enum NoHead {
    /// The connection failed. Has the request, if nothing of it was sent.
    Failed(Box<TrySendError<Request<RequestBody>>>),
    /// The endpoint took too long to take the request, or to respond.
    EndpointTimeout,
    /// The client took too long to send the body.
    ClientTimeout,
}

/// Sends the request at once, whether the future is polled or not. Not an `async` function: that would hold the
/// request twice. `begun`: now, or a moment ago.
pub(crate) fn send_request<'a>(
    lease: &'a mut Lease,
    mut request: Request<RequestBody>,
    source: &'a Rc<Source>,
    gate: Option<&'a Arc<Gate>>,
    timeouts: &'a Timeouts,
    limits: &'a Limits,
    begun: Instant,
) -> impl Future<Output = Result<Response<Incoming>, NoHead>> + 'a {
    if let Some(gate) = gate
        && lease.is_http2()
    {
        // Interim responses of HTTP/2 are not seen. The endpoint's window keeps back what it does not want.
        gate.open();
        source.open();
    } else if let Some(gate) = gate.cloned() {
        hyper::ext::on_informational(&mut request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                gate.open();
            }
        });
    }
    let send = lease.send(request);
    async move {
        let head = wait(send, source, gate, timeouts, limits, begun).await;
        lease.expect_body();
        head
    }
}

async fn wait(
    send: impl Future<Output = Sent>,
    source: &Source,
    gate: Option<&Arc<Gate>>,
    timeouts: &Timeouts,
    limits: &Limits,
    begun: Instant,
) -> Result<Response<Incoming>, NoHead> {
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
            result = &mut send => return result.map_err(|error| NoHead::Failed(Box::new(error))),
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
