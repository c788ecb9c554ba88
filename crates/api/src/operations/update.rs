//! Replaces an object, or its status.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::AllocationLedger;
use super::change::{FieldManager, ObjectWrite, WrittenObject, check_preconditions};
use super::create::{check_or_set_namespace, create_in_transaction};
use super::options::WriteOptions;
use super::{Api, ApiRequest, OperationResult, RequestTarget, metadata_text};
use crate::failure::ApiFailure;
use crate::kinds::{Subresource, Violation};
use crate::storage::Transaction;

impl Api {
    pub async fn update(&self, request: ApiRequest) -> Result<OperationResult, ApiFailure> {
        let options = WriteOptions::parse(&request.query, &request.user_agent, "UpdateOptions")?;
        let (mut object, mut warnings) = request.object(options.field_validation)?;
        check_or_set_namespace(&request.target, &mut object)?;
        check_name_in_path(request.target.name()?, &object)?;
        let target = request.target;
        let (code, written) = self
            .write(move |transaction, ledger| {
                update_in_transaction(transaction, ledger, &target, object, &options)
            })
            .await?;
        warnings.extend(written.warnings);
        Ok(OperationResult { code, value: written.object, warnings })
    }
}

fn update_in_transaction(
    transaction: &mut Transaction<'_>,
    ledger: &mut AllocationLedger,
    target: &RequestTarget,
    mut object: Value,
    options: &WriteOptions,
) -> Result<(u16, WrittenObject), ApiFailure> {
    let kind = target.kind;
    let key = target.key()?;
    let Some(stored) = transaction.get(&key) else {
        if kind.rules.creates_on_update() && target.subresource == Subresource::None {
            let written = create_in_transaction(transaction, ledger, target, object, options)?;
            return Ok((201, written));
        }
        return Err(ApiFailure::not_found(kind, target.name()?));
    };
    let revision = metadata_text(&object, "resourceVersion");
    let revision = (!matches!(revision, "" | "0")).then_some(revision);
    if revision.is_none() && !kind.rules.updates_unconditionally() {
        let detail = "must be specified for an update";
        let violation = Violation::invalid("metadata.resourceVersion", 0, detail);
        return Err(ApiFailure::invalid(kind, target.name()?, &[violation]));
    }
    let uid = metadata_text(&object, "uid");
    check_preconditions(target, &stored, revision, (!uid.is_empty()).then_some(uid))?;
    kind.rules.set_defaults(&mut object);
    let change = ObjectWrite {
        transaction,
        ledger,
        kind,
        key: &key,
        dry_run: options.dry_run,
        keeps_metadata: target.keeps_metadata,
        now: Timestamp::now(),
    };
    let manager = FieldManager::Update(&options.manager);
    let written = change.update_object(&stored, object, target.subresource, &manager)?;
    Ok((200, written))
}

/// The object's name must be that of the path.
pub(super) fn check_name_in_path(name: &str, object: &Value) -> Result<(), ApiFailure> {
    match metadata_text(object, "name") {
        given if given == name => Ok(()),
        "" => Err(ApiFailure::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        given => Err(ApiFailure::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        ))),
    }
}
