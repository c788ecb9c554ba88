//! What is known about a request, for the access log and metrics. Written when it is dropped, which is when the
//! request has ended, however that happened.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use http::header::{HOST, REFERER, USER_AGENT};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use jiff::Timestamp;
use lb_http::policy::AccessLog;
use lb_http::rate::Permit;

use super::trace::{RequestEnd, RequestTrace};
use crate::access_log::AccessLogEntry;
use crate::body::BodySource;
use crate::client::{ClientConnection, InFlight};
use crate::metrics::{OwnerCounters, UpstreamError};
use crate::routes::Known;

pub(crate) struct RequestRecord {
    pub client: Rc<ClientConnection>,
    pub address: IpAddr,
    pub started: Instant,
    pub route: Option<Rc<Known>>,
    /// `None`: the client has gone before there was a response.
    pub status: Option<StatusCode>,
    pub endpoint: Option<SocketAddr>,
    pub tries: u32,
    pub reason: Option<&'static str>,
    pub source: Option<Rc<BodySource>>,
    pub sent: u64,
    /// Octets that the client sent after an upgrade.
    pub tunnelled: u64,
    /// The response was complete.
    pub is_complete: bool,
    /// The client's request counts as one at the same time as others.
    pub permit: Option<Permit>,
    /// The client's request counts as one of its source.
    pub in_flight: Option<InFlight>,
    /// `None`: the client's context is passed on as it came, and nothing is recorded.
    pub trace: Option<Box<RequestTrace>>,
    method: Method,
    version: Version,
    logged: Option<Logged>,
}

/// Only for the access log.
struct Logged {
    host: Option<HeaderValue>,
    uri: Option<PathAndQuery>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
}

/// nginx's status for requests whose client has gone.
const CLIENT_CLOSED: u16 = 499;

impl RequestRecord {
    pub fn begin(client: &Rc<ClientConnection>, parts: &Parts, now: Instant) -> Self {
        client.begin_request();
        let worker = &client.worker;
        let header = |name| parts.headers.get(name).cloned();
        let logged = worker.logs().then(|| Logged {
            host: header(HOST).or_else(|| {
                let authority = parts.uri.authority()?;
                HeaderValue::from_str(authority.as_str()).ok()
            }),
            uri: parts.uri.path_and_query().cloned(),
            user_agent: header(USER_AGENT),
            referer: header(REFERER),
        });
        Self {
            client: client.clone(),
            address: client.source_ip(),
            started: now,
            route: None,
            status: None,
            endpoint: None,
            tries: 0,
            reason: None,
            source: None,
            sent: 0,
            tunnelled: 0,
            is_complete: false,
            permit: None,
            in_flight: None,
            trace: None,
            method: parts.method.clone(),
            version: parts.version,
            logged,
        }
    }

    fn counters(&self) -> &OwnerCounters {
        match &self.route {
            Some(known) => &known.counters,
            None => self.client.worker.no_owner(),
        }
    }

    pub fn failed(&self, error: UpstreamError) {
        self.counters().failed(error);
    }

    pub fn retried(&self) {
        self.counters().retried();
    }

    pub fn ejected(&self) {
        self.counters().ejected();
    }

    /// The query has secrets, which no log may have.
    pub fn forget_query(&mut self) {
        let Some(uri) = self.logged.as_mut().and_then(|logged| logged.uri.as_mut()) else { return };
        if uri.query().is_some() {
            *uri = uri.path().parse().unwrap_or(PathAndQuery::from_static("/"));
        }
    }

    /// The response does not depend on the rest of the request's body.
    pub fn abandon_body(&self) {
        if let Some(source) = &self.source {
            source.abandon();
        }
    }

    /// The request is sent to another server, on behalf of this one.
    pub fn insert_context(&self, headers: &mut HeaderMap) {
        if let Some(trace) = &self.trace {
            trace.insert_context(headers);
        }
    }

    /// The request is sent to an endpoint.
    pub fn begin_endpoint_span(&mut self, headers: &mut HeaderMap) {
        if let Some(trace) = &mut self.trace {
            trace.begin_endpoint_span(headers);
        }
    }

    fn write(&mut self, now: Instant) {
        let duration = now.saturating_duration_since(self.started);
        let body = self.source.as_ref().map_or(0, |source| source.received());
        let received = body + self.tunnelled;
        let status = self.status.map_or(CLIENT_CLOSED, |status| status.as_u16());
        let class = self.status.unwrap_or(StatusCode::BAD_REQUEST);
        self.counters().finished(class, duration, received, self.sent);
        let reason = match self.reason {
            None if !self.is_complete => Some("client_closed"),
            reason => reason,
        };
        if let Some(trace) = self.trace.take() {
            let &mut Self { started, sent, status, endpoint, tries, .. } = self;
            let end =
                RequestEnd { started, duration, received, sent, status, reason, endpoint, tries };
            self.client.worker.push_span(trace.end_span(&end));
        }
        let is_logged =
            self.route.as_ref().is_none_or(|known| known.route.policy.access_log == AccessLog::On);
        let Some(logged) = self.logged.take().filter(|_| is_logged) else { return };
        self.client.worker.log(AccessLogEntry {
            time: Timestamp::now() - duration,
            client: self.address,
            peer: self.client.peer,
            method: self.method.clone(),
            host: logged.host,
            uri: logged.uri,
            protocol: match self.version {
                Version::HTTP_10 => "HTTP/1.0",
                Version::HTTP_2 => "HTTP/2.0",
                _ => "HTTP/1.1",
            },
            tls: self.client.tls.is_some(),
            status,
            received,
            sent: self.sent,
            duration,
            route: self.route.as_ref().map(|known| known.route.clone()),
            endpoint: self.endpoint,
            tries: self.tries,
            reason,
            user_agent: logged.user_agent,
            referer: logged.referer,
        });
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let now = Instant::now();
        if let Some(source) = &self.source {
            source.end();
        }
        self.write(now);
        let cancelled = !self.is_complete && self.reason.is_none();
        self.client.end_request(cancelled, now);
    }
}
