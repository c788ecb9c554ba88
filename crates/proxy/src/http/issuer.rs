//! Asks issuers of tokens: for their keys, where their servers are, and who has signed in. Which servers these are is an
//! upstream of the snapshot, as with requests, so the URL of a policy reaches nothing that its author could not reach by a
//! route.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body::Body;
use lb_http::UpstreamName;
use lb_http::balance::Pick;
use lb_http::jwt::{KeySet, TokenError};
use lb_http::oidc::{ProviderDocument, TokenRequest};
use lb_http::policy::Timeouts;
use lb_http::published::{DocumentAddress, IssuerDocument, WhyFetch};
use tokio::time::timeout;

use super::deadline;
use super::outbound::Outbound;
use crate::body::BodySource;
use crate::published::{Issuers, PublishedCache, SharedDocument};
use crate::upstream::{EndpointResponseBody, Wanted};
use crate::worker::Worker;

const MOST_DOCUMENT_OCTETS: usize = 256 << 10;

/// A kind of documents that is fetched.
pub(super) trait FetchedDocument: IssuerDocument + Sized + 'static {
    fn cache(issuers: &Issuers) -> &PublishedCache<Self>;
    /// An error says what is wrong with the document.
    fn read(document: &[u8], address: &DocumentAddress) -> Result<Self, String>;
}

impl FetchedDocument for KeySet {
    fn cache(issuers: &Issuers) -> &PublishedCache<Self> {
        &issuers.keys
    }

    fn read(document: &[u8], address: &DocumentAddress) -> Result<Self, String> {
        let (keys, left_out) =
            Self::parse(document).map_err(|why| format!("the document {why}"))?;
        let DocumentAddress { namespace, upstream, url } = address;
        if keys.is_empty() {
            tracing::warn!(%namespace, %upstream, %url, ?left_out, "the issuer publishes no key that can be used");
        } else {
            tracing::debug!(%namespace, %upstream, %url, ?keys, ?left_out, "fetched the keys for tokens");
        }
        Ok(keys)
    }
}

impl FetchedDocument for ProviderDocument {
    fn cache(issuers: &Issuers) -> &PublishedCache<Self> {
        &issuers.providers
    }

    fn read(document: &[u8], address: &DocumentAddress) -> Result<Self, String> {
        Self::parse(document, &address.url)
            .map_err(|why| format!("the document cannot be used: {why}"))
    }
}

/// The current document, for which the caller waits if there is none or it is old. `None`: there is none.
pub(super) async fn find_document<T: FetchedDocument>(
    worker: &Rc<Worker>,
    address: &DocumentAddress,
    shared: &SharedDocument<T>,
) -> Option<Arc<T>> {
    fetch_if_due(worker, address, shared, WhyFetch::Age);
    if shared.borrow().should_await_fetch(Instant::now()) {
        await_fetch(shared).await;
    }
    shared.borrow().usable(Instant::now()).cloned()
}

/// Waits for keys if there are none, or if the token names an unknown one and a fetch is made for it. The token is tried
/// with the same keys once. `None`: there are no keys.
pub(super) async fn verify_with_published_keys<V>(
    worker: &Rc<Worker>,
    address: &DocumentAddress,
    shared: &SharedDocument<KeySet>,
    verify: impl Fn(&KeySet) -> Result<V, TokenError>,
) -> Option<Result<V, TokenError>> {
    fetch_if_due(worker, address, shared, WhyFetch::Age);
    let has_waited = shared.borrow().should_await_fetch(Instant::now());
    if has_waited {
        await_fetch(shared).await;
    }
    let usable = || shared.borrow().usable(Instant::now()).cloned();
    let tried = usable()?;
    let verified = verify(&tried);
    if has_waited || !matches!(verified, Err(TokenError::UnknownKey)) {
        return Some(verified);
    }
    fetch_if_due(worker, address, shared, WhyFetch::UnknownKey);
    await_fetch(shared).await;
    let current = usable()?;
    Some(if Arc::ptr_eq(&current, &tried) { verified } else { verify(&current) })
}

/// Returns at once if none is being made.
async fn await_fetch<T: IssuerDocument>(shared: &SharedDocument<T>) {
    // It fails only if there is no sender any more.
    let _ = shared.subscribe().wait_for(|document| !document.is_fetching()).await;
}

/// In a task of its own, which does not end with the client's request.
fn fetch_if_due<T: FetchedDocument>(
    worker: &Rc<Worker>,
    address: &DocumentAddress,
    shared: &SharedDocument<T>,
    why: WhyFetch,
) {
    let cache = T::cache(&worker.shared.issuers);
    let Some(fetch) = cache.begin_fetch(address, shared, why, Instant::now()) else { return };
    let (worker, address) = (worker.clone(), address.clone());
    tokio::task::spawn_local(async move {
        let question = IssuerRequest::for_document(&address);
        let fetched = match question.send(&worker).await {
            Ok((StatusCode::OK, document)) => T::read(&document, &address),
            Ok((status, _)) => Err(format!("the response has status {}", status.as_u16())),
            Err(error) => Err(error),
        };
        match fetched {
            Ok(document) => fetch.succeed(document),
            Err(error) => T::cache(&worker.shared.issuers).warn(&address, &error, Instant::now()),
        }
    });
}

/// A request to a server of an issuer.
pub(super) struct IssuerRequest<'a> {
    upstream: &'a UpstreamName,
    url: &'a Uri,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
}

impl<'a> IssuerRequest<'a> {
    fn for_document(address: &'a DocumentAddress) -> Self {
        let DocumentAddress { upstream, url, .. } = address;
        Self { upstream, url, method: Method::GET, headers: accept_json(), body: Bytes::new() }
    }

    pub fn for_token(request: TokenRequest<'a>) -> Self {
        let TokenRequest { upstream, url, authorization, form } = request;
        let mut headers = accept_json();
        let media = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, media);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(form.len()));
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        Self { upstream, url, method: Method::POST, headers, body: form.into() }
    }

    /// The status and the whole body of the response. Redirects are not followed.
    pub async fn send(self, worker: &Rc<Worker>) -> Result<(StatusCode, Vec<u8>), String> {
        let limit = worker.shared.settings.limits.issuer_response;
        let response = timeout(limit, self.send_once(worker, limit)).await;
        response.unwrap_or_else(|_| Err(format!("no response within {limit:?}")))
    }

    async fn send_once(
        self,
        worker: &Rc<Worker>,
        limit: Duration,
    ) -> Result<(StatusCode, Vec<u8>), String> {
        let now = Instant::now();
        let endpoints = worker.endpoints(self.upstream, now).ok_or("no such upstream")?;
        if !endpoints.is_usable() {
            return Err("the settings of TLS cannot be used".to_owned());
        }
        let pick = Pick { now, random: worker.random(), hash: None, affinity: None, tried: &[] };
        let guard = endpoints.balancer.choose(&pick).ok_or("there is no endpoint")?;
        // One that was used before may be about to close, and issuers are asked rarely.
        let wanted = Wanted { is_new: true, ..Wanted::default() };
        let pool = endpoints.pool(guard.address());
        let lease = pool.lease(worker.limits(), limit, &wanted);
        let mut lease = lease.await.map_err(|error| format!("cannot connect: {error:?}"))?;
        let host = self.url.authority().map(Authority::as_str);
        let outbound = Outbound {
            method: self.method,
            uri: self.url.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")),
            headers: self.headers,
            report: None,
            host: host.and_then(|host| HeaderValue::from_str(host).ok()),
            upgrade: None,
            is_tls: self.upstream.protocol.uses_tls(),
        };
        let source = BodySource::of_octets(self.body, now);
        let timeouts = Timeouts::default();
        let sent =
            deadline::send_request(&mut lease, &outbound, &source, &timeouts, worker.limits(), now);
        let response = sent.ok_or("the host cannot be sent")?.await.map_err(|_| "no response")?;
        if response.headers().contains_key(CONTENT_ENCODING) {
            return Err("the response is compressed".to_owned());
        }
        Ok((response.status(), read_document(response.into_body()).await?))
    }
}

fn accept_json() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))])
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

pub(super) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
