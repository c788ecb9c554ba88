//! Creates an object.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::AllocationLedger;
use super::change::{FieldManager, ObjectWrite, WrittenObject};
use super::options::WriteOptions;
use super::{
    Api, ApiRequest, OperationResult, RequestTarget, metadata, metadata_text, storage_key,
};
use crate::failure::ApiFailure;
use crate::storage::Transaction;

/// Attempts to find an unused generated name.
const NAME_ATTEMPTS: usize = 8;

impl Api {
    pub async fn create(&self, request: ApiRequest) -> Result<OperationResult, ApiFailure> {
        if request.target.name.is_some() {
            return Err(ApiFailure::method_not_allowed());
        }
        let options = WriteOptions::parse(&request.query, &request.user_agent, "CreateOptions")?;
        let (mut object, mut warnings) = request.object(options.field_validation)?;
        // Defaults are set by decoding.
        check_or_set_namespace(&request.target, &mut object)?;
        let target = request.target;
        let written = self
            .write(move |transaction, ledger| {
                create_in_transaction(transaction, ledger, &target, object, &options)
            })
            .await?;
        warnings.extend(written.warnings);
        Ok(OperationResult { code: 201, value: written.object, warnings })
    }
}

/// Creates an object within a write. Also used by updates that may create.
pub(super) fn create_in_transaction(
    transaction: &mut Transaction<'_>,
    ledger: &mut AllocationLedger,
    target: &RequestTarget,
    mut object: Value,
    options: &WriteOptions,
) -> Result<WrittenObject, ApiFailure> {
    if !matches!(metadata_text(&object, "resourceVersion"), "" | "0") {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiFailure::new(500, "", message));
    }
    choose_name(transaction, target, &mut object)?;
    let name = metadata_text(&object, "name").to_owned();
    let key = storage_key(target.kind, target.namespace.as_deref(), &name);
    target.kind.rules.set_defaults(&mut object);
    let change = ObjectWrite {
        transaction,
        ledger,
        kind: target.kind,
        key: &key,
        dry_run: options.dry_run,
        keeps_metadata: false,
        now: Timestamp::now(),
    };
    change.create_object(object, &FieldManager::Update(&options.manager))
}

/// Generates a name if the client asks for one.
fn choose_name(
    transaction: &Transaction<'_>,
    target: &RequestTarget,
    object: &mut Value,
) -> Result<(), ApiFailure> {
    let prefix = metadata_text(object, "generateName").to_owned();
    if !metadata_text(object, "name").is_empty() || prefix.is_empty() {
        return Ok(());
    }
    let mut name = metadata::generate_name(&prefix)?;
    for _ in 1..NAME_ATTEMPTS {
        let key = storage_key(target.kind, target.namespace.as_deref(), &name);
        if transaction.get(&key).is_none() {
            break;
        }
        name = metadata::generate_name(&prefix)?;
    }
    metadata::metadata_mut(object).insert("name".to_owned(), name.into());
    Ok(())
}

/// The object's namespace must be that of the path. Sets it if it is missing.
pub(super) fn check_or_set_namespace(
    target: &RequestTarget,
    object: &mut Value,
) -> Result<(), ApiFailure> {
    let given = metadata_text(object, "namespace").to_owned();
    match &target.namespace {
        None if target.kind.namespaced => Err(ApiFailure::bad_request(
            "an empty namespace may not be set during creation".to_owned(),
        )),
        // Without namespaces, like an API server.
        None => {
            metadata::metadata_mut(object).remove("namespace");
            Ok(())
        }
        Some(namespace) if given.is_empty() || given == *namespace => {
            let namespace = namespace.clone().into();
            metadata::metadata_mut(object).insert("namespace".to_owned(), namespace);
            Ok(())
        }
        Some(_) => Err(ApiFailure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}
