//! Reads one object or many.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::options::{self, QueryParameters};
use super::selectors::ObjectSelector;
use super::{Api, ApiRequest, OperationResult, shown, storage_key};
use crate::failure::ApiFailure;
use crate::kinds::{ApiKind, Violation};
use crate::storage::{RevisionGone, StorageKey, StoredObject};

/// Where a paginated list continues.
#[derive(Debug, Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    /// -1: the current state, not the one in which the list started.
    rv: i64,
    /// The last key, without the list's prefix.
    start: String,
    /// Objects behind the page, so that no page counts them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<usize>,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";

/// The objects of a list, not copied yet.
pub struct ObjectListing {
    kind: &'static ApiKind,
    items: VecDeque<Arc<StoredObject>>,
    metadata: Value,
    revision: u64,
}

impl ObjectListing {
    /// The list without its items.
    pub(crate) fn empty_list(&self) -> Value {
        build_list(self.kind, Vec::new(), self.metadata.clone(), self.revision)
    }

    /// Copies of the next items, of about this many bytes together, as they are in a list. Empty at
    /// the end.
    pub(crate) fn take_items(&mut self, bytes: usize) -> Vec<Value> {
        let (mut items, mut size) = (Vec::new(), 0);
        while size < bytes
            && let Some(stored) = self.items.pop_front()
        {
            size += stored.text().len();
            items.push(item(self.kind, shown(self.kind, &stored)));
        }
        items
    }

    /// The text of the next items, with commas between them, of about this many bytes. Empty at the
    /// end.
    pub(crate) fn take_items_text(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes
            && let Some(stored) = self.items.pop_front()
        {
            if !text.is_empty() {
                text.push(',');
            }
            write_item(&mut text, self.kind, &stored);
        }
        text
    }

    pub(crate) fn into_value(mut self) -> Value {
        let items = self.take_items(usize::MAX);
        build_list(self.kind, items, self.metadata, self.revision)
    }
}

impl Api {
    pub fn get(&self, request: &ApiRequest) -> Result<OperationResult, ApiFailure> {
        let target = &request.target;
        let name = target.name()?;
        if let Some(revision) = read_revision(&request.query)? {
            self.check_reached(revision)?;
        }
        let stored = self.storage.get(&storage_key(target.kind, target.namespace.as_deref(), name));
        let stored = stored.ok_or_else(|| ApiFailure::not_found(target.kind, name))?;
        Ok(OperationResult::ok(shown(target.kind, &stored)))
    }

    pub fn list(&self, request: &ApiRequest) -> Result<ObjectListing, ApiFailure> {
        let (target, query) = (&request.target, &request.query);
        let selector = ObjectSelector::parse(
            target.kind,
            query.first_value("labelSelector"),
            query.first_value("fieldSelector"),
        )?;
        // Lists have no use for it, but a client that sends nonsense must learn so.
        query.parse_number("timeoutSeconds")?;
        let limit = query.parse_number("limit")?.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.filter(|limit| *limit > 0);
        let prefix = target.prefix();
        let begin = self.begin(query, &prefix, limit.is_some())?;

        let at_once = match limit {
            None => usize::MAX,
            // One more shows whether there are others.
            Some(limit) if selector.is_empty() => limit.saturating_add(1),
            Some(limit) => limit.saturating_add(1).max(SELECTED_AT_ONCE),
        };
        let mut items = VecDeque::new();
        let (mut after, mut revision) = (begin.after.clone(), begin.revision);
        let mut last: Option<StorageKey> = None;
        let mut has_more = false;
        while !has_more {
            let page = self.storage.list(&prefix, after.as_deref(), revision, at_once);
            let page = page.map_err(|gone| begin.gone(gone))?;
            revision = Some(page.revision);
            after = page.objects.last().map(|(key, _)| key.to_string());
            let is_last = page.objects.len() < at_once;
            for (key, stored) in page.objects {
                if !selector.matches_stored(target.kind, &stored) {
                    continue;
                }
                if limit == Some(items.len()) {
                    has_more = true;
                    break;
                }
                items.push_back(stored);
                last = Some(key);
            }
            if is_last {
                break;
            }
        }
        let revision = revision.unwrap_or_default();
        let mut metadata = json!({});
        if let Some(last) = last.filter(|_| has_more) {
            let start = last.strip_prefix(&prefix).unwrap_or(&last);
            let left = if selector.is_empty() {
                let left = match begin.left.and_then(|left| left.checked_sub(items.len())) {
                    Some(left) => Ok(left),
                    None => self.storage.count_of(&prefix, Some(&last), Some(revision)),
                };
                Some(left.map_err(|gone| begin.gone(gone))?)
            } else {
                None
            };
            if let Some(left) = left {
                metadata["remainingItemCount"] = left.into();
            }
            metadata["continue"] = continue_token(revision, start, left).into();
        }
        Ok(ObjectListing { kind: target.kind, items, metadata, revision })
    }

    /// Where a list starts or continues.
    fn begin(
        &self,
        query: &QueryParameters,
        prefix: &str,
        limited: bool,
    ) -> Result<ListStart, ApiFailure> {
        let token = query.first_value("continue");
        let wanted = snapshot(query, limited)?;
        if token.is_empty() {
            let revision = match wanted {
                ListSnapshot::Any => None,
                ListSnapshot::NotOlderThan(revision) => {
                    self.check_reached(revision)?;
                    None
                }
                ListSnapshot::Exact(revision) => {
                    self.check_reached(revision)?;
                    Some(revision)
                }
            };
            return Ok(ListStart { after: None, revision, continued: None, left: None });
        }
        let resume: ContinueToken = URL_SAFE_NO_PAD
            .decode(token)
            .ok()
            .and_then(|token| serde_json::from_slice(&token).ok())
            .filter(|resume: &ContinueToken| resume.v == CONTINUE_VERSION)
            .ok_or_else(|| {
                let why = "continue key is not valid: it is not one of this server";
                ApiFailure::bad_request(format!("invalid continue token: {why}"))
            })?;
        let after = format!("{prefix}{}", resume.start);
        let revision = u64::try_from(resume.rv).ok();
        if let Some(revision) = revision {
            self.check_reached(revision)?;
        }
        let left = resume.left.filter(|_| revision.is_some());
        Ok(ListStart { after: Some(after), revision, continued: Some(resume.start), left })
    }

    /// Later revisions are not waited for: they come from another server.
    pub(super) fn check_reached(&self, revision: u64) -> Result<(), ApiFailure> {
        let current = self.storage.revision();
        if revision <= current {
            return Ok(());
        }
        let message =
            format!("Timeout: Too large resource version: {revision}, current: {current}");
        let mut failure = ApiFailure::new(504, "Timeout", message);
        failure.details = Some(json!({"causes": [{
            "reason": "ResourceVersionTooLarge", "message": "Too large resource version"
        }]}));
        Err(failure.retry_after(1))
    }
}

/// Objects that are looked at together for a page of selected ones.
const SELECTED_AT_ONCE: usize = 1_000;

struct ListStart {
    /// The last key of the page before.
    after: Option<String>,
    /// `None`: the latest.
    revision: Option<u64>,
    /// The key in the continue token, with which the page before ended; `None`: a first page.
    continued: Option<String>,
    /// Objects behind the page before, if they are of the same revision.
    left: Option<usize>,
}

impl ListStart {
    /// The failure if the revision has left the window.
    fn gone(&self, gone: RevisionGone) -> ApiFailure {
        match &self.continued {
            None => refuse_old_revision(self.revision.unwrap_or(0), gone),
            Some(start) => {
                let mut failure = ApiFailure::expired(CONTINUE_EXPIRED);
                failure.continue_token = Some(encode(-1, start, None));
                failure
            }
        }
    }
}

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a \
    consistent list result. You can start a new list without the continue parameter, or use the \
    continue token in this response to retrieve the remainder of the results. Continuing with the \
    provided token results in an inconsistent list - objects that were created, modified, or \
    deleted between the time the first chunk was returned and now may show up in the list.";

pub(super) fn refuse_old_revision(revision: u64, gone: RevisionGone) -> ApiFailure {
    ApiFailure::expired(format!("too old resource version: {revision} ({})", gone.oldest))
}

enum ListSnapshot {
    Any,
    NotOlderThan(u64),
    Exact(u64),
}

fn snapshot(query: &QueryParameters, limited: bool) -> Result<ListSnapshot, ApiFailure> {
    options::check_list_options(query)?;
    // Other requests fail with 422.
    let revision = parse_revision(query)
        .map_err(|why| ApiFailure::bad_request(format!("invalid resource version: {why}")))?;
    if !query.first_value("continue").is_empty() {
        if revision.is_some_and(|revision| revision != 0) {
            let detail = "specifying resource version is not allowed when using continue";
            return Err(ApiFailure::bad_request(detail));
        }
        return Ok(ListSnapshot::Any);
    }
    Ok(match (query.first_value("resourceVersionMatch"), revision) {
        (_, None | Some(0)) => ListSnapshot::Any,
        ("Exact", Some(revision)) => ListSnapshot::Exact(revision),
        // Default of all API servers.
        ("", Some(revision)) if limited => ListSnapshot::Exact(revision),
        (_, Some(revision)) => ListSnapshot::NotOlderThan(revision),
    })
}

/// The parameter `resourceVersion`, if any.
pub(super) fn read_revision(query: &QueryParameters) -> Result<Option<u64>, ApiFailure> {
    let revision = parse_revision(query);
    revision.map_err(|why| ApiFailure::invalid_of("meta.k8s.io", "ListOptions", "", &[why]))
}

fn parse_revision(query: &QueryParameters) -> Result<Option<u64>, Violation> {
    match query.first_value("resourceVersion") {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            let detail = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
            Violation::invalid("resourceVersion", text, &detail)
        }),
    }
}

fn continue_token(revision: u64, start: &str, left: Option<usize>) -> String {
    encode(i64::try_from(revision).unwrap_or(-1), start, left)
}

fn encode(rv: i64, start: &str, left: Option<usize>) -> String {
    let (v, start) = (CONTINUE_VERSION.to_owned(), start.to_owned());
    let token = serde_json::to_vec(&ContinueToken { v, rv, start, left });
    URL_SAFE_NO_PAD.encode(token.unwrap_or_default())
}

/// Appends the text of an item. Most objects are not read for that.
fn write_item(text: &mut String, kind: &ApiKind, stored: &StoredObject) {
    if kind.rules.stored_as().is_none() {
        if kind.declared.is_some() {
            text.push_str(stored.text());
            return;
        }
        // Fields are in alphabetical order.
        let type_ =
            format!("{{\"apiVersion\":\"{}\",\"kind\":\"{}\",", kind.api_version(), kind.kind);
        if let Some(fields) = stored.text().strip_prefix(&type_) {
            text.push('{');
            text.push_str(fields);
            return;
        }
    }
    text.push_str(&item(kind, shown(kind, stored)).to_string());
}

/// Items of declared kinds keep their type.
fn item(kind: &ApiKind, mut object: Value) -> Value {
    if kind.declared.is_none()
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

/// A list. It has `apiVersion` and `kind`, and its items have not.
pub(super) fn build_list(
    kind: &ApiKind,
    items: Vec<Value>,
    mut metadata: Value,
    revision: u64,
) -> Value {
    let items: Vec<Value> = items.into_iter().map(|one| item(kind, one)).collect();
    metadata["resourceVersion"] = revision.to_string().into();
    json!({
        "kind": format!("{}List", kind.kind),
        "apiVersion": kind.api_version(),
        "metadata": metadata,
        "items": items,
    })
}
