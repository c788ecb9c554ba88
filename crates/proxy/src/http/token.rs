//! Verifies the tokens of requests, and fetches the keys for it. Where those come from is an upstream of the snapshot, as
//! with requests, so the URL of a policy reaches nothing that its author could not reach by a route.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::header::{ACCEPT, CONTENT_ENCODING, WWW_AUTHENTICATE};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Body;
use lb_http::Rejection;
use lb_http::balance::Pick;
use lb_http::jwt::{
    JwtAuth, KeyAddress, KeySet, KeySource, PresentedToken, TokenError, VerifiedToken, WhyFetch,
    bearer_challenge,
};
use lb_http::policy::Timeouts;
use tokio::time::timeout;

use super::deadline;
use super::outbound::Outbound;
use super::reply::OwnResponse;
use crate::body::BodySource;
use crate::published_keys::{KeySlot, SharedKeys};
use crate::upstream::{EndpointResponseBody, Wanted};
use crate::worker::Worker;

/// From the connection to the last octet.
const FETCH_LIMIT: Duration = Duration::from_secs(5);
const MOST_DOCUMENT_OCTETS: usize = 256 << 10;

pub(crate) async fn verify_token(
    worker: &Rc<Worker>,
    slot: &KeySlot,
    jwt: &JwtAuth,
    headers: &HeaderMap,
) -> Result<VerifiedToken, OwnResponse> {
    let refused = |error: TokenError| {
        let challenge = bearer_challenge(&jwt.realm, error);
        OwnResponse::from(Rejection::Token(error.status())).with(WWW_AUTHENTICATE, challenge)
    };
    let token = jwt.read_token(headers).map_err(refused)?;
    match &jwt.keys {
        KeySource::Fixed(keys) => jwt.verify_token(&token, keys, seconds_now()),
        KeySource::Published(address) => {
            verify_with_published_keys(worker, slot, jwt, address, &token).await?
        }
    }
    .map_err(refused)
}

/// Waits for keys if there are none, or if the token names an unknown one and a fetch is made for it. The token is tried
/// with the same keys once.
async fn verify_with_published_keys(
    worker: &Rc<Worker>,
    slot: &KeySlot,
    jwt: &JwtAuth,
    address: &KeyAddress,
    token: &PresentedToken<'_>,
) -> Result<Result<VerifiedToken, TokenError>, OwnResponse> {
    let unavailable = || OwnResponse::from(Rejection::TokenKeys);
    let now = Instant::now();
    let shared = slot.get(&worker.shared.published_keys, address, now).ok_or_else(unavailable)?;
    let usable = || shared.borrow().usable(Instant::now()).cloned();
    let verify = |keys: &KeySet| jwt.verify_token(token, keys, seconds_now());
    fetch_if_due(worker, address, shared, WhyFetch::Age);
    let has_waited = shared.borrow().should_await_fetch(now);
    if has_waited {
        await_fetch(shared).await;
    }
    let tried = usable().ok_or_else(unavailable)?;
    let verified = verify(&tried);
    if has_waited || !matches!(verified, Err(TokenError::UnknownKey)) {
        return Ok(verified);
    }
    fetch_if_due(worker, address, shared, WhyFetch::UnknownKey);
    await_fetch(shared).await;
    let current = usable().ok_or_else(unavailable)?;
    Ok(if Arc::ptr_eq(&current, &tried) { verified } else { verify(&current) })
}

/// Returns at once if none is being made.
async fn await_fetch(shared: &SharedKeys) {
    // It fails only if there is no sender any more.
    let _ = shared.subscribe().wait_for(|keys| !keys.is_fetching()).await;
}

/// In a task of its own, which does not end with the client's request.
fn fetch_if_due(worker: &Rc<Worker>, address: &KeyAddress, shared: &SharedKeys, why: WhyFetch) {
    let cache = &worker.shared.published_keys;
    let Some(fetch) = cache.begin_fetch(address, shared, why, Instant::now()) else { return };
    let (worker, address) = (worker.clone(), address.clone());
    tokio::task::spawn_local(async move {
        let fetched = timeout(FETCH_LIMIT, fetch_keys(&worker, &address)).await;
        match fetched.unwrap_or_else(|_| Err(format!("no response within {FETCH_LIMIT:?}"))) {
            Ok(keys) => fetch.succeed(keys),
            Err(error) => {
                let KeyAddress { namespace, upstream, url } = &address;
                tracing::warn!(%namespace, %upstream, %url, %error, "cannot fetch the keys for tokens");
            }
        }
    });
}

async fn fetch_keys(worker: &Rc<Worker>, address: &KeyAddress) -> Result<KeySet, String> {
    let now = Instant::now();
    let endpoints = worker.endpoints(&address.upstream, now).ok_or("no such upstream")?;
    if !endpoints.is_usable() {
        return Err("the settings of TLS cannot be used".to_owned());
    }
    let pick = Pick { now, random: worker.random(), hash: None, affinity: None, tried: &[] };
    let guard = endpoints.balancer.choose(&pick).ok_or("there is no endpoint")?;
    // One that was used before may be about to close, and keys are fetched rarely.
    let wanted = Wanted { is_new: true, ..Wanted::default() };
    let pool = endpoints.pool(guard.address());
    let lease = pool.lease(worker.limits(), FETCH_LIMIT, &wanted);
    let mut lease = lease.await.map_err(|error| format!("cannot connect: {error:?}"))?;
    let host = address.url.authority().map(Authority::as_str);
    let outbound = Outbound {
        method: Method::GET,
        uri: address.url.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")),
        headers: HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]),
        report: None,
        host: host.and_then(|host| HeaderValue::from_str(host).ok()),
        upgrade: None,
        is_tls: address.upstream.protocol.uses_tls(),
    };
    let source = BodySource::empty(now);
    let timeouts = Timeouts::default();
    let sent =
        deadline::send_request(&mut lease, &outbound, &source, &timeouts, worker.limits(), now);
    let response = sent.ok_or("the host cannot be sent")?.await.map_err(|_| "no response")?;
    if response.status() != StatusCode::OK {
        return Err(format!("the response has status {}", response.status().as_u16()));
    }
    if response.headers().contains_key(CONTENT_ENCODING) {
        return Err("the response is compressed".to_owned());
    }
    let document = read_document(response.into_body()).await?;
    let (keys, left_out) = KeySet::parse(&document).map_err(|why| format!("the document {why}"))?;
    let KeyAddress { namespace, upstream, url } = address;
    if keys.is_empty() {
        tracing::warn!(%namespace, %upstream, %url, ?left_out, "the issuer publishes no key that can be used");
    } else {
        tracing::debug!(%namespace, %upstream, %url, ?keys, ?left_out, "fetched the keys for tokens");
    }
    Ok(keys)
}

async fn read_document(body: EndpointResponseBody) -> Result<Vec<u8>, &'static str> {
    let mut body = pin!(body);
    let mut document = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| "the response broke off")?;
        let Some(data) = frame.data_ref() else { continue };
        if document.len() + data.len() > MOST_DOCUMENT_OCTETS {
            return Err("the document has more than 256 KiB");
        }
        document.extend_from_slice(data);
    }
    Ok(document)
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
