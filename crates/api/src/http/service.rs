//! Turns a request into its response.

use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, USER_AGENT};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use super::identity::ClientIdentity;
use super::limits::ApiLimits;
use super::openapi::OpenApi;
use super::path::ApiPath;
use super::respond::{self, ResponseBody};
use super::reviews::AccessReview;
use super::roles::ClientRole;
use super::secrets::{self, SecretVisibility};
use super::shares::{UserShare, UserShares};
use super::turns::{ExpensivePermit, ExpensiveRequests};
use super::{discovery, health, listing, roles};
use crate::codec;
use crate::failure::ApiFailure;
use crate::kinds::{ApiKind, KindRegistry};
use crate::operations::options::QueryParameters;
use crate::operations::render::ResponseShape;
use crate::operations::{self, Api, ObjectWatch, OperationResult, RequestTarget};

/// Clones share all state.
#[derive(Clone)]
pub struct ApiService {
    api: Api,
    limits: ApiLimits,
    requests: UserShares,
    watches: UserShares,
    bodies: UserShares,
    turns: ExpensiveRequests,
    openapi: OpenApi,
}

/// A body from this size on is expensive.
const LARGE_BODY_BYTES: usize = 64 << 10;

/// What determines the form of the response.
struct ResponseForm {
    query: QueryParameters,
    accept: String,
    pretty: bool,
}

impl ApiService {
    pub fn new(api: Api, limits: ApiLimits) -> Self {
        Self {
            openapi: OpenApi::new(api.kinds().clone()),
            api,
            limits,
            requests: UserShares::new(limits.requests),
            watches: UserShares::new(limits.watches),
            bodies: UserShares::new(limits.bodies),
            turns: ExpensiveRequests::new(limits.turns),
        }
    }

    pub fn limits(&self) -> &ApiLimits {
        &self.limits
    }

    pub async fn respond(
        &self,
        request: Request<Incoming>,
        client: &ClientIdentity,
    ) -> Response<ResponseBody> {
        let query = QueryParameters::parse(request.uri().query().unwrap_or_default());
        let pretty = match query.parse_flag("pretty") {
            Ok(Some(pretty)) => pretty,
            // These clients' output is read by people.
            _ => ["curl/", "Wget/", "Mozilla/"]
                .iter()
                .any(|program| header(request.headers(), USER_AGENT).starts_with(program)),
        };
        let accept = header(request.headers(), ACCEPT).to_owned();
        let wishes = ResponseForm { query, accept, pretty };
        let response = match refuse_impersonation(request.headers(), client) {
            Ok(()) => self.try_respond(request, client, &wishes).await,
            Err(failure) => Err(failure),
        };
        response.unwrap_or_else(|failure| respond::respond_failure(&failure, pretty))
    }

    async fn try_respond(
        &self,
        request: Request<Incoming>,
        client: &ClientIdentity,
        wishes: &ResponseForm,
    ) -> Result<Response<ResponseBody>, ApiFailure> {
        let kinds = self.api.kinds();
        let path =
            ApiPath::parse(kinds, request.uri().path()).ok_or_else(ApiFailure::no_such_path)?;
        let path = match path {
            ApiPath::Objects { target, watch } => {
                let deprecation = target.kind.rules.deprecation();
                let response = self.objects(request, client, target, watch, wishes).await;
                let mut response = response
                    .unwrap_or_else(|failure| respond::respond_failure(&failure, wishes.pretty));
                if response.status() != StatusCode::METHOD_NOT_ALLOWED {
                    let warnings: Vec<String> =
                        deprecation.into_iter().map(str::to_owned).collect();
                    respond::add_warnings(&mut response, &warnings);
                }
                return Ok(response);
            }
            ApiPath::Review(review) => return self.review(request, client, review, wishes).await,
            path => path,
        };
        let verb = request.method().as_str().to_ascii_lowercase();
        let verb = if verb == "head" { "get" } else { verb.as_str() };
        if !client.role().is_some_and(|role| role.allows_path(verb, request.uri().path())) {
            let (user, path) = (&client.user, request.uri().path());
            let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
            return Err(ApiFailure::new(403, "Forbidden", message));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(ApiFailure::method_not_allowed());
        }
        let json = |value| Ok(respond::respond_json(200, &value, wishes.pretty));
        match path {
            ApiPath::Version => json(discovery::server_version()),
            ApiPath::Live => Ok(health::respond_live()),
            ApiPath::Ready => {
                let verbose = wishes.query.parse_flag("verbose")? == Some(true);
                Ok(health::respond_ready(self.api.storage(), verbose))
            }
            ApiPath::Metrics => Ok(health::respond_metrics(self.api.storage())),
            ApiPath::Backup => Ok(health::respond_backup(self.api.storage())),
            ApiPath::Empty(version, kind) => json(json!({
                "apiVersion": version, "kind": kind, "items": [],
                "metadata": {"resourceVersion": self.api.storage().revision().to_string()},
            })),
            ApiPath::Index => json(discovery::list_paths(kinds)),
            ApiPath::CoreVersions | ApiPath::Groups => {
                let core = matches!(path, ApiPath::CoreVersions);
                Ok(discovery::discover_groups(kinds, core, &wishes.accept, wishes.pretty))
            }
            ApiPath::Group(group) => json(
                discovery::discover_group(kinds, &group).ok_or_else(ApiFailure::no_such_path)?,
            ),
            ApiPath::Resources { group, version } => {
                let resources = discovery::discover_resources(kinds, &group, &version);
                json(resources.ok_or_else(ApiFailure::no_such_path)?)
            }
            ApiPath::OpenApi2 => Ok(self.openapi.v2(request.headers())),
            ApiPath::OpenApi3 => json(self.openapi.v3_index()),
            ApiPath::OpenApi3Of { group, version } => {
                let document = self.openapi.v3(&group, &version, request.headers());
                document.ok_or_else(ApiFailure::no_such_path)
            }
            ApiPath::Objects { .. } | ApiPath::Review(_) => Err(ApiFailure::no_such_path()),
        }
    }

    async fn objects(
        &self,
        request: Request<Incoming>,
        client: &ClientIdentity,
        target: RequestTarget,
        watch: bool,
        wishes: &ResponseForm,
    ) -> Result<Response<ResponseBody>, ApiFailure> {
        let mut target = target;
        let shape = ResponseShape::negotiate(&wishes.accept, &wishes.query)?;
        let method = request.method().clone();
        let reads = matches!(method, Method::GET | Method::HEAD);
        let watches = wishes.query.parse_flag("watch")?.unwrap_or_default();
        // A single object can be watched only through the deprecated path.
        let watch = watch || (watches && target.name.is_none());
        let verb = verb(&method, watch, target.name.is_some())
            .ok_or_else(ApiFailure::method_not_allowed)?;
        let role = authorize(self.api.kinds(), client, verb, &target)?;
        refuse_collection_write(verb, &target)?;
        target.keeps_metadata = !role.may_change(self.api.kinds(), &target);
        let mut query = wishes.query.clone();
        match secrets::decide_visibility(&self.api, role, &target, &query)? {
            SecretVisibility::All => {}
            SecretVisibility::Certificates if target.name.is_some() => {}
            SecretVisibility::Certificates => query.require_fields(secrets::TLS_FIELD_SELECTOR),
            SecretVisibility::Nothing => {
                let namespace = target.namespace.as_deref();
                let why = secrets::VISIBILITY_EXPLANATION;
                return Err(forbidden(client, verb, target.kind, namespace, why));
            }
        }
        let user_agent = header(request.headers(), USER_AGENT).to_owned();
        let content_type = header(request.headers(), CONTENT_TYPE).to_owned();
        if watch {
            if !reads {
                return Err(ApiFailure::method_not_allowed());
            }
            let share = take_share(&self.watches, client, "watches")?;
            let kind = target.kind;
            let request = operations::ApiRequest {
                target,
                query,
                user_agent,
                content_type,
                body: Bytes::new(),
            };
            let watch = self.api.watch(&request)?;
            return Ok(stream_of(watch, kind, shape, share));
        }
        let share = take_share(&self.requests, client, "requests")?;
        let headers = request.headers();
        let encoding = header(headers, CONTENT_ENCODING);
        if !matches!(encoding, "" | "identity") {
            let message = format!("the content encoding {encoding:?} of the body is not supported");
            return Err(ApiFailure::new(415, "UnsupportedMediaType", message));
        }
        let (body, held) = if reads {
            (Bytes::new(), None)
        } else {
            self.body(request.into_body(), client).await?
        };
        let kind = target.kind;
        let named = target.name.is_some();
        let is_list = reads && !named;
        let collection = method == Method::DELETE && !named;
        let turn = if is_list || collection || body.len() >= LARGE_BODY_BYTES {
            Some(self.turn(client).await?)
        } else {
            None
        };
        let request = operations::ApiRequest { target, query, user_agent, content_type, body };
        if is_list {
            let api = self.api.clone();
            let listed = spawn_blocking(move || api.list(&request)).await;
            let listed = listed.map_err(|_| ApiFailure::internal("the list failed"))??;
            let pretty = wishes.pretty;
            return listing::respond_with_list(listed, kind, shape, pretty, (share, turn)).await;
        }
        let response = match (&method, named) {
            (&Method::GET | &Method::HEAD, _) => self.api.get(&request),
            (&Method::POST, _) => self.api.create(request).await,
            (&Method::PUT, true) => self.api.update(request).await,
            (&Method::PATCH, true) => self.api.patch(request).await,
            (&Method::DELETE, true) => self.api.delete(request).await,
            (&Method::DELETE, false) => self.api.delete_collection(request).await,
            _ => Err(ApiFailure::method_not_allowed()),
        };
        drop(held);
        let OperationResult { code, value, warnings } = response?;
        let value = shape.render(kind, value, Timestamp::now());
        let mut response = respond::respond_json(code, &value, wishes.pretty);
        respond::add_warnings(&mut response, &warnings);
        Ok(response)
    }

    async fn review(
        &self,
        request: Request<Incoming>,
        client: &ClientIdentity,
        review: AccessReview,
        wishes: &ResponseForm,
    ) -> Result<Response<ResponseBody>, ApiFailure> {
        if request.method() != Method::POST {
            return Err(ApiFailure::method_not_allowed());
        }
        let _share = take_share(&self.requests, client, "requests")?;
        let content_type = header(request.headers(), CONTENT_TYPE).to_owned();
        let (body, _held) = self.body(request.into_body(), client).await?;
        let format = operations::parse_content_type(&content_type)?;
        let asked = codec::decode_definition(review.definition(), format, &body)?;
        let review = review.evaluate(self.api.kinds(), client, &asked, Timestamp::now());
        Ok(respond::respond_json(201, &review, wishes.pretty))
    }

    async fn turn(&self, client: &ClientIdentity) -> Result<ExpensivePermit, ApiFailure> {
        let turn = timeout(self.limits.patience, self.turns.acquire_permit(&client.user)).await;
        turn.ok().flatten().ok_or_else(|| too_many("large bodies and lists"))
    }

    /// Reads the body, and counts its bytes as they arrive.
    async fn body(
        &self,
        body: Incoming,
        client: &ClientIdentity,
    ) -> Result<(Bytes, Option<UserShare>), ApiFailure> {
        let limit = self.limits.body;
        if body.size_hint().lower() > limit as u64 {
            return Err(refuse_large_body(limit));
        }
        let mut held = self.bodies.empty_share(client);
        let read = async {
            let mut content = BytesMut::new();
            let mut body = body;
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    let why = format!("the body of the request ended early: {error}");
                    ApiFailure::bad_request(why)
                })?;
                let Ok(data) = frame.into_data() else { continue };
                if content.len() + data.len() > limit {
                    return Err(refuse_large_body(limit));
                }
                if !held.grow(data.len()) {
                    return Err(too_many("bytes of request bodies"));
                }
                content.extend_from_slice(&data);
            }
            Ok(content.freeze())
        };
        let content = timeout(self.limits.patience, read).await.map_err(|_| {
            let seconds = self.limits.patience.as_secs();
            let why = format!("the body of the request did not arrive within {seconds} seconds");
            ApiFailure::new(408, "Timeout", why)
        })??;
        Ok((content, Some(held)))
    }
}

/// As in a role. `None` if the method makes no sense here.
fn verb(method: &Method, watch: bool, named: bool) -> Option<&'static str> {
    Some(match (method, named) {
        (&Method::GET | &Method::HEAD, _) if watch => "watch",
        (&Method::GET | &Method::HEAD, true) => "get",
        (&Method::GET | &Method::HEAD, false) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, true) => "update",
        (&Method::PATCH, true) => "patch",
        (&Method::DELETE, true) => "delete",
        (&Method::DELETE, false) => "deletecollection",
        _ => return None,
    })
}

/// Objects are created and deleted in one namespace at a time: the path of all namespaces can only be read.
fn refuse_collection_write(verb: &str, target: &RequestTarget) -> Result<(), ApiFailure> {
    let in_all_namespaces = target.kind.namespaced && target.namespace.is_none();
    match verb {
        "create" | "deletecollection" if in_all_namespaces => match target.kind.declared {
            Some(_) => Err(ApiFailure::no_such_path()),
            None => Err(ApiFailure::method_not_allowed()),
        },
        "deletecollection" if !target.kind.rules.deletes_collections() => {
            Err(ApiFailure::method_not_allowed())
        }
        _ => Ok(()),
    }
}

/// Fails if the request is to be made in the name of another user (`kubectl --as`). Roles belong to
/// certificates, so the request of such a client would be allowed as its own, and do more than it
/// intends.
fn refuse_impersonation(headers: &HeaderMap, client: &ClientIdentity) -> Result<(), ApiFailure> {
    let Some(header) = headers.keys().find(|name| name.as_str().starts_with("impersonate-")) else {
        return Ok(());
    };
    let whom = headers.get("impersonate-user").and_then(|user| user.to_str().ok());
    let message = format!(
        "users {:?} is forbidden: User {:?} cannot impersonate: this server does not support \
         impersonation (header {:?}); use a certificate of the other user",
        whom.unwrap_or_default(),
        client.user,
        header.as_str(),
    );
    Err(ApiFailure::new(403, "Forbidden", message))
}

/// Fails if the client may not do this.
fn authorize(
    kinds: &KindRegistry,
    client: &ClientIdentity,
    verb: &str,
    target: &RequestTarget,
) -> Result<ClientRole, ApiFailure> {
    let resource = roles::name_resource(target);
    let role = client.role().filter(|role| {
        role.allows(kinds, verb, target.kind.group, &resource, target.namespace.as_deref())
    });
    role.ok_or_else(|| {
        let why = match client.role() {
            Some(role) => format!("role {}", role.name()),
            None => "no role".to_owned(),
        };
        forbidden(client, verb, target.kind, target.namespace.as_deref(), &why)
    })
}

fn forbidden(
    client: &ClientIdentity,
    verb: &str,
    kind: &ApiKind,
    namespace: Option<&str>,
    why: &str,
) -> ApiFailure {
    let place = match namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let what = format!(
        "User {:?} cannot {verb} resource {:?} in API group {:?} {place}: {why}",
        client.user, kind.plural, kind.group
    );
    ApiFailure::forbidden(kind, "", &what)
}

fn refuse_large_body(limit: usize) -> ApiFailure {
    let message = format!("Request entity too large: limit is {limit}");
    ApiFailure::new(413, "RequestEntityTooLarge", message)
}

fn too_many(what: &str) -> ApiFailure {
    let message = format!(
        "the server has received too many requests and has asked us to try again later: too many \
         {what} at the same time"
    );
    ApiFailure::new(429, "TooManyRequests", message).retry_after(1)
}

/// Takes a share. Without a free one the request fails with 429 instead of waiting.
fn take_share(
    shares: &UserShares,
    client: &ClientIdentity,
    what: &str,
) -> Result<UserShare, ApiFailure> {
    shares.take_one(client).ok_or_else(|| too_many(what))
}

fn header(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A watch that is being sent.
struct WatchStream {
    watch: ObjectWatch,
    /// Held as long as the watch lasts.
    #[expect(dead_code, reason = "returns the share when it is dropped")]
    share: UserShare,
    is_first: bool,
    /// Octets since other tasks last had a turn.
    sent: usize,
}

/// Octets that a watch sends before other connections have a turn.
const WATCH_CHUNK_BYTES: usize = 64 << 10;

/// The events of a watch, one per line. An event is produced only when the client is ready to take
/// it.
fn stream_of(
    watch: ObjectWatch,
    kind: &'static crate::kinds::ApiKind,
    shape: ResponseShape,
    share: UserShare,
) -> Response<ResponseBody> {
    let start = WatchStream { watch, share, is_first: true, sent: 0 };
    let events = stream::unfold(start, move |mut stream| async move {
        let event = stream.watch.next().await?;
        let line = shape.render_event(kind, event, stream.is_first);
        stream.is_first = false;
        stream.sent += line.len();
        if stream.sent > WATCH_CHUNK_BYTES {
            // The buffers of a socket take megabytes: other connections would wait for all of it.
            stream.sent = 0;
            yield_now().await;
        }
        Some((Ok(Frame::data(Bytes::from(line))), stream))
    });
    let mut response = respond::respond_full(200, respond::JSON_CONTENT_TYPE, Bytes::new());
    *response.body_mut() = StreamBody::new(events).boxed_unsync();
    response
}
