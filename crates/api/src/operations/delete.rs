//! Deletes one object or many. An object with finalizers is only marked, and deleted when its last
//! finalizer is removed (`Change::update`).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::allocations::AllocationLedger;
use super::change::ObjectWrite;
use super::options::{DeleteOptions, DeletionPropagation};
use super::selectors::ObjectSelector;
use super::{
    Api, ApiRequest, OperationResult, RequestTarget, list, metadata, metadata_text, shown,
    storage_key, unsupported,
};
use crate::codec::{self, BodyFormat};
use crate::failure::ApiFailure;
use crate::first::NAMESPACES;
use crate::kinds::Subresource;
use crate::storage::{StoredObject, Transaction};

/// Finalizer: waits for the dependents that block the deletion of their owner.
pub(crate) const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// Finalizer: waits until no dependent refers to the owner.
pub(crate) const ORPHAN_FINALIZER: &str = "orphan";

impl Api {
    pub async fn delete(&self, request: ApiRequest) -> Result<OperationResult, ApiFailure> {
        if request.target.subresource != Subresource::None {
            return Err(ApiFailure::method_not_allowed());
        }
        let options = options(&request)?;
        let target = request.target;
        self.write(move |transaction, ledger| {
            let key = target.key()?;
            let stored = transaction
                .get(&key)
                .ok_or_else(|| ApiFailure::not_found(target.kind, target.name().unwrap_or("")))?;
            check_delete_preconditions(&target, &stored, &options)?;
            let (object, gone) =
                delete_in_transaction(transaction, ledger, &target, &key, &stored, &options)?;
            let value = if gone && !target.kind.rules.returns_deleted() {
                success(&target, &object)
            } else {
                object
            };
            Ok(OperationResult::ok(value))
        })
        .await
    }

    /// Responds with the list of objects that were deleted or marked.
    pub async fn delete_collection(
        &self,
        request: ApiRequest,
    ) -> Result<OperationResult, ApiFailure> {
        let options = options(&request)?;
        let selector = ObjectSelector::parse(
            request.target.kind,
            request.query.first_value("labelSelector"),
            request.query.first_value("fieldSelector"),
        )?;
        let target = request.target;
        self.write(move |transaction, ledger| {
            let mut items = Vec::new();
            for (key, stored) in transaction.list(&target.prefix()) {
                if !selector.matches_stored(target.kind, &stored) {
                    continue;
                }
                items.push(
                    delete_in_transaction(transaction, ledger, &target, &key, &stored, &options)?.0,
                );
            }
            let revision = transaction.revision();
            Ok(OperationResult::ok(list::build_list(target.kind, items, json!({}), revision)))
        })
        .await
    }
}

fn options(request: &ApiRequest) -> Result<DeleteOptions, ApiFailure> {
    let format = match request.content_type.as_str() {
        // Some clients send a useless content type without a body.
        _ if request.body.is_empty() => BodyFormat::Json,
        content_type => BodyFormat::of_content_type(content_type)
            .ok_or_else(|| unsupported(content_type, &super::SUPPORTED))?,
    };
    let body = codec::decode_delete_options(format, &request.body)?;
    DeleteOptions::parse(&request.query, &body)
}

/// The object must still be the one that the client wants to delete.
fn check_delete_preconditions(
    target: &RequestTarget,
    stored: &StoredObject,
    options: &DeleteOptions,
) -> Result<(), ApiFailure> {
    let metadata = stored.metadata();
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let refuse = |field: &str, wanted: &str, actual: &str, since: &str| {
        let why = format!(
            "the {field} in the precondition ({wanted}) does not match the {field} in record \
             ({actual}). The object might have been {since}"
        );
        ApiFailure::conflict_of_kind(target.kind, text("name"), &why)
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != text("uid")) {
        return Err(refuse("UID", uid, text("uid"), "deleted and then recreated"));
    }
    let revision = stored.revision.to_string();
    match options.resource_version.as_deref().filter(|wanted| *wanted != revision) {
        Some(wanted) => Err(refuse("ResourceVersion", wanted, &revision, "modified")),
        None => Ok(()),
    }
}

/// Returns the object in its current or last state, and whether it is gone.
fn delete_in_transaction(
    transaction: &mut Transaction<'_>,
    ledger: &mut AllocationLedger,
    target: &RequestTarget,
    key: &str,
    stored: &StoredObject,
    options: &DeleteOptions,
) -> Result<(Value, bool), ApiFailure> {
    let kind = target.kind;
    let mut object = shown(kind, stored);
    if kind.kind == "Namespace" && NAMESPACES.contains(&metadata_text(&object, "name")) {
        let why = "this namespace may not be deleted";
        return Err(ApiFailure::forbidden(kind, metadata_text(&object, "name"), why));
    }
    let now = Timestamp::now();
    let old_finalizers = object["metadata"]["finalizers"].clone();
    if let Some(policy) = options.propagation {
        set_policy(&mut object, policy);
    }
    let dry_run = options.dry_run;
    if metadata::has_no_finalizers(&object) {
        let keeps_metadata = false;
        let change = ObjectWrite { transaction, ledger, kind, key, dry_run, keeps_metadata, now };
        return Ok((change.remove_object(object)?, true));
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
            metadata::metadata_mut(&mut object).remove("deletionGracePeriodSeconds");
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
fn set_policy(object: &mut Value, policy: DeletionPropagation) {
    let fields = metadata::metadata_mut(object);
    let finalizers = fields.entry("finalizers").or_insert_with(|| json!([]));
    let Value::Array(finalizers) = finalizers else { return };
    let wanted = match policy {
        DeletionPropagation::Background => None,
        DeletionPropagation::Foreground => Some(FOREGROUND_FINALIZER),
        DeletionPropagation::Orphan => Some(ORPHAN_FINALIZER),
    };
    let is_policy = |one: &Value| one == FOREGROUND_FINALIZER || one == ORPHAN_FINALIZER;
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

fn success(target: &RequestTarget, object: &Value) -> Value {
    let mut details = json!({"name": metadata_text(object, "name"), "kind": target.kind.plural, "uid": metadata_text(object, "uid")});
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
        target: RequestTarget,
        finalizer: &'static str,
        is_done: impl FnOnce(&Transaction<'_>) -> bool + Send + 'static,
    ) -> Result<(), ApiFailure> {
        self.write(move |transaction, ledger| {
            let key = storage_key(target.kind, target.namespace.as_deref(), target.name()?);
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
            if metadata::is_being_deleted(&object) && metadata::has_no_finalizers(&object) {
                let (kind, now) = (target.kind, Timestamp::now());
                let (dry_run, keeps_metadata, key) = (false, false, &*key);
                let change =
                    ObjectWrite { transaction, ledger, kind, key, dry_run, keeps_metadata, now };
                change.remove_object(object)?;
            } else {
                transaction.put(&key, object);
            }
            Ok(())
        })
        .await
    }
}
