//! Turns a request into its response.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, USER_AGENT};
use hyper::{HeaderMap, Method, Request, Response};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connection::Limits;
use super::path::Path;
use super::respond::{self, Body};
use super::{discovery, openapi};
use crate::failure::Failure;
use crate::operations::options::Query;
use crate::operations::render::Shape;
use crate::operations::{self, Answer, Api, Target, Watch};

/// Clones share all state.
#[derive(Clone)]
pub struct Service {
    api: Api,
    limits: Limits,
    requests: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

/// What determines the form of the response.
struct Wishes {
    query: Query,
    accept: String,
    pretty: bool,
}

impl Service {
    pub fn new(api: Api, limits: Limits) -> Self {
        Self {
            api,
            limits,
            requests: Arc::new(Semaphore::new(limits.requests)),
            watches: Arc::new(Semaphore::new(limits.watches)),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let pretty = match query.flag("pretty") {
            Ok(Some(pretty)) => pretty,
            // These clients' output is read by people.
            _ => ["curl/", "Wget/", "Mozilla/"]
                .iter()
                .any(|program| header(request.headers(), USER_AGENT).starts_with(program)),
        };
        let accept = header(request.headers(), ACCEPT).to_owned();
        let wishes = Wishes { query, accept, pretty };
        let answered = self.try_answer(request, &wishes).await;
        answered.unwrap_or_else(|failure| respond::failure(&failure, pretty))
    }

    async fn try_answer(
        &self,
        request: Request<Incoming>,
        wishes: &Wishes,
    ) -> Result<Response<Body>, Failure> {
        let path = Path::parse(request.uri().path()).ok_or_else(Failure::no_such_path)?;
        if let Path::Objects { target, watch } = path {
            return self.objects(request, target, watch, wishes).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Failure::method_not_allowed());
        }
        let json = |value| Ok(respond::json(200, &value, wishes.pretty));
        match path {
            Path::Version => json(discovery::version()),
            Path::Health => Ok(respond::full(200, "text/plain; charset=utf-8", "ok")),
            Path::Empty(version, kind) => json(json!({
                "apiVersion": version, "kind": kind, "items": [],
                "metadata": {"resourceVersion": self.api.storage().revision().to_string()},
            })),
            Path::Index => json(discovery::index()),
            Path::CoreVersions | Path::Groups => {
                let core = matches!(path, Path::CoreVersions);
                Ok(discovery::groups(core, &wishes.accept, wishes.pretty))
            }
            Path::Group(group) => json(discovery::group(&group).ok_or_else(Failure::no_such_path)?),
            Path::Resources { group, version } => {
                let resources = discovery::resources(&group, &version);
                json(resources.ok_or_else(Failure::no_such_path)?)
            }
            Path::OpenApi2 => Ok(openapi::v2(request.headers())),
            Path::OpenApi3 => json(openapi::v3_index()),
            Path::OpenApi3Of { group, version } => {
                let document = openapi::v3(&group, &version, request.headers());
                document.ok_or_else(Failure::no_such_path)
            }
            Path::Objects { .. } => Err(Failure::no_such_path()),
        }
    }

    async fn objects(
        &self,
        request: Request<Incoming>,
        target: Target,
        watch: bool,
        wishes: &Wishes,
    ) -> Result<Response<Body>, Failure> {
        let shape = Shape::negotiate(&wishes.accept, &wishes.query)?;
        let method = request.method().clone();
        let reads = matches!(method, Method::GET | Method::HEAD);
        let watches = wishes.query.flag("watch")?.unwrap_or_default();
        // A single object can be watched only through the deprecated path.
        let watch = watch || (watches && target.name.is_none());
        let user_agent = header(request.headers(), USER_AGENT).to_owned();
        let content_type = header(request.headers(), CONTENT_TYPE).to_owned();
        if watch {
            if !reads {
                return Err(Failure::method_not_allowed());
            }
            let place = place(&self.watches)?;
            let kind = target.kind;
            let request = operations::Request {
                target,
                query: wishes.query.clone(),
                user_agent,
                content_type,
                body: Bytes::new(),
            };
            let watch = self.api.watch(&request)?;
            return Ok(stream_of(watch, kind, shape, place));
        }
        let _place = place(&self.requests)?;
        let body = if reads { Bytes::new() } else { self.body(request.into_body()).await? };
        let kind = target.kind;
        let named = target.name.is_some();
        let query = wishes.query.clone();
        let request = operations::Request { target, query, user_agent, content_type, body };
        let answer = match (&method, named) {
            (&Method::GET | &Method::HEAD, true) => self.api.get(&request),
            (&Method::GET | &Method::HEAD, false) => self.api.list(&request),
            (&Method::POST, _) => self.api.create(request).await,
            (&Method::PUT, true) => self.api.update(request).await,
            (&Method::PATCH, true) => self.api.patch(request).await,
            (&Method::DELETE, true) => self.api.delete(request).await,
            (&Method::DELETE, false) => self.api.delete_collection(request).await,
            _ => Err(Failure::method_not_allowed()),
        };
        let Answer { code, value, warnings } = answer?;
        let value = shape.render(kind, value, Timestamp::now());
        let mut response = respond::json(code, &value, wishes.pretty);
        respond::warn(&mut response, &warnings);
        Ok(response)
    }

    async fn body(&self, body: Incoming) -> Result<Bytes, Failure> {
        let limited = Limited::new(body, self.limits.body);
        match timeout(self.limits.patience, limited.collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let message = format!("Request entity too large: limit is {}", self.limits.body);
                Err(Failure::new(413, "RequestEntityTooLarge", message))
            }
            Ok(Err(error)) => {
                Err(Failure::bad_request(format!("the body of the request broke off: {error}")))
            }
            Err(_) => {
                let message = "the body of the request did not arrive in time";
                Err(Failure::new(408, "Timeout", message))
            }
        }
    }
}

/// Takes a permit. Without a free one the request fails with 429 instead of waiting.
fn place(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let message = "the server has received too many requests and has asked us to try again \
                       later";
        Failure::new(429, "TooManyRequests", message).retry_after(1)
    })
}

fn header(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The events of a watch, one per line. An event is produced only when the client is ready to take
/// it.
fn stream_of(
    watch: Watch,
    kind: &'static crate::kinds::Kind,
    shape: Shape,
    place: OwnedSemaphorePermit,
) -> Response<Body> {
    let lines = stream::unfold((watch, place, true), move |(mut watch, place, first)| async move {
        let event = watch.next().await?;
        let object = shape.render_event(kind, event.type_, event.object, first);
        let mut line = json!({"type": event.type_, "object": object}).to_string();
        line.push('\n');
        let frame = Ok(Frame::data(Bytes::from(line)));
        Some((frame, (watch, place, false)))
    });
    let mut response = respond::full(200, respond::JSON, Bytes::new());
    *response.body_mut() = StreamBody::new(lines).boxed_unsync();
    response
}
