//! Deletes one object or many. An object with finalizers is only marked, and deleted when its last
//! finalizer is removed (`Change::update`).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::allocations::Ledger;
use super::change::{Change, check_read};
use super::options::{DeleteOptions, Propagation};
use super::selectors::Selector;
use super::{Api, Outcome, Request, Target, key, list, metadata, shown, text, unsupported};
use crate::codec::{self, Format};
use crate::failure::Failure;
use crate::first::NAMESPACES;
use crate::kinds::Subresource;
use crate::storage::{Stored, Transaction};

/// Finalizer: waits for the dependents that block the deletion of their owner.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer: waits until no dependent refers to the owner.
pub(crate) const ORPHAN: &str = "orphan";

impl Api {
    pub async fn delete(&self, request: Request) -> Result<Outcome, Failure> {
        if request.target.subresource != Subresource::None {
            return Err(Failure::method_not_allowed());
        }
        let options = options(&request)?;
        let target = request.target;
        self.write(move |transaction, ledger| {
            let key = target.key()?;
            let stored = transaction
                .get(&key)
                .ok_or_else(|| Failure::not_found(target.kind, target.name().unwrap_or("")))?;
            let revision = options.resource_version.as_deref();
            check_read(&target, &stored, revision, options.uid.as_deref())?;
            let (object, gone) = delete(transaction, ledger, &target, &key, &stored, &options)?;
            let value = if gone && !target.kind.rules.returns_deleted() {
                success(&target, &object)
            } else {
                object
            };
            Ok(Outcome::ok(value))
        })
        .await
    }

    /// Responds with the list of objects that were deleted or marked.
    pub async fn delete_collection(&self, request: Request) -> Result<Outcome, Failure> {
        let options = options(&request)?;
        let selector = Selector::parse(
            request.target.kind,
            request.query.text("labelSelector"),
            request.query.text("fieldSelector"),
        )?;
        let target = request.target;
        self.write(move |transaction, ledger| {
            let mut items = Vec::new();
            for (key, stored) in transaction.list(&target.prefix()) {
                if !selector.matches_stored(target.kind, &stored) {
                    continue;
                }
                items.push(delete(transaction, ledger, &target, &key, &stored, &options)?.0);
            }
            let revision = transaction.revision();
            Ok(Outcome::ok(list::list_of(target.kind, items, json!({}), revision)))
        })
        .await
    }
}

fn options(request: &Request) -> Result<DeleteOptions, Failure> {
    let format = match request.content_type.as_str() {
        // Some clients send a useless content type without a body.
        _ if request.body.is_empty() => Format::Json,
        content_type => {
            Format::of(content_type).ok_or_else(|| unsupported(content_type, &super::SUPPORTED))?
        }
    };
    let body = codec::delete_options(format, &request.body)?;
    DeleteOptions::parse(&request.query, &body)
}

/// Returns the object in its current or last state, and whether it is gone.
fn delete(
    transaction: &mut Transaction<'_>,
    ledger: &mut Ledger,
    target: &Target,
    key: &str,
    stored: &Stored,
    options: &DeleteOptions,
) -> Result<(Value, bool), Failure> {
    let kind = target.kind;
    let mut object = shown(kind, stored);
    if kind.kind == "Namespace" && NAMESPACES.contains(&text(&object, "name")) {
        let why = "this namespace may not be deleted";
        return Err(Failure::forbidden(kind, text(&object, "name"), why));
    }
    let now = Timestamp::now();
    let old_finalizers = object["metadata"]["finalizers"].clone();
    if let Some(policy) = options.propagation {
        set_policy(&mut object, policy);
    }
    let dry_run = options.dry_run;
    if metadata::is_free_to_go(&object) {
        let keeps_metadata = false;
        let change = Change { transaction, ledger, kind, key, dry_run, keeps_metadata, now };
        return Ok((change.remove(object)?, true));
    }
    if metadata::is_being_deleted(&object) {
        if object["metadata"]["finalizers"] == old_finalizers {
            return Ok((object, false));
        }
    } else {
        metadata::mark_deleted(&mut object, now);
        if let Some(generation) = object["metadata"]["generation"].as_i64() {
            object["metadata"]["generation"] = (generation + 1).into();
        }
        if kind.kind == "Namespace" {
            object["status"]["phase"] = "Terminating".into();
        }
    }
    if dry_run {
        return Ok((object, false));
    }
    let object = match kind.rules.stored_as() {
        None => object,
        Some(_) => kind.rules.to_stored(&object),
    };
    Ok((shown(kind, &transaction.put(key, object)), false))
}

/// Replaces what an earlier request decided about the dependents. Validation forbids both finalizers
/// in one object.
fn set_policy(object: &mut Value, policy: Propagation) {
    let fields = metadata::fields(object);
    let finalizers = fields.entry("finalizers").or_insert_with(|| json!([]));
    let Value::Array(finalizers) = finalizers else { return };
    let wanted = match policy {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let is_policy = |one: &Value| one == FOREGROUND || one == ORPHAN;
    finalizers.retain(|one| !is_policy(one) || wanted.is_some_and(|wanted| one == wanted));
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|one| one == wanted)
    {
        finalizers.push(wanted.into());
    }
    if finalizers.is_empty() {
        fields.remove("finalizers");
    }
}

fn success(target: &Target, object: &Value) -> Value {
    let mut details = json!({"name": text(object, "name"), "kind": target.kind.plural, "uid": text(object, "uid")});
    if !target.kind.group.is_empty() {
        details["group"] = target.kind.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

impl Api {
    /// Removes a finalizer, which deletes the object if it was the last one of a marked object.
    /// Does nothing if the object or the finalizer is gone, or `is_done` is false for the objects
    /// at the time of the write.
    pub(crate) async fn remove_finalizer(
        &self,
        target: Target,
        finalizer: &'static str,
        is_done: impl FnOnce(&Transaction<'_>) -> bool + Send + 'static,
    ) -> Result<(), Failure> {
        self.write(move |transaction, ledger| {
            let key = key(target.kind, target.namespace.as_deref(), target.name()?);
            let Some(stored) = transaction.get(&key) else {
                return Ok(());
            };
            if !is_done(transaction) {
                return Ok(());
            }
            let old = stored.object();
            let mut object = old.clone();
            for list in ["/metadata/finalizers", "/spec/finalizers"] {
                if let Some(Value::Array(finalizers)) = object.pointer_mut(list) {
                    finalizers.retain(|one| one != finalizer);
                }
            }
            if object == old {
                return Ok(());
            }
            if metadata::is_being_deleted(&object) && metadata::is_free_to_go(&object) {
                let (kind, now) = (target.kind, Timestamp::now());
                let (dry_run, keeps_metadata, key) = (false, false, &*key);
                let change =
                    Change { transaction, ledger, kind, key, dry_run, keeps_metadata, now };
                change.remove(object)?;
            } else {
                transaction.put(&key, object);
            }
            Ok(())
        })
        .await
    }
}
