//! Responses of endpoints that are replaced by those of another Service, which learns by headers what happened.

use std::time::Instant;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use lb_http::policy::CustomErrors;
use lb_http::{Action, Route, RoutePolicy};

use super::forward::{Choice, Got, forward_request};
use super::outbound::Outbound;
use super::record::RequestRecord;
use crate::body::BodySource;

/// The facts about a request that are sent to the Service for error pages.
pub(crate) struct ErrorPageRequest<'a> {
    pub outbound: Outbound<'a>,
    pub matched_uri: PathAndQuery,
}

/// Gets the response that replaces one with this status. `None`: there is none, so the original is sent.
pub(crate) async fn fetch_error_page(
    errors: &CustomErrors,
    status: StatusCode,
    subject: ErrorPageRequest<'_>,
    route: &Route,
    record: &mut RequestRecord,
) -> Option<Got> {
    let now = Instant::now();
    let worker = record.client.worker.clone();
    let endpoints = worker.endpoints(&errors.upstream, now)?;
    let ErrorPageRequest { mut outbound, matched_uri } = subject;
    outbound.method = Method::GET;
    outbound.uri = PathAndQuery::from_static("/");
    outbound.upgrade = None;
    describe(&mut outbound.headers, status, &matched_uri, route);
    let source = BodySource::empty(now);
    let policy = RoutePolicy { timeouts: route.policy.timeouts, ..RoutePolicy::default() };
    let tries = (record.endpoint, record.tries);
    let got = forward_request(&endpoints, &policy, &outbound, &source, Choice::default(), record);
    let got = got.await.ok();
    // The log names the endpoint whose response was replaced.
    (record.endpoint, record.tries) = tries;
    got
}

fn describe(headers: &mut HeaderMap, status: StatusCode, uri: &PathAndQuery, route: &Route) {
    for name in [CONTENT_LENGTH, CONTENT_TYPE, EXPECT] {
        headers.remove(name);
    }
    let format = headers.get(ACCEPT).cloned();
    let mut set = |name: &'static str, value: Option<HeaderValue>| {
        if let Some(value) = value {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let text = |text: &str| HeaderValue::from_str(text).ok();
    set("x-code", text(status.as_str()));
    set("x-format", format);
    set("x-original-uri", text(uri.as_str()));
    set("x-namespace", text(&route.owner.namespace));
    set("x-ingress-name", text(&route.owner.name));
    if let Action::Forward(upstream) = &route.action {
        set("x-service-name", text(&upstream.service));
        set("x-service-port", text(&upstream.port));
    }
}

impl<'a> ErrorPageRequest<'a> {
    /// Only if the policy may need it.
    pub fn of(policy: &RoutePolicy, outbound: &Outbound<'a>, uri: &PathAndQuery) -> Option<Self> {
        policy.errors.as_ref()?;
        Some(Self { outbound: outbound.clone(), matched_uri: uri.clone() })
    }
}
