//! The operations on objects, as a real API server performs them. The same for all kinds.
//!
//! Independent of HTTP: takes a `ApiRequest`, returns an `OperationResult`, a stream or a `Failure`.

mod admission;
mod allocations;
mod change;
mod create;
mod delete;
mod go;
pub mod list;
mod metadata;
pub mod options;
mod patch;
pub mod render;
pub mod selectors;
mod update;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde_json::Value;

use allocations::AllocationLedger;
use options::QueryParameters;

use super::codec::{self, BodyFormat};
use super::failure::ApiFailure;
use super::kinds::{self, AllocationRanges, ApiKind, KindRegistry, Subresource};
use super::storage::{Storage, StoredObject, Transaction, WriteError};

pub(super) use delete::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
pub use watch::ObjectWatch;

/// The objects and all operations on them. Clones share all state.
#[derive(Clone)]
pub struct Api {
    storage: Storage,
    kinds: KindRegistry,
    ledger: Arc<Mutex<AllocationLedger>>,
}

/// The kind, object or objects that a request is for.
#[derive(Clone)]
pub struct RequestTarget {
    pub kind: &'static ApiKind,
    /// `None`: all namespaces, or a kind without namespaces.
    pub namespace: Option<String>,
    /// `None`: all objects.
    pub name: Option<String>,
    pub subresource: Subresource,
    /// Labels, annotations, owners and finalizers stay as they are: the client may write the status only.
    pub keeps_metadata: bool,
}

#[derive(Clone)]
pub struct ApiRequest {
    pub target: RequestTarget,
    pub query: QueryParameters,
    pub user_agent: String,
    pub content_type: String,
    pub body: bytes::Bytes,
}

impl ApiRequest {
    /// A request of a component of this server about a stored object.
    pub fn about(
        object: &Value,
        kind: &'static ApiKind,
        component: &str,
        content_type: &str,
        body: &Value,
    ) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        Self {
            target: RequestTarget {
                kind,
                namespace: text("namespace"),
                name: text("name"),
                subresource: Subresource::None,
                keeps_metadata: false,
            },
            query: QueryParameters::default(),
            user_agent: component.to_owned(),
            content_type: content_type.to_owned(),
            body: body.to_string().into(),
        }
    }
}

/// The response: an object, a list or a Status.
#[derive(Debug)]
pub struct OperationResult {
    pub code: u16,
    pub value: Value,
    pub warnings: Vec<String>,
}

impl OperationResult {
    fn ok(value: Value) -> Self {
        Self { code: 200, value, warnings: Vec::new() }
    }
}

impl Api {
    pub fn new(storage: Storage, kinds: KindRegistry, ranges: AllocationRanges) -> Result<Self> {
        let ledger = AllocationLedger::of_stored(&storage, ranges)?;
        Ok(Self { storage, kinds, ledger: Arc::new(Mutex::new(ledger)) })
    }

    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    pub fn kinds(&self) -> &KindRegistry {
        &self.kinds
    }

    /// Runs a write on the storage. Its own failures become internal errors.
    async fn write<T, F>(&self, operation: F) -> Result<T, ApiFailure>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>, &mut AllocationLedger) -> Result<T, ApiFailure>
            + Send
            + 'static,
    {
        let ledger = Arc::clone(&self.ledger);
        let written = self.storage.write(move |transaction| {
            let mut ledger = lock(&ledger);
            ledger.reload_after_failures(transaction);
            operation(transaction, &mut ledger)
        });
        written.await.map_err(|error| match error {
            WriteError::Disk { is_full: true, .. } => ApiFailure::new(507, "", error.to_string()),
            error => ApiFailure::internal(error),
        })?
    }
}

/// The ledger may be poisoned: it is changed only after everything that can fail.
fn lock(ledger: &Mutex<AllocationLedger>) -> MutexGuard<'_, AllocationLedger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for RequestTarget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Target")
            .field("kind", &self.kind.kind)
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("subresource", &self.subresource)
            .finish()
    }
}

impl RequestTarget {
    /// The name in the path. Fails if there is none.
    fn name(&self) -> Result<&str, ApiFailure> {
        self.name.as_deref().ok_or_else(ApiFailure::method_not_allowed)
    }

    fn key(&self) -> Result<String, ApiFailure> {
        Ok(storage_key(self.kind, self.namespace.as_deref(), self.name()?))
    }

    fn prefix(&self) -> String {
        storage_prefix(self.kind, self.namespace.as_deref())
    }
}

impl ApiRequest {
    fn format(&self) -> Result<BodyFormat, ApiFailure> {
        parse_content_type(&self.content_type)
    }

    /// The body as an object of the target's kind, and warnings about it.
    fn object(
        &self,
        validation: codec::FieldValidation,
    ) -> Result<(Value, Vec<String>), ApiFailure> {
        let format = self.format()?;
        if format == BodyFormat::Protobuf && self.target.kind.declared.is_some() {
            // Declared kinds have no field numbers.
            return Err(unsupported(&self.content_type, &SUPPORTED[..2]));
        }
        let decoded = codec::decode_object(self.target.kind, format, &self.body)?;
        let warnings = report_oddities(decoded.oddities, validation, |message| {
            codec::refuse_body(self.target.kind, message)
        })?;
        Ok((decoded.value, warnings))
    }
}

/// The format of a body with this content type.
pub(crate) fn parse_content_type(content_type: &str) -> Result<BodyFormat, ApiFailure> {
    BodyFormat::of_content_type(content_type).ok_or_else(|| unsupported(content_type, &SUPPORTED))
}

const SUPPORTED: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

fn unsupported(content_type: &str, supported: &[&str]) -> ApiFailure {
    ApiFailure::new(
        415,
        "UnsupportedMediaType",
        format!(
            "the body of the request was in an unknown format ({content_type:?}) - accepted media \
             types include: {}",
            supported.join(", ")
        ),
    )
}

/// Oddities become warnings, a failure, or nothing, as the client requests.
fn report_oddities(
    oddities: Vec<String>,
    validation: codec::FieldValidation,
    failure: impl FnOnce(&str) -> ApiFailure,
) -> Result<Vec<String>, ApiFailure> {
    match validation {
        codec::FieldValidation::Ignore => Ok(Vec::new()),
        codec::FieldValidation::Warn => Ok(oddities),
        codec::FieldValidation::Strict if oddities.is_empty() => Ok(oddities),
        codec::FieldValidation::Strict => {
            Err(failure(&format!("strict decoding error: {}", oddities.join(", "))))
        }
    }
}

/// The kind that objects of `kind` are stored as.
fn stored_kind(kind: &'static ApiKind) -> &'static ApiKind {
    kind.rules.stored_as().unwrap_or(kind)
}

pub(super) fn storage_prefix(kind: &'static ApiKind, namespace: Option<&str>) -> String {
    let stored = stored_kind(kind);
    let resource = match stored.group {
        "" => stored.plural.to_owned(),
        group => format!("{}.{group}", stored.plural),
    };
    match namespace {
        Some(namespace) => format!("{resource}/{namespace}/"),
        None => format!("{resource}/"),
    }
}

/// Where an object is in the store.
pub fn storage_key(kind: &'static ApiKind, namespace: Option<&str>, name: &str) -> String {
    format!("{}{name}", storage_prefix(kind, namespace))
}

/// A stored object in the form of `kind`.
fn shown(kind: &ApiKind, stored: &StoredObject) -> Value {
    match kind.rules.stored_as() {
        None => stored.object(),
        Some(_) => kind.rules.as_shown(&stored.object()),
    }
}

/// A kind of the core group. Namespaces and Services always exist.
fn core(name: &str) -> Result<&'static ApiKind, ApiFailure> {
    kinds::find_kind("v1", name)
        .ok_or_else(|| ApiFailure::internal(format!("the kind {name} is missing")))
}

fn metadata_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}
