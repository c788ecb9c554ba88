//! Serves one request: decides with `lb_http` what happens to it, and does that.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, SET_COOKIE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use http_body::Body;
use lb_http::admission::{
    AdmittedRequest, Rejected, RouteCheck, RoutedRequest, check_length, route_request,
};
use lb_http::affinity::{self, Token};
use lb_http::balance::Affinity;
use lb_http::compress::{self, Coding};
use lb_http::cookie::join_cookies;
use lb_http::hash_key::HashInput as HashSubject;
use lb_http::headers::{self, ConnectionPeer, strip_response};
use lb_http::oidc::remove_set_own_cookies;
use lb_http::policy::{AffinityCookie, Balance, Timeouts};
use lb_http::request::{self, Target};
use lb_http::respond::{self, Facts};
use lb_http::snippet::HeaderFacts;
use lb_http::{Rejection, Route, RoutePolicy};

use super::access::{add_granted, authenticate_client, cors_headers, count_request, limit_rate};
use super::errors;
use super::external_auth::{self, Granted, ask_auth_server};
use super::forward::{Choice, Got, forward_request};
use super::mirror::mirror_request;
use super::outbound::{Outbound, find_uris};
use super::record::RequestRecord;
use super::reply::OwnResponse;
use super::response::{EndpointBody, ResponseBody};
use super::sign_in::{VerifiedClient, check_session};
use super::trace::{TracedRequest, begin_trace};
use super::upgrade::ClientUpgrade;
use super::{extended_connect, gate, token, upgrade};
use crate::body::{BodySource, ClientBody};
use crate::client::ClientConnection;
use crate::tls::HttpVersion;

/// Not an `async` function: what it gets would be in the future twice, and futures are copied as a whole.
pub(crate) fn serve_request(
    client: Rc<ClientConnection>,
    mut parts: Parts,
    incoming: ClientBody,
    on_upgrade: Option<ClientUpgrade>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
    let now = Instant::now();
    join_cookies(&mut parts.headers);
    let mut record = RequestRecord::begin(&client, &parts, now);
    let mut shared = ResponseContext::default();
    if on_upgrade.is_some() && extended_connect::is_websocket(&parts) {
        shared.is_extended_connect = true;
        extended_connect::translate_connect(&mut parts, client.worker.random_pair());
    }
    async move {
        match respond(&client, &mut parts, incoming, on_upgrade, &mut record, &mut shared).await {
            Ok(got) => Ok(deliver(got, record, shared)),
            Err(reply) => Ok(answer(reply, record, &shared)),
        }
    }
}

/// What the response needs to know about the request.
#[derive(Default)]
struct ResponseContext {
    is_tls: bool,
    /// A WebSocket over HTTP/2.
    is_extended_connect: bool,
    method: Method,
    /// What decides about CORS.
    cors: HeaderMap,
    affinity: Option<Token>,
    /// What the client accepts, if the route compresses.
    coding: Option<Option<Coding>>,
    granted: Granted,
    on_upgrade: Option<ClientUpgrade>,
}

impl ResponseContext {
    /// What the route adds to all responses.
    fn complete(&self, record: &RequestRecord, status: StatusCode, headers: &mut HeaderMap) {
        let Some(known) = &record.route else { return };
        let facts = Facts {
            client: record.address,
            is_tls: self.is_tls,
            host_uses_tls: false,
            tls_port: 0,
            method: &self.method,
            authority: None,
            path: "",
            query: None,
            headers: &self.cors,
        };
        let policy = &known.route.policy;
        respond::add_response_headers(policy, &facts, headers);
        if let Some(rules) = &policy.snippet {
            let (client, is_tls, method) = (record.address, self.is_tls, &self.method);
            let facts = HeaderFacts { client, is_tls, method, host: None };
            rules.change_response(status, &facts, headers);
        }
    }
}

/// Everything until there is a response of an endpoint.
async fn respond(
    client: &Rc<ClientConnection>,
    parts: &mut Parts,
    incoming: ClientBody,
    on_upgrade: Option<ClientUpgrade>,
    record: &mut RequestRecord,
    shared: &mut ResponseContext,
) -> Result<Got, OwnResponse> {
    let worker = &client.worker;
    let settings = &worker.shared.settings;
    let config = worker.config();
    let limits = request::RequestLimits { uri: settings.limits.uri_bytes };
    let check =
        if shared.is_extended_connect { request::check_websocket } else { request::check_request };
    let target = check(parts, &limits).map_err(Rejection::Malformed)?;
    let peer = ConnectionPeer {
        address: client.source,
        is_tls: client.tls.is_some(),
        port: client.local.port(),
    };
    let identity = headers::RequestClient::identify(&settings.forwarding, &peer, &parts.headers);
    record.address = identity.address;
    record.in_flight = Some(count_request(client, record.address)?);
    shared.is_tls = identity.is_tls;
    let host_tls = gate::check_connection(&config, target.host(), client.tls.as_ref())?;
    let facts = Facts {
        client: identity.address,
        is_tls: identity.is_tls,
        host_uses_tls: host_tls.is_used,
        tls_port: settings.tls_port,
        method: &parts.method,
        authority: target.authority.as_ref(),
        path: &target.path,
        query: target.query,
        headers: &parts.headers,
    };
    let RoutedRequest { rule, route, admitted } =
        route_request(&config.table, &facts, host_tls.certificate, worker.random())?;
    let known = worker.route(route, record.started);
    record.route = Some(known.clone());
    let (route, policy) = (&*known.route, &known.route.policy);
    if policy.oidc.as_ref().is_some_and(|oidc| oidc.is_own_path(&target.path)) {
        record.forget_query();
    }
    record.trace = begin_trace(TracedRequest {
        connection: client,
        client: identity.address,
        started: record.started,
        route,
        path: rule.path,
        scheme: identity.scheme(),
        parts,
    });
    shared.method = parts.method.clone();
    shared.coding = policy.compress.then(|| Coding::accepted(&parts.headers));
    if policy.cors.is_some() {
        shared.cors = cors_headers(&parts.headers);
    }
    let AdmittedRequest { upstream, most_body: most, checks, mut access } = admitted?;
    let host = parts.headers.get(HOST).cloned().or_else(|| {
        let authority = parts.uri.authority()?;
        HeaderValue::from_str(authority.as_str()).ok()
    });
    let request_id = worker.random_pair();
    let describe = |headers: &mut HeaderMap, verified: &VerifiedClient| {
        headers::strip_request(headers);
        let forwarding = &client.worker.shared.settings.forwarding;
        let report = identity.strip_and_report(forwarding, host.as_ref(), request_id, headers);
        // What the route sets has precedence.
        let may_replace = !policy.request_headers.is_empty()
            || policy.external_auth.is_some()
            || policy.jwt.is_some()
            || policy.oidc.is_some()
            || policy.snippet.is_some();
        if may_replace {
            report.insert_into(headers);
        }
        verified.strip_claims_and_proofs(policy, headers);
        add_configured(client, policy, headers);
        headers.remove(HOST);
        (!may_replace).then_some(report)
    };
    // What only some routes do is allocated when they do it: the future of a request is moved as a whole.
    let mut verified = VerifiedClient::default();
    for check in checks {
        if !check.is_needed(&access) {
            continue;
        }
        match check {
            RouteCheck::Rate(limits) => {
                // Canaries have their main route's limits: together, not each.
                let (now, owner) = (record.started, &rule.route.owner);
                let permit = limit_rate(worker, &identity.address, owner, limits, now)?;
                record.permit = Some(permit);
            }
            RouteCheck::Length(most) => check_length(&parts.headers, most)?,
            RouteCheck::Token(jwt) => {
                let token = token::verify_token(worker, &known.token_keys, jwt, &parts.headers);
                verified.add_token(Box::pin(token).await?);
            }
            RouteCheck::Session(oidc) => {
                let is_needed = !access.is_granted();
                let session = check_session(worker, &known.provider, oidc, &facts, is_needed);
                let session = Box::pin(session).await.map_err(Rejected::from);
                access.add_check(session.map(|session| verified.add_session(session)))?;
            }
            RouteCheck::Password(basic) => {
                let (client, owner) = (identity.address, &rule.route.owner);
                let password = authenticate_client(worker, client, owner, basic, &parts.headers);
                access.add_check(Box::pin(password).await.map_err(Rejected::from))?;
            }
            RouteCheck::ExternalAuth(auth) => {
                let (matched_uri, _) = find_uris(&target, parts, policy, rule.path)?;
                let mut headers = parts.headers.clone();
                describe(&mut headers, &verified);
                record.insert_context(&mut headers);
                verified.add_claim_headers(&mut headers);
                let subject = external_auth::AuthRequest {
                    method: &parts.method,
                    host: host.as_ref(),
                    headers,
                    scheme: identity.scheme(),
                    matched_uri: &matched_uri,
                    facts: &facts,
                };
                let asked = Box::pin(ask_auth_server(auth, subject, record)).await;
                let granted = asked.map(|granted| shared.granted = granted);
                access.add_check(granted.map_err(Rejected::from))?;
            }
        }
    }
    access.conclude()?;

    let choice = choose(&target, parts, policy, &identity);
    shared.affinity = choice.affinity.map(|affinity| affinity.token);
    let (matched_uri, uri) = find_uris(&target, parts, policy, rule.path)?;
    let expects = parts.headers.contains_key(EXPECT) && parts.version == Version::HTTP_11;
    let upgrade = target.upgrade.cloned().filter(|_| on_upgrade.is_some());
    let mirrored = policy.mirror.as_ref().map(|mirror| Box::new((mirror, mirror.fill_uri(&facts))));
    let source = BodySource::new(incoming, &known.route.policy, most, expects, record.started);
    record.source = Some(source.clone());
    drop(target);

    let mut headers = std::mem::take(&mut parts.headers);
    let report = describe(&mut headers, &verified);
    record.insert_context(&mut headers);
    let mut outbound = Outbound {
        method: parts.method.clone(),
        uri,
        headers,
        report,
        host: policy.upstream_host.as_ref().or(host.as_ref()).cloned(),
        upgrade,
        is_tls: upstream.protocol.uses_tls(),
    };
    mirror_request(mirrored, &outbound, &source, &known, worker);
    // Only the endpoint gets these: neither the server that decides about access, nor that of copies.
    record.begin_endpoint_span(&mut outbound.headers);
    if let Some(rules) = &policy.snippet {
        let facts = HeaderFacts {
            client: identity.address,
            is_tls: identity.is_tls,
            method: &outbound.method,
            host: host.as_ref(),
        };
        rules.change_request(&facts, &mut outbound.headers);
    }
    verified.add_claim_headers(&mut outbound.headers);
    if let Some(auth) = &policy.external_auth {
        add_granted(auth, &mut shared.granted, &mut outbound.headers);
    }
    shared.on_upgrade = on_upgrade.filter(|_| outbound.upgrade.is_some());
    let subject = errors::ErrorPageRequest::of(policy, &outbound, &matched_uri).map(Box::new);
    let own = worker.endpoints_of(&known, record.started);
    let is_empty = own.as_ref().is_none_or(|own| !own.has_endpoints());
    let endpoints = match policy.fallback.as_ref().filter(|_| is_empty) {
        Some(fallback) => {
            outbound.is_tls = fallback.protocol.uses_tls();
            worker.endpoints(fallback, record.started)
        }
        None => own,
    };
    let got = match endpoints {
        Some(endpoints) => {
            forward_request(&endpoints, policy, &outbound, &source, choice, record).await
        }
        None => Err(Rejection::NoUpstream.into()),
    };
    match subject {
        Some(subject) => Box::pin(replace_error(got, *subject, route, record)).await,
        None => got,
    }
}

/// Custom errors, if the policy has any.
async fn replace_error(
    got: Result<Got, OwnResponse>,
    subject: errors::ErrorPageRequest<'_>,
    route: &Route,
    record: &mut RequestRecord,
) -> Result<Got, OwnResponse> {
    let Some(errors) = &route.policy.errors else { return got };
    let (status, closes) = match &got {
        Ok(got) => (got.response.status(), false),
        Err(reply) => (reply.rejection.status(), reply.rejection.closes_connection()),
    };
    if closes || !errors.statuses.contains(&status.as_u16()) {
        return got;
    }
    match errors::fetch_error_page(errors, status, subject, route, record).await {
        Some(mut replacement) => {
            // The affinity cookie names an endpoint of the route.
            replacement.token = got.ok().and_then(|got| got.token);
            record.abandon_body();
            Ok(replacement)
        }
        None => got,
    }
}

fn choose(
    target: &Target<'_>,
    parts: &Parts,
    policy: &RoutePolicy,
    identity: &headers::RequestClient,
) -> Choice {
    let hash = match &policy.balance {
        Balance::LeastOfTwo => None,
        Balance::Hash(key) => key.hash(&HashSubject {
            client: identity.address,
            host: target.host().unwrap_or_default(),
            uri: parts.uri.path_and_query().map_or("", PathAndQuery::as_str),
            path: &target.path,
            headers: &parts.headers,
        }),
    };
    let affinity = policy.affinity.as_ref().and_then(|cookie| {
        let token = affinity::find_endpoint_token(cookie, &parts.headers)?;
        Some(Affinity { token, keep_on_failure: cookie.keep_on_failure })
    });
    Choice { hash, affinity }
}

fn add_configured(client: &ClientConnection, policy: &RoutePolicy, headers: &mut HeaderMap) {
    for (name, value) in client.tls.iter().flat_map(|tls| &tls.described) {
        headers.insert(name, value.clone());
    }
    if let Some(prefix) = &policy.forwarded_prefix {
        headers.insert("x-forwarded-prefix", prefix.clone());
    }
    for (name, value) in &policy.request_headers {
        headers.insert(name, value.clone());
    }
}

/// Turns an endpoint's response into the client's.
fn deliver(got: Got, mut record: RequestRecord, shared: ResponseContext) -> Response<ResponseBody> {
    let Got { response, lease, guard, tried, token } = got;
    if let Some(source) = &record.source {
        source.end_expectation();
    }
    let status = response.status();
    let endpoint_upgrade = (status == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| (response.body().take_upgraded(), response.headers().get(UPGRADE).cloned()));
    let (mut parts, incoming) = response.into_parts();
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        // What decided about the body's end (RFC 9112, 6.3). The length would decide for the client.
        parts.headers.remove(CONTENT_LENGTH);
    }
    strip_response(&mut parts.headers);
    remove_set_own_cookies(&mut parts.headers);
    if shared.is_extended_connect && status.is_success() {
        // The endpoint has not agreed.
        return answer(Rejection::EndpointProtocol.into(), record, &shared);
    }
    let known = record.route.clone();
    let policy = known.as_ref().map(|known| &*known.route.policy);
    let cookie = policy.and_then(|policy| policy.affinity.as_ref());
    if let Some(rules) = policy.and_then(|policy| policy.snippet.as_ref()) {
        rules.hide_headers(&mut parts.headers);
    }
    add_cookies(&mut parts.headers, cookie, &shared, token, !tried.is_empty());
    shared.complete(&record, status, &mut parts.headers);
    let idle =
        record.route.as_ref().map_or_else(Timeouts::default, |k| k.route.policy.timeouts).read;
    let body = match (endpoint_upgrade, shared.on_upgrade) {
        (Some((Some(endpoint), upgrade)), Some(client)) => {
            if shared.is_extended_connect {
                parts.status = extended_connect::accept_websocket(&mut parts.headers);
            } else {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                if let Some(upgrade) = upgrade {
                    parts.headers.insert(UPGRADE, upgrade);
                }
            }
            record.status = Some(parts.status);
            upgrade::join_upgraded(client, endpoint, idle, guard, record);
            return finish(parts.status, parts.headers, ResponseBody::none());
        }
        (Some(_), _) => {
            // A change of protocol that the client has not asked for, or before the endpoint had the request.
            drop(lease);
            return answer(Rejection::EndpointProtocol.into(), record, &ResponseContext::default());
        }
        (None, _) => {
            let length = incoming.size_hint().exact();
            let mut body = EndpointBody::new(incoming, lease, Some(guard), idle);
            if let Some(coding) = shared.coding
                && compress::is_compressible(&shared.method, status, &parts.headers, length)
            {
                compress::add_vary(&mut parts.headers);
                let share = || record.client.worker.compressions.take(record.address.into());
                if let Some(coding) = coding
                    && let Some(share) = share()
                {
                    compress::describe_coding(&mut parts.headers, coding);
                    body.compress(coding, share);
                }
            }
            body
        }
    };
    record.status = Some(status);
    finish(parts.status, parts.headers, ResponseBody::of_endpoint(body, record))
}

fn add_cookies(
    headers: &mut HeaderMap,
    cookie: Option<&AffinityCookie>,
    shared: &ResponseContext,
    served: Option<Token>,
    tried_it: bool,
) {
    if let (Some(cookie), Some(served)) = (cookie, served) {
        let tried_it = tried_it && shared.affinity.is_some();
        let value = affinity::format_affinity_cookie(
            cookie,
            shared.affinity,
            served,
            tried_it,
            shared.is_tls,
        );
        if let Some(value) = value {
            headers.append(SET_COOKIE, value);
        }
    }
    for cookie in &shared.granted.cookies {
        headers.append(SET_COOKIE, cookie.clone());
    }
}

/// A response of the proxy itself.
fn answer(
    reply: OwnResponse,
    mut record: RequestRecord,
    shared: &ResponseContext,
) -> Response<ResponseBody> {
    let status = match reply.rejection.status() {
        // It would open a WebSocket.
        status if shared.is_extended_connect && status.is_success() => StatusCode::NOT_IMPLEMENTED,
        status => status,
    };
    record.status = Some(status);
    record.reason = Some(reply.rejection.reason());
    record.abandon_body();
    let is_http1 = record.client.protocol == HttpVersion::Http1;
    let policy = record.route.as_ref().map(|known| &*known.route.policy);
    let (mut headers, body) = reply.into_parts(status, is_http1, policy);
    shared.complete(&record, status, &mut headers);
    if !body.is_empty() {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    finish(status, headers, ResponseBody::own(body, record))
}

fn finish(status: StatusCode, headers: HeaderMap, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The future of a request is moved as a whole several times, so each octet costs all requests. What few requests
    /// need is boxed.
    #[test]
    fn the_future_of_a_request_is_small() {
        fn size_of_output<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
            size_of::<F>()
        }
        let size = size_of_output(serve_request);
        assert!(size <= 4608, "{size} octets");
    }
}
