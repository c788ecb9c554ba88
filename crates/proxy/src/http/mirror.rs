//! Sends copies of requests to another server, and discards its responses.
//!
//! Invariants:
//! - No request waits for its copy, and nothing that happens to the copy changes what the client gets.
//! - What copies take is bounded, also for each namespace, until nothing of them is left to be sent. A copy that would
//!   exceed it is not made, and counted.
//! - Copies have nothing that only the route's endpoints may know or that only the proxy may say to them.
//! - The server is an upstream of the snapshot, as with requests.

use std::hash::BuildHasher;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, TRAILER};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use lb_http::balance::Pick;
use lb_http::mirror::{COPY_HEADER, Mirror};
use lb_http::policy::Timeouts;
use lb_http::{RouteOwner, RoutePolicy};
use lb_limits::Share;
use tokio::time::timeout;

use super::discard::discard_body;
use super::outbound::Outbound;
use crate::body::{BodySource, BodyState, CopiedBody};
use crate::metrics::MirrorResult;
use crate::routes::Known;
use crate::upstream::{Endpoints, Wanted};
use crate::worker::Worker;

/// A copy that waits for its body, or is sent.
struct RequestCopy {
    worker: Rc<Worker>,
    route: Rc<Known>,
    endpoints: Rc<Endpoints>,
    outbound: Outbound<'static>,
    room: Share<Arc<str>>,
}

/// Copies the request once its body is complete, if the route wants that. With the URI of the copy; boxed, because it is
/// part of each request's future.
pub(crate) fn mirror_request(
    wanted: Option<Box<(&Mirror, Option<PathAndQuery>)>>,
    outbound: &Outbound<'_>,
    source: &BodySource,
    route: &Rc<Known>,
    worker: &Rc<Worker>,
) {
    let Some((mirror, uri)) = wanted.map(|wanted| *wanted) else { return };
    // A copy of an upgrade would be a connection without end, a copy of a copy a loop.
    let (owner, policy) = (&route.route.owner, &*route.route.policy);
    let mark = mark_of_copies(worker, owner);
    let has_mark = outbound.headers.get_all(COPY_HEADER).iter().any(|known| *known == mark);
    if outbound.upgrade.is_some() || has_mark {
        return;
    }
    let count = |result| route.counters.mirrored(result);
    let Some(uri) = uri else { return count(MirrorResult::Failed) };
    let Some(endpoints) = worker.endpoints(&mirror.upstream, Instant::now()) else {
        return count(MirrorResult::Failed);
    };
    let mut room = worker.mirrored.empty(owner.namespace.clone());
    if !room.grow(worker.limits().head_bytes) {
        return count(MirrorResult::Limit);
    }
    let mut headers = outbound.headers.clone();
    if let Some(report) = &outbound.report {
        report.insert_into(&mut headers);
    }
    for name in [CONTENT_LENGTH, EXPECT, TRAILER] {
        headers.remove(name);
    }
    remove_answered(policy, &mut headers);
    headers.append(HeaderName::from_static(COPY_HEADER), mark);
    let copy = RequestCopy {
        worker: worker.clone(),
        route: route.clone(),
        endpoints,
        outbound: Outbound {
            method: outbound.method.clone(),
            uri,
            headers,
            report: None,
            host: Some(mirror.host.clone()),
            upgrade: None,
            is_tls: mirror.upstream.protocol.uses_tls(),
        },
        room,
    };
    if source.state() == BodyState::Done || !mirror.with_body {
        let has_body = source.state() != BodyState::Done;
        return copy.begin(Bytes::new(), has_body);
    }
    let most = worker.limits().mirrored_body;
    let mut copy = Some(copy);
    source.copy_body(move |step| match step {
        CopiedBody::Grows { from, by } => {
            let room = copy.as_mut().map(|copy| &mut copy.room);
            let fits = from + by <= most && room.is_some_and(|room| room.grow(by));
            if !fits && let Some(copy) = copy.take() {
                copy.count(MirrorResult::Limit);
            }
            fits
        }
        CopiedBody::Complete(body) => copy.take().is_some_and(|copy| {
            copy.begin(body, true);
            true
        }),
        CopiedBody::Broken => {
            if let Some(copy) = copy.take() {
                copy.count(MirrorResult::Body);
            }
            false
        }
    });
}

/// What copies of the owner's requests have. Nobody else can say it, so that no client keeps its requests from being
/// copied; other marks remain, so that no owners copy each other's copies without end.
fn mark_of_copies(worker: &Worker, owner: &RouteOwner) -> HeaderValue {
    let owner = (&owner.namespace, &owner.name);
    HeaderValue::from(worker.shared.copy_marks.hash_one(owner))
}

/// Removes what endpoints get from the proxy instead: a copy would have the client's.
fn remove_answered(policy: &RoutePolicy, headers: &mut HeaderMap) {
    for name in policy.external_auth.iter().flat_map(|auth| &auth.response_headers) {
        headers.remove(name);
    }
    for (name, _) in policy.snippet.iter().flat_map(|rules| &rules.request_headers) {
        headers.remove(name);
    }
}

impl RequestCopy {
    fn count(&self, result: MirrorResult) {
        self.route.counters.mirrored(result);
    }

    /// `had_body`: its length is stated, even if it is 0.
    fn begin(mut self, body: Bytes, had_body: bool) {
        if had_body {
            self.outbound.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        tokio::task::spawn_local(async move {
            let limit = self.worker.limits().mirrored_time;
            let sent = matches!(timeout(limit, self.send(&body)).await, Ok(Some(())));
            self.count(if sent { MirrorResult::Sent } else { MirrorResult::Failed });
        });
    }

    /// `None`: the server gave no response. That says nothing about it to the balancer, which other routes may share.
    async fn send(&self, body: &Bytes) -> Option<()> {
        if !self.endpoints.is_usable() {
            return None;
        }
        let (limits, mut is_new) = (self.worker.limits(), false);
        loop {
            let now = Instant::now();
            let random = self.worker.random();
            let pick = Pick { now, random, hash: None, affinity: None, tried: &[] };
            let guard = self.endpoints.balancer.choose(&pick)?;
            let wanted = Wanted { is_new, ..Wanted::default() };
            let pool = self.endpoints.pool(guard.address());
            let mut lease = pool.lease(limits, Timeouts::default().connect, &wanted).await.ok()?;
            let source = BodySource::of_octets(body.clone(), now);
            match lease.send(&self.outbound, &source)?.await {
                // What has still to be sent would be kept beyond the copy.
                Ok(_) if lease.is_sending() => return None,
                Ok(response) => {
                    discard_body(response.into_body(), lease);
                    return Some(());
                }
                // The server closed a connection just when it was used again.
                Err(_) if lease.is_reused && !is_new => is_new = true,
                Err(_) => return None,
            }
        }
    }
}
