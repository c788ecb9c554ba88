//! Gets a response from an endpoint of an upstream, trying others if that is safe.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use http::Response;
use lb_http::affinity::Token;
use lb_http::balance::{Affinity, Guard, Pick, RequestOutcome};
use lb_http::proxy_protocol::ProxiedAddresses;
use lb_http::retry::{Failure, Progress, Retrying, may_retry};
use lb_http::{Rejection, RoutePolicy};

use super::deadline::{self, NoResponseHead};
use super::discard::discard_body;
use super::outbound::Outbound;
use super::record::RequestRecord;
use super::reply::OwnResponse;
use crate::body::{BodyFailure, BodySource};
use crate::metrics::{CutOff, UpstreamError};
use crate::upstream::{EndpointResponseBody, Endpoints, Lease, NoResponse, Wanted};

/// How an endpoint is chosen for the request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Choice {
    pub hash: Option<u64>,
    pub affinity: Option<Affinity>,
}

/// An endpoint's response, and what its body needs.
pub(crate) struct Got {
    pub response: Response<EndpointResponseBody>,
    pub lease: Lease,
    pub guard: Guard,
    /// Whether the endpoint that the client's cookie names was tried and failed.
    pub tried: Vec<SocketAddr>,
    /// Names the endpoint of the route in the affinity cookie, if the route has one.
    pub token: Option<Token>,
}

/// A failed try.
struct Failed {
    error: UpstreamError,
    failure: Failure,
    /// The endpoint closed an unused connection at the moment that it was used. That says nothing about it.
    is_stale: bool,
}

enum Attempt {
    Got(Response<EndpointResponseBody>, Lease),
    Failed(Failed),
    /// The client's fault; nothing is retried.
    Refused(Rejection),
}

pub(crate) async fn forward_request(
    endpoints: &Rc<Endpoints>,
    policy: &RoutePolicy,
    outbound: &Outbound<'_>,
    source: &Rc<BodySource>,
    choice: Choice,
    record: &mut RequestRecord,
) -> Result<Got, OwnResponse> {
    if !endpoints.is_usable() {
        return Err(Rejection::EndpointTlsSettings.into());
    }
    let worker = record.client.worker.clone();
    let begun = Instant::now();
    let mut tried: Vec<SocketAddr> = Vec::new();
    let mut was_stale = false;
    let pick = |tried: &[SocketAddr], now: Instant| {
        endpoints.balancer.choose(&Pick {
            now,
            random: worker.random(),
            hash: choice.hash,
            affinity: choice.affinity,
            tried,
        })
    };
    let mut now = begun;
    let Some(mut guard) = pick(&tried, now) else {
        record.failed(UpstreamError::NoEndpoint);
        return Err(Rejection::NoEndpoint.into());
    };
    let method = &outbound.method;
    let mut _retrying: Option<Retrying> = None;
    loop {
        let address = guard.address();
        record.endpoint = Some(address);
        record.tries += 1;
        let which = Try { address, needs_new: was_stale, now };
        let attempt = attempt(endpoints, policy, outbound, source, &which, record).await;
        let failed = match attempt {
            Attempt::Refused(rejection) => return Err(rejection.into()),
            Attempt::Got(response, lease) => {
                let status = response.status();
                let outcome = RequestOutcome::of_status(status);
                // The time matters only to failures.
                if outcome == RequestOutcome::Failure {
                    now = Instant::now();
                }
                if endpoints.balancer.report(&guard, outcome, now) {
                    record.ejected();
                }
                let failure = Failure::Status(status);
                let is_error = status.is_client_error() || status.is_server_error();
                let may_retry =
                    || may_retry(&policy.retry, method, failure, &progress(record, source, begun));
                if is_error && may_retry() {
                    now = Instant::now();
                    tried.push(address);
                    // Without another endpoint, or if there are too many retries, the client gets this response.
                    if let Some(next) = pick(&tried, now)
                        && let Some(permit) = endpoints.balancer.begin_retry(failure)
                    {
                        discard_body(response.into_body(), lease);
                        record.retried();
                        (guard, _retrying) = (next, Some(permit));
                        continue;
                    }
                    tried.pop();
                }
                let token = policy.affinity.as_ref().map(|_| endpoints.balancer.token(&guard));
                return Ok(Got { response, lease, guard, tried, token });
            }
            Attempt::Failed(failed) => {
                record.failed(failed.error);
                if !failed.is_stale
                    && endpoints.balancer.report(&guard, RequestOutcome::Failure, Instant::now())
                {
                    record.ejected();
                }
                failed
            }
        };
        let may =
            may_retry(&policy.retry, method, failed.failure, &progress(record, source, begun));
        let is_safe_stale = failed.is_stale
            && !was_stale
            && source.is_replayable()
            && (failed.failure == Failure::NotProcessed
                || method.is_idempotent()
                || policy.retry.non_idempotent);
        let failed_reply = || OwnResponse::from(rejection_of(failed.error));
        if !(may || is_safe_stale) {
            return Err(failed_reply());
        }
        if failed.is_stale {
            // The same endpoint may serve it, on a new connection. Endpoints that close unused connections get no more
            // load by that.
            was_stale = true;
        } else {
            tried.push(address);
            _retrying = None;
            let permit = endpoints.balancer.begin_retry(failed.failure);
            _retrying = Some(permit.ok_or_else(failed_reply)?);
        }
        now = Instant::now();
        guard = pick(&tried, now).ok_or_else(failed_reply)?;
        record.retried();
    }
}

fn progress(record: &RequestRecord, source: &BodySource, begun: Instant) -> Progress {
    Progress {
        tries: record.tries,
        elapsed: begun.elapsed(),
        response_started: false,
        replayable: source.is_replayable(),
    }
}

/// A try of a request.
struct Try {
    address: SocketAddr,
    /// A connection that was used before may be about to close.
    needs_new: bool,
    now: Instant,
}

async fn attempt(
    endpoints: &Rc<Endpoints>,
    policy: &RoutePolicy,
    outbound: &Outbound<'_>,
    source: &Rc<BodySource>,
    which: &Try,
    record: &RequestRecord,
) -> Attempt {
    let worker = &record.client.worker;
    let limits = worker.limits();
    let pool = endpoints.pool(which.address);
    // An upgraded connection never comes back, and HTTP/2 knows no `Upgrade`.
    let for_http1 = outbound.upgrade.is_some();
    let preamble = policy.endpoint_proxy_protocol.map(|version| version.encode(&addresses(record)));
    let wanted = Wanted { is_new: which.needs_new, for_http1, preamble: preamble.as_deref() };
    let mut lease = match pool.lease(limits, policy.timeouts.connect, &wanted).await {
        Ok(lease) => lease,
        Err(error) => return not_processed(error),
    };
    if let Some(failure) = source.failure() {
        // Without its body, the endpoint would take the next request on the connection for it.
        return refused_body(failure);
    }
    let begun = if lease.is_immediate { which.now } else { Instant::now() };
    let sent =
        deadline::send_request(&mut lease, outbound, source, &policy.timeouts, limits, begun);
    let Some(sent) = sent else { return Attempt::Refused(Rejection::Host) };
    match sent.await {
        Ok(response) => Attempt::Got(response, lease),
        Err(NoResponseHead::ClientTimeout) => {
            worker.counters.cut_off.count(CutOff::SlowBody);
            Attempt::Refused(Rejection::SlowBody)
        }
        Err(NoResponseHead::EndpointTimeout) => failed(UpstreamError::Timeout, Failure::Timeout),
        Err(NoResponseHead::Failed(why)) => judge(why, &lease, source),
    }
}

/// The addresses of the client that the request comes from. Trusted proxies do not report its port.
fn addresses(record: &RequestRecord) -> ProxiedAddresses {
    let client = &record.client;
    let source = if record.address == client.source_ip() {
        client.source
    } else {
        SocketAddr::new(record.address, 0)
    };
    ProxiedAddresses { source, destination: client.local }
}

fn not_processed(error: UpstreamError) -> Attempt {
    failed(error, Failure::NotProcessed)
}

fn failed(error: UpstreamError, failure: Failure) -> Attempt {
    Attempt::Failed(Failed { error, failure, is_stale: false })
}

fn refused_body(failure: BodyFailure) -> Attempt {
    Attempt::Refused(match failure {
        BodyFailure::TooLarge => Rejection::BodyTooLarge,
        BodyFailure::Client => Rejection::BrokenBody,
    })
}

/// What a failed connection says about the request.
fn judge(why: NoResponse, lease: &Lease, source: &BodySource) -> Attempt {
    if let Some(failure) = source.failure() {
        return refused_body(failure);
    }
    let (error, failure, is_stale) = match why {
        NoResponse::NotSent => (UpstreamError::Closed, Failure::NotProcessed, lease.is_reused),
        NoResponse::Malformed => (UpstreamError::Protocol, Failure::NoResponse, false),
        NoResponse::Closed | NoResponse::RequestBody => {
            let is_stale = lease.is_reused && !lease.has_received();
            (UpstreamError::Closed, Failure::NoResponse, is_stale)
        }
    };
    tracing::debug!(?why, is_stale, "no response from endpoint");
    Attempt::Failed(Failed { error, failure, is_stale })
}

fn rejection_of(error: UpstreamError) -> Rejection {
    match error {
        UpstreamError::NoEndpoint => Rejection::NoEndpoint,
        UpstreamError::Connect => Rejection::EndpointConnect,
        UpstreamError::Tls => Rejection::EndpointTls,
        UpstreamError::Timeout => Rejection::EndpointTimeout,
        UpstreamError::Closed => Rejection::EndpointClosed,
        UpstreamError::Protocol => Rejection::EndpointProtocol,
    }
}
